#!/usr/bin/env python3
"""Dependency rules, from `cargo metadata`: licences, sources, one version of each big crate, floors.

Needs nothing but cargo and Python. Advisories are asked by `make advisories`: their database is not always reachable.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What may be linked: permissive licences whose terms an Apache-2.0 binary meets by keeping their notices.
LICENCES = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CDLA-Permissive-2.0", "ISC", "MIT", "MIT-0", "OpenSSL", "Unicode-3.0", "Unlicense", "Zlib",
}

# Packages without an SPDX expression, or with one that needs a word: name -> why it is fine.
LICENCE_EXCEPTIONS = {
    "option-ext": "MPL-2.0, linked unmodified: its terms reach its own files only; comes with `dirs` under deltalake-core",
}

# Two versions of these would cost minutes of build, or make types that do not fit each other.
ONE_VERSION = {
    "arrow", "arrow-array", "arrow-schema", "parquet", "datafusion", "datafusion-common", "datafusion-expr",
    "deltalake-core", "buoyant_kernel", "object_store", "tokio", "tonic", "prost", "axum", "hyper", "h2", "http",
    "rustls", "serde", "serde_json", "bytes", "futures-util", "redb", "sqlparser", "metrics", "tracing",
}

# Second versions that are known, each with its reason.
SECOND_VERSIONS = {}

SOURCE = "registry+https://github.com/rust-lang/crates.io-index"


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def licence_fits(expression):
    """Whether an SPDX expression can be met by the allowed licences: any side of OR, every side of AND."""
    text = expression.replace("/", " OR ")
    tokens = re.findall(r"\(|\)|[^\s()]+", text)
    # `X WITH Y` is one licence.
    joined, at = [], 0
    while at < len(tokens):
        if at + 2 < len(tokens) and tokens[at + 1] == "WITH":
            joined.append(f"{tokens[at]} WITH {tokens[at + 2]}")
            at += 3
        else:
            joined.append(tokens[at])
            at += 1

    def any_of(at):
        value, at = all_of(at)
        while at < len(joined) and joined[at] == "OR":
            right, at = all_of(at + 1)
            value = value or right
        return value, at

    def all_of(at):
        value, at = one(at)
        while at < len(joined) and joined[at] == "AND":
            right, at = one(at + 1)
            value = value and right
        return value, at

    def one(at):
        if joined[at] == "(":
            value, at = any_of(at + 1)
            return value, at + 1
        return joined[at] in LICENCES, at + 1

    value, end = any_of(0)
    return value and end == len(joined)


# Lower floors never import higher ones; within a floor only `engine` imports a neighbour, `state`.
FLOORS = {
    "types": 0, "log": 1, "state": 1, "engine": 1, "protocol": 1, "channel": 2, "client": 2, "sql": 2, "delta": 2,
    "files": 2, "postgres": 2, "server": 3, "landfall": 4,
}


def floor_problems():
    problems = []
    for manifest in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        crate = manifest.parent.name
        if crate == "testkit":
            continue
        if crate not in FLOORS:
            problems.append(f"{crate}: stands on no floor; add it to FLOORS in this script and to docs/ARCHITECTURE.md")
            continue
        for name in tomllib.loads(manifest.read_text()).get("dependencies", {}):
            if not name.startswith("landfall"):
                continue
            other = name.removeprefix("landfall-")
            if other not in FLOORS:
                problems.append(f"{crate}: imports {name}, which belongs into tests only")
            elif FLOORS[other] > FLOORS[crate]:
                problems.append(f"{crate} (floor {FLOORS[crate]}) imports {other} (floor {FLOORS[other]})")
            elif FLOORS[other] == FLOORS[crate] and (crate, other) != ("engine", "state"):
                problems.append(f"{crate} imports {other}, its neighbour on floor {FLOORS[crate]}")
    return problems


def main():
    data = metadata()
    used = {node["id"] for node in data["resolve"]["nodes"]}
    packages = [package for package in data["packages"] if package["id"] in used]
    problems = floor_problems()
    versions = defaultdict(set)
    for package in packages:
        name, version = package["name"], package["version"]
        versions[name].add(version)
        if package["source"] is None:
            continue
        if package["source"] != SOURCE:
            problems.append(f"{name} {version}: comes from {package['source']}, not from crates.io")
        licence = package["license"]
        if name in LICENCE_EXCEPTIONS:
            continue
        if not licence:
            problems.append(f"{name} {version}: states no licence")
        elif not licence_fits(licence):
            problems.append(f"{name} {version}: licence `{licence}` is not on the list")
    for name, found in sorted(versions.items()):
        if name in ONE_VERSION and len(found) > 1 and name not in SECOND_VERSIONS:
            problems.append(f"{name}: {len(found)} versions ({', '.join(sorted(found))}); one is allowed")
    for name in SECOND_VERSIONS:
        if len(versions.get(name, ())) < 2:
            problems.append(f"{name}: listed in SECOND_VERSIONS and has one version; remove the entry")
    for problem in problems:
        print(f"dependencies: {problem}", file=sys.stderr)
    second = sum(1 for found in versions.values() if len(found) > 1)
    print(f"dependencies: {len(packages)} packages, {second} names in two or more versions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
