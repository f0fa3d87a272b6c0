#!/usr/bin/env bash
# All tests of the workspace: by cargo-nextest, which bounds each test's time, or by cargo itself where it is absent.
set -euo pipefail
cd "$(dirname "$0")/.."
if cargo nextest --version >/dev/null 2>&1; then
  cargo nextest run --locked --workspace --no-fail-fast "$@"
  cargo test --locked --workspace --doc
else
  cargo test --locked --workspace --no-fail-fast "$@"
fi
