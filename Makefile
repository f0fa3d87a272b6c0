# The two commands a newcomer needs are `make demo` and `make test`; both install what they can and list what they cannot.

SHELL := /bin/bash
RECORDS ?= 100000
DATA_DIR ?= ./landfall-demo
SECONDS_OF_WORK ?= 10
CAPTURE_DIR ?= ./landfall-demo-postgres
# One build of the dependencies serves demo, benches and tests (see the profiles in Cargo.toml); only our own crates are
# raised for the two that are timed.
FAST := CARGO_PROFILE_DEV_OPT_LEVEL=3

.PHONY: demo demo-postgres test lint fmt dependencies bench torture advisories help

help:
	@echo "make demo        build and run the whole system on generated events (RECORDS=$(RECORDS), DATA_DIR=$(DATA_DIR))"
	@echo "make demo-postgres  follow a database of its own into Delta tables, verified (SECONDS_OF_WORK=$(SECONDS_OF_WORK), CAPTURE_DIR=$(CAPTURE_DIR))"
	@echo "make test        format, clippy, dependency rules, all tests"
	@echo "make bench       the benchmarks, each against its limit in the same run"
	@echo "make torture     the kill loops and the capture oracles, 200 rounds each; 5,000,000 rows in one transaction"
	@echo "make advisories  known vulnerabilities of the dependencies (asks their database)"
	@echo "make fmt         format the code"

demo:
	@scripts/setup.sh demo
	$(FAST) cargo build --locked -p landfall
	"$${CARGO_TARGET_DIR:-target}/debug/landfall" demo --records $(RECORDS) --data-dir $(DATA_DIR)

demo-postgres:
	@scripts/setup.sh demo-postgres
	$(FAST) cargo build --locked -p landfall
	"$${CARGO_TARGET_DIR:-target}/debug/landfall" demo-postgres --seconds $(SECONDS_OF_WORK) --data-dir $(CAPTURE_DIR)

test:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory lint dependencies
	scripts/run_tests.sh

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

dependencies:
	python3 scripts/check_dependencies.py

fmt:
	cargo fmt --all

bench:
	@scripts/setup.sh demo-postgres
	$(FAST) cargo build --locked -p landfall
	"$${CARGO_TARGET_DIR:-target}/debug/landfall" bench channel --json
	"$${CARGO_TARGET_DIR:-target}/debug/landfall" bench pipeline --json
	"$${CARGO_TARGET_DIR:-target}/debug/landfall" bench cdc --json

torture:
	@scripts/setup.sh test
	LANDFALL_KILLS=200 LANDFALL_ROUNDS=200 cargo test --locked -p landfall --test it -- --nocapture kill
	LANDFALL_LARGE_ROWS=5000000 cargo test --locked -p landfall --test it -- --nocapture a_large_transaction
	LANDFALL_ROUNDS=200 cargo test --locked -p landfall-postgres --test it -- --nocapture capture::the_oracle

advisories:
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is missing: cargo install --locked cargo-deny" >&2; exit 1; }
	cargo deny check advisories
