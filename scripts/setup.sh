#!/usr/bin/env bash
# Checks for what the purposes `demo`, `demo-postgres` and `test` need and installs what is missing: Debian packages when
# root (or with password-less sudo), a Python environment in a folder of its own. What it cannot install it lists, all at
# once.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-demo}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/landfall
python_env=${LANDFALL_PYTHON_ENV:-$cache/python}
rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

missing=()      # what to tell the user
packages=()     # what apt can bring

need() { # need COMMAND PACKAGE
  command -v "$1" >/dev/null 2>&1 || { missing+=("$1 (Debian package: $2)"); packages+=("$2"); }
}

need cc gcc
need make make
if [ ! -e /usr/include/stdlib.h ] && command -v dpkg >/dev/null 2>&1; then
  missing+=("the C library's headers (Debian package: libc6-dev)"); packages+=(libc6-dev)
fi
if [ "$purpose" = test ]; then
  need python3 python3
  if command -v python3 >/dev/null 2>&1 && ! python3 -c 'import ensurepip, venv' >/dev/null 2>&1; then
    missing+=("Python's venv module (Debian package: python3-venv)"); packages+=(python3-venv)
  fi
fi

if [ "$purpose" = test ] || [ "$purpose" = demo-postgres ]; then
  # The server and its tools, of any version; Debian keeps them off the PATH. Tests and demo start clusters of their own.
  if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
    missing+=("a Postgres server, 14 to 18 (Debian package: postgresql)"); packages+=(postgresql)
  fi
fi

# Debian's server package makes and starts a cluster on port 5432 unless it is told not to.
no_cluster=/etc/postgresql-common/createcluster.d/landfall.conf

if [ "${#packages[@]}" -gt 0 ] && command -v apt-get >/dev/null 2>&1; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true >/dev/null 2>&1; then as_root=(sudo -n); else as_root=(false); fi
  fi
  if [ "${as_root[*]:-}" != false ]; then
    echo "setup: installing ${packages[*]}" >&2
    "${as_root[@]}" apt-get update -qq || true
    case " ${packages[*]} " in *" postgresql "*)
      "${as_root[@]}" mkdir -p "${no_cluster%/*}"
      echo "create_main_cluster = false" | "${as_root[@]}" tee "$no_cluster" >/dev/null
      ;;
    esac
    if "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2; then
      missing=()
    fi
    "${as_root[@]}" rm -f "$no_cluster"
  fi
fi

if ! command -v cargo >/dev/null 2>&1; then
  missing+=("a Rust toolchain, $rust_wanted or newer: https://rustup.rs")
else
  have=$(rustc --version | sed 's/^rustc \([0-9.]*\).*/\1/')
  if [ "$(printf '%s\n%s\n' "$rust_wanted" "$have" | sort -V | head -n 1)" != "$rust_wanted" ]; then
    missing+=("Rust $rust_wanted or newer (found $have): rustup update stable")
  fi
  if [ "$purpose" = test ]; then
    cargo fmt --version >/dev/null 2>&1 || missing+=("rustfmt: rustup component add rustfmt")
    cargo clippy --version >/dev/null 2>&1 || missing+=("clippy: rustup component add clippy")
  fi
fi

if [ "${#missing[@]}" -gt 0 ]; then
  echo "setup: missing, and not installed by this script:" >&2
  printf '  - %s\n' "${missing[@]}" >&2
  exit 1
fi

if [ "$purpose" = test ]; then
  # The marker holds what was installed, so that a changed list is installed again and an unchanged one costs nothing.
  wanted=$(python3 -c 'import hashlib, sys; print(hashlib.sha256(open("tests/python/requirements.txt", "rb").read()).hexdigest(), sys.version.split()[0])')
  if [ "$(cat "$python_env/installed" 2>/dev/null || true)" != "$wanted" ]; then
    echo "setup: a Python environment in $python_env" >&2
    python3 -m venv --clear "$python_env"
    if ! "$python_env/bin/python" -m pip install -q --disable-pip-version-check -r tests/python/requirements.txt >&2; then
      echo "setup: the packages of tests/python/requirements.txt could not be installed; is the Python registry reachable?" >&2
      exit 1
    fi
    printf '%s\n' "$wanted" > "$python_env/installed"
  fi
fi
