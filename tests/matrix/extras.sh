#!/usr/bin/env bash
# `make fast` with all extras installed, in an environment of their own, then their slow tests. On
# Debian, as root, it installs the packages of PostgreSQL and Chromium where they are missing.
set -euo pipefail
debian() {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 240 \
        apt-get install -qq -y --no-install-recommends "$@"
}
missing=()
[ -d /usr/lib/postgresql ] || missing+=(postgresql)
command -v chromedriver >/dev/null || missing+=(chromium chromium-driver)
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && grep -qs '^ID=debian$' /etc/os-release; then
    debian "${missing[@]}" >&2 || echo "apt-get cannot install ${missing[*]}" >&2
fi

venv=build/extras-venv
make VENV=$venv EXTRAS=dev,serve,export,tune,cluster,ray,postgres fast
exec $venv/bin/python -m pytest -m slow tests/lab/jobs tests/lab/report tests/lab/tune/test_tune_postgres.py
