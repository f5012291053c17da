"""Run pytest; with --retry, run each failed test once more, alone, after the others.

A test that passes the second time is printed as flaky and does not fail the run. A test that fails
twice does. Only failed tests are repeated: an interrupted run, an internal error of pytest or an
empty selection fails at once, and so does a run with more failures than MAX_RETRIED_TESTS.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

MAX_RETRIED_TESTS = 10
TESTS_FAILED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Run pytest, and failed tests once more.")
    parser.add_argument("--retry", action="store_true", help="repeat failed tests once, alone")
    options, pytest_args = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="chatd-tests-") as directory:
        failed_file = Path(directory) / "failed"
        code = run_pytest(failed_file, pytest_args)
        if options.retry and code == TESTS_FAILED:
            code = retry_failed(read_lines(failed_file), Path(directory))
    sys.exit(code)


def run_pytest(failed_file: Path, arguments: list[str]) -> int:
    """`tests/conftest.py` writes the ids of failed tests to the file."""
    command = [sys.executable, "-m", "pytest", f"--failed-file={failed_file}", *arguments]
    return subprocess.run(command, check=False).returncode


def retry_failed(failed: list[str], directory: Path) -> int:
    if not failed or len(failed) > MAX_RETRIED_TESTS:
        report(f"{len(failed)} tests failed; a retry is made for 1 to {MAX_RETRIED_TESTS}.")
        return TESTS_FAILED
    report(f"Retrying {len(failed)} failed tests, each in a process of its own.")
    outcomes = {
        test: run_pytest(directory / "failed-again", ["-q", "-n", "0", "--durations=0", test])
        for test in failed
    }
    for test, code in outcomes.items():
        report(f"{'FLAKY (repair it)' if code == 0 else 'FAILED TWICE'}: {test}")
    return TESTS_FAILED if any(outcomes.values()) else 0


def read_lines(path: Path) -> list[str]:
    """A run that ended before its summary has written no file."""
    return path.read_text().splitlines() if path.exists() else []


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
