#!/bin/sh
# Writes requirements/*.txt: exact versions and hashes for every Python from 3.11 on, and no
# addresses, so that an installer asks whichever index its machine is set to. Run by make lock.
# ARGS for uv, such as --upgrade or --upgrade-package NAME, go through UV_ARGS.
set -eu
cd "$(dirname "$0")/.."

lock() {
    # shellcheck disable=SC2086
    "$UV" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-annotate --no-emit-index-url --no-emit-find-links \
        --custom-compile-command "make lock" ${UV_ARGS:-} "$@"
}

if ! "$UV" --version >/dev/null 2>&1; then
    echo "error: make lock needs uv (UV=/path/to/uv names one)" >&2
    exit 1
fi
lock pyproject.toml --output-file requirements/runtime.txt
lock --group build --constraint requirements/runtime.txt --output-file requirements/build.txt
lock pyproject.toml --extra otel --group dev --constraint requirements/runtime.txt \
    --constraint requirements/build.txt --output-file requirements/dev.txt
lock --group model --no-deps --output-file requirements/model.txt
lock --group site --constraint requirements/dev.txt --output-file requirements/site.txt
lock --group docs-ui --no-deps --output-file requirements/docs_ui.txt
if grep -n -E '://|^-|^ *--(index|extra|find|trusted)' requirements/*.txt; then
    echo "error: an address has come into a lock file (see above)" >&2
    exit 1
fi
