"""Checks and tests of the page: types and lint, the types of the API, unit tests, and the page in
Chromium against a real server. Run by the Makefile after the checks of the Python code.

Without Node nothing of this runs, and without Chromium the tests in the browser do not; both are
said.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.decoys import planted
from tools.environment import can_install_packages, install_package
from tools.page_build import NODE_TEXT, ROOT, PageNotBuilt, build_page, has_node, install_packages

UI = ROOT / "ui"
SCHEMA = UI / "src" / "api" / "schema.d.ts"
CHROMIUM = Path("/usr/bin/chromium")
# The same engine without windows: a page costs it a third. It shows no notifications.
HEADLESS = Path("/usr/bin/chromium-headless-shell")


def main() -> None:
    parser = argparse.ArgumentParser(description="Check and test the page.")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--install-only", action="store_true", help="the packages, if needed")
    parts.add_argument("--check-only", action="store_true", help="types and lint only")
    parts.add_argument("--without-browser", action="store_true", help="types, lint, unit tests")
    parts.add_argument("--browser-only", action="store_true", help="the tests in Chromium only")
    parts.add_argument(
        "--slow", action="store_true", help="the tests in Chromium only, each state in all themes"
    )
    options = parser.parse_args()
    if not has_node():
        if not options.install_only:
            say(f"{NODE_TEXT} is not installed: the page is neither checked nor tested.")
        return
    try:
        install_packages(ROOT, say)
    except PageNotBuilt as error:
        sys.exit(f"error: {error}")
    if options.install_only:
        return
    if options.check_only:
        passed = run_step("types and lint", npm("check"))
    elif options.without_browser:
        passed = check_page()
    elif options.browser_only:
        say("Testing the page in Chromium: two minutes ...")
        passed = test_built_page(slow=False)
    elif options.slow:
        say("Testing the page in all themes and on both devices: five minutes ...")
        passed = test_built_page(slow=True)
    else:
        say("Checking and testing the page: two or three minutes ...")
        passed = test_page()
    sys.exit(0 if passed else 1)


def test_page() -> bool:
    """All of it, whichever fails. The checks take one core; the tests in Chromium wait for servers
    now and then, so both run at once."""
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check_page)
        tested = test_built_page(slow=False)
        return all([checked.result(), tested])


def check_page() -> bool:
    return all(
        [
            is_schema_current(),
            run_step("types and lint", npm("check")),
            run_step("unit tests", npm("test")),
        ]
    )


def test_built_page(*, slow: bool) -> bool:
    """No browser for a page that does not build."""
    return is_built() and test_in_browser(slow=slow)


def is_built() -> bool:
    try:
        build_page(ROOT, "require", say)
    except PageNotBuilt as error:
        say(f"error: {error}")
        return False
    return True


def test_in_browser(*, slow: bool) -> bool:
    program = chromium()
    if program is None:
        say("Chromium is not installed: the page is not tested in a browser (package chromium).")
        return True
    with planted(in_fixed_places=bool(os.environ.get("CI")), is_proxy=False) as decoys:
        env = {
            **decoys.variables,
            "CHATD_CHROMIUM": str(program),
            "CHATD_HEADLESS": str(headless_of(program)),
            "CHATD_RETRY": "1",  # a failed test once more; one that passes then is flaky
            "CHATD_SLOW": "1" if slow else "0",
        }
        passed = run_step("tests in Chromium", npm("e2e"), env, is_shown=True)
        return passed and not decoys.report_requests(say)


def chromium() -> Path | None:
    """Debian's, installed if that is possible; or the one that CHATD_CHROMIUM names."""
    named = os.environ.get("CHATD_CHROMIUM")
    if named is not None:
        return Path(named)
    for package, path in (("chromium", CHROMIUM), ("chromium-headless-shell", HEADLESS)):
        if not path.exists() and can_install_packages(package):
            say(f"Installing {package} with apt-get, for the page's tests: a minute or two ...")
            install_package(package)
    return CHROMIUM if CHROMIUM.exists() else None


def headless_of(program: Path) -> Path:
    """What most tests run in. A program that CHATD_CHROMIUM names runs all of them."""
    return HEADLESS if program == CHROMIUM and HEADLESS.exists() else program


def is_schema_current() -> bool:
    """Whether the types in ui/ are those of this server's OpenAPI document."""
    found = ROOT / "build" / "schema.d.ts"
    found.parent.mkdir(exist_ok=True)
    if not run_step("types of the API", npm("types"), {"CHATD_TYPES": str(found)}):
        return False
    if found.read_bytes() == SCHEMA.read_bytes():
        return True
    say("ui/src/api/schema.d.ts is not up to date: run npm run types in ui/.")
    return False


def npm(script: str) -> list[str]:
    return ["npm", "run", "--silent", script]


def run_step(
    name: str, command: list[str], more: dict[str, str] | None = None, *, is_shown: bool = False
) -> bool:
    """What it prints is shown if it fails; or as it comes."""
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=UI,
        env={**os.environ, **(more or {})},
        stdin=subprocess.DEVNULL,
        stdout=None if is_shown else subprocess.PIPE,
        stderr=None if is_shown else subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0 and done.stdout:
        say(done.stdout)
    outcome = "" if done.returncode == 0 else " FAILED"
    say(f"  page: {name}, {time.monotonic() - began:.0f} s{outcome}")
    return done.returncode == 0


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
