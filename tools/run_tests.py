"""Run pytest among decoys, and each failed test once more, alone, after the others.

A test that passes the second time is printed as flaky and does not fail the run. A test that fails
twice does. Only failed tests are repeated: an interrupted run, an internal error of pytest or an
empty selection fails at once, and so does a run with more failures than MAX_RETRIED_TESTS.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.decoys import planted

MAX_RETRIED_TESTS = 10
TESTS_FAILED = 1


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="chatd-tests-") as directory,
        planted(in_fixed_places=False) as decoys,
    ):
        runner = TestRunner(Path(directory), {**os.environ, **decoys.variables})
        code = runner.run(sys.argv[1:])
        if decoys.report_requests(report):
            code = code or TESTS_FAILED
    sys.exit(code)


class TestRunner:
    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self._failed = directory / "failed"
        self._env = env

    def run(self, arguments: list[str]) -> int:
        code = self._run_pytest(arguments)
        return self._retry(read_lines(self._failed)) if code == TESTS_FAILED else code

    def _run_pytest(self, arguments: list[str]) -> int:
        """`tests/conftest.py` writes the ids of failed tests to the file."""
        command = [sys.executable, "-m", "pytest", f"--failed-file={self._failed}", *arguments]
        with subprocess.Popen(command, env=self._env) as process:
            try:
                return process.wait()
            except KeyboardInterrupt:  # pytest has heard of it too, and cleans up
                return process.wait()

    def _retry(self, failed: list[str]) -> int:
        if not failed or len(failed) > MAX_RETRIED_TESTS:
            report(f"{len(failed)} tests failed; a retry is made for 1 to {MAX_RETRIED_TESTS}.")
            return TESTS_FAILED
        report(f"Retrying {len(failed)} failed tests, each in a process of its own.")
        alone = ["-q", "-n", "0", "--durations=0"]
        outcomes = {test: self._run_pytest([*alone, test]) for test in failed}
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
