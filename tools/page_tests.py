"""The steps of tools/checks.py that concern the page: its packages, its build, the types of the API
in it, and its tests in Chromium against a real server.

Without Chromium the tests in the browser do not run, which is said.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tools.decoys import planted
from tools.environment import CHROMIUM, HEADLESS
from tools.page_build import ROOT, PageNotBuilt, build_page, install_packages

UI = ROOT / "ui"
SCHEMA = UI / "src" / "api" / "schema.d.ts"


def main() -> None:
    parser = argparse.ArgumentParser(description="A step of the checks and tests of the page.")
    parser.add_argument("step", choices=("install", "build", "schema", "browser"))
    parser.add_argument("--slow", action="store_true", help="each state in all themes")
    options = parser.parse_args()
    try:
        if options.step == "install":
            install_packages(ROOT, say)
        elif options.step == "build":
            build_page(ROOT, "require", say)
        elif options.step == "schema":
            check_schema()
        else:
            test_in_browser(slow=options.slow)
    except PageNotBuilt as error:
        sys.exit(f"error: {error}")


def check_schema() -> None:
    """The types in ui/ must be those of this server's OpenAPI document."""
    found = ROOT / "build" / "schema.d.ts"
    found.parent.mkdir(exist_ok=True)
    run_npm("types", {"CHATD_TYPES": str(found)})
    if found.read_bytes() != SCHEMA.read_bytes():
        sys.exit("ui/src/api/schema.d.ts is not up to date: run npm run types in ui/.")


def test_in_browser(*, slow: bool) -> None:
    program = Path(os.environ.get("CHATD_CHROMIUM", CHROMIUM))
    if program == CHROMIUM and not CHROMIUM.exists():
        say("Chromium is not installed: the page is not tested in a browser (package chromium).")
        return
    # A program that CHATD_CHROMIUM names runs all tests.
    headless = HEADLESS if program == CHROMIUM and HEADLESS.exists() else program
    with planted(in_fixed_places=False, is_proxy=False) as decoys:
        env = {
            **decoys.variables,
            "CHATD_CHROMIUM": str(program),
            "CHATD_HEADLESS": str(headless),
            "CHATD_RETRY": "1",  # a failed test once more; one that passes then is flaky
            "CHATD_SLOW": "1" if slow else "0",
        }
        run_npm("e2e", env)
        if decoys.report_requests(say):
            sys.exit(1)


def run_npm(script: str, variables: dict[str, str]) -> None:
    command = ["npm", "run", "--silent", script]
    done = subprocess.run(command, cwd=UI, env={**os.environ, **variables}, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
