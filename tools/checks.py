"""Every check and every test, as `make check`, `make test` and `make test-page` run them.

Each is a job with a process of its own, and starts when the jobs that it needs have passed: the
page is checked while the packages of Python are fetched, and types and lint while Chromium and
pytest run. What a job prints is shown if it fails; pytest prints as it goes. The last lines
say what each took. Run by any Python 3.11+ before anything is installed: standard library only.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from tools import environment
from tools.decoys import planted
from tools.page_build import NODE_TEXT, ROOT, has_node

BIN = ROOT / ".venv" / "bin"
UI = ROOT / "ui"
PACKAGES_OF_TESTS = [
    f"tests/{name}/node_modules/.package-lock.json" for name in ("oidc", "official_clients")
]
END_TIMEOUT_S = 30.0
SHOWN_OF_ENDED = 20

# Objects of a type checker live long, and a small young generation copies them again and again:
# pyright took 66 s of the processor with it, 70 without.
TYPES_OPTIONS = {"NODE_OPTIONS": "--max-semi-space-size=64"}
# Long checks leave the processors to the tests, whose waits would run out.
BESIDE = ["nice", "-n", "10"]


@dataclass(frozen=True)
class Job:
    name: str
    command: list[str]
    needs: tuple[str, ...] = ()
    """Jobs that must have passed. One that is not part of this run is not waited for."""
    after: tuple[str, ...] = ()
    """Jobs that must have ended, whether they passed or not."""
    directory: Path = ROOT
    variables: dict[str, str] = field(default_factory=dict[str, str])
    is_live: bool = False
    is_shown: bool = False
    """Also if it passes."""


@dataclass
class Running:
    job: Job
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    began: float


@dataclass(frozen=True)
class Ended:
    job: Job
    passed: bool
    wall_s: float
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Checks and tests; after -- stand arguments for pytest."
    )
    parser.add_argument("what", choices=("check", "test", "page"))
    parser.add_argument("--forks", default="4", help="in how many processes pytest runs")
    parser.add_argument("--slow", action="store_true", help="the page in all themes, nothing else")
    own = [*sys.argv[1:], "--"]
    options = parser.parse_args(own[: own.index("--")])
    arguments = own[own.index("--") + 1 : -1]
    with environment.one_at_a_time():
        environment.make_venv()
    jobs: list[Job] = []
    if options.what == "page":
        jobs += [*jobs_of_environment(), *jobs_of_browser(slow=options.slow)]
        jobs += [] if options.slow else jobs_of_page()
    else:
        jobs += jobs_of_python()
    if options.what == "check" and (UI / "node_modules").is_dir():
        jobs += lint_of_page()
    if options.what == "test":
        if arguments:
            say("Not testing the page: ARGS chooses tests of pytest.")
        else:
            jobs += [*jobs_of_page(), *jobs_of_browser(slow=False)]
        jobs += jobs_of_tests(options.forks, arguments)
    in_fixed_places = options.what == "test" and bool(os.environ.get("CI"))
    with planted(in_fixed_places=in_fixed_places) as decoys:
        passed = JobRunner(jobs).run()
        if decoys.report_requests(say):
            passed = False
    sys.exit(0 if passed else 1)


def jobs_of_environment() -> Iterator[Job]:
    """apt-get is one job: two at a time would be in each other's way."""
    setup = [sys.executable, "tools/environment.py"]
    yield Job("packages", [*setup, "dev"], variables={"CHATD_SETUP_SYSTEM": "0"}, is_live=True)
    yield Job("system packages", [*setup, "system"], is_live=True)


def jobs_of_python() -> Iterator[Job]:
    yield from jobs_of_environment()
    after = ("packages",)
    yield Job("format", [str(BIN / "ruff"), "format", "--quiet", "--check", "."], after)
    yield Job("lint", [str(BIN / "ruff"), "check", "--quiet", "."], after)
    yield Job("imports", [str(BIN / "lint-imports"), "--no-logo"], after)
    pyright = [*BESIDE, str(BIN / "pyright"), "--warnings"]
    yield Job("types", pyright, after, variables=TYPES_OPTIONS)


def jobs_of_page() -> Iterator[Job]:
    if not has_node():
        say(f"{NODE_TEXT} is not installed: the page is neither checked nor tested.")
        return
    yield from lint_of_page()
    unit_tests = [*BESIDE, "npm", "run", "--silent", "test"]
    yield Job("unit tests of the page", unit_tests, ("types and lint of the page",), directory=UI)
    schema = [sys.executable, "-m", "tools.page_tests", "schema"]
    yield Job("types of the API", schema, ("packages", "packages of the page"))


def lint_of_page() -> Iterator[Job]:
    yield page_packages()
    check = [*BESIDE, "npm", "run", "--silent", "check"]
    needs = ("packages of the page",)
    yield Job("types and lint of the page", check, needs, directory=UI, variables=TYPES_OPTIONS)


def page_packages() -> Job:
    return Job("packages of the page", [sys.executable, "-m", "tools.page_tests", "install"])


def jobs_of_browser(*, slow: bool) -> Iterator[Job]:
    if not has_node():
        return
    tool = [sys.executable, "-m", "tools.page_tests"]
    if slow:
        yield page_packages()
    yield Job("build of the page", [*tool, "build"], ("packages of the page",))
    chromium = [sys.executable, "tools/environment.py", "browser"]
    yield Job("Chromium", chromium, ("system packages",), is_live=True)
    needs = ("packages", "format", "lint", "imports", "build of the page", "Chromium")
    browser = [*tool, "browser", *(["--slow"] if slow else [])]
    yield Job("tests in Chromium", browser, needs, is_shown=True)


def jobs_of_tests(forks: str, arguments: list[str]) -> Iterator[Job]:
    yield Job("packages of tests", ["make", "-s", *PACKAGES_OF_TESTS], is_live=True)
    needs = ("packages", "system packages", "format", "lint", "imports")
    needs = (*needs, "packages of tests", "build of the page")
    command = [str(BIN / "python"), "-m", "tools.run_tests", "--forks", forks, *arguments]
    # Two suites at once starve each other on two cores: their waits run out.
    yield Job("tests", command, needs, ("tests in Chromium",), is_live=True)


class JobRunner:
    def __init__(self, jobs: list[Job]) -> None:
        self._waiting = {job.name: job for job in jobs}
        self._running: dict[int, Running] = {}
        self._ended: dict[str, Ended] = {}

    def run(self) -> bool:
        """Whether all passed."""
        signal.signal(signal.SIGTERM, end_run)
        began, worked = time.monotonic(), read_work_s()
        try:
            self._start_ready()
            while self._running:
                self._await_one()
                self._start_ready()
        finally:
            self._end_all()
        for name in self._waiting:
            say(f"NOT RUN: {name}")
        self._report(time.monotonic() - began, read_work_s() - worked)
        return not self._waiting and all(ended.passed for ended in self._ended.values())

    def _start_ready(self) -> None:
        for job in list(self._waiting.values()):
            awaited = [self._ended.get(name) for name in job.needs if self._is_known(name)]
            if all(ended is not None and ended.passed for ended in awaited) and all(
                self._is_over(name) for name in job.after
            ):
                del self._waiting[job.name]
                self._start(job)

    def _is_over(self, name: str) -> bool:
        """Or will never start: it is no part of this run, or a job that it needs has failed."""
        if name in self._ended or not self._is_known(name):
            return True
        waiting = self._waiting.get(name)
        needed = [self._ended.get(need) for need in waiting.needs] if waiting else []
        return any(ended is not None and not ended.passed for ended in needed)

    def _is_known(self, name: str) -> bool:
        running = any(one.job.name == name for one in self._running.values())
        return running or name in self._waiting or name in self._ended

    def _start(self, job: Job) -> None:
        if job.name == "tests":
            say("Running the tests, which takes minutes; the percentage says how far they are ...")
        output = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the job has ended)
        process = subprocess.Popen(
            job.command,
            cwd=job.directory,
            env={**os.environ, **job.variables},
            stdin=subprocess.DEVNULL,
            stdout=None if job.is_live else output,
            stderr=None if job.is_live else subprocess.STDOUT,
            process_group=0,
        )
        self._running[process.pid] = Running(job, process, output, time.monotonic())

    def _await_one(self) -> None:
        pid, status, usage = os.wait4(-1, 0)
        running = self._running.pop(pid)
        running.process.returncode = code = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - running.began
        cpu_s = usage.ru_utime + usage.ru_stime
        job = running.job
        self._ended[job.name] = Ended(job, code == 0, wall_s, cpu_s)
        if code != 0 or job.is_shown:
            say(f"\n--- {job.name} ---")
            running.output.seek(0)
            shutil.copyfileobj(running.output, sys.stdout.buffer)
        running.output.close()
        if code != 0:
            say(f"FAILED: {job.name} ({' '.join(job.command)}: status {code})")
            if job.name == "format":
                say("Run make fmt.")

    def _end_all(self) -> None:
        """Of a run that was interrupted: pytest needs a moment to remove its databases."""
        for pid, running in self._running.items():
            say(f"\nENDED: {running.job.name}")
            os.killpg(pid, signal.SIGINT)
        deadline = time.monotonic() + END_TIMEOUT_S
        for pid, running in self._running.items():
            try:
                running.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(pid, signal.SIGKILL)
                running.process.wait()
            running.output.seek(0)
            for line in running.output.readlines()[-SHOWN_OF_ENDED:]:
                sys.stdout.buffer.write(b"  " + line)
            running.output.close()

    def _report(self, wall_s: float, work_s: float) -> None:
        say("Seconds of each job, and CPU of its processes without PostgreSQL and left processes:")
        for ended in sorted(self._ended.values(), key=lambda one: -one.cpu_s):
            outcome = "" if ended.passed else "  FAILED"
            say(f"{ended.wall_s:7.0f} s {ended.cpu_s:7.0f} s CPU  {ended.job.name}{outcome}")
        cores = os.cpu_count() or 1
        share = f"; {work_s:.0f} s of {wall_s * cores:.0f} s of the processors" if work_s else ""
        say(f"{wall_s:7.0f} s in all{share}")


def end_run(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(130)


def read_work_s() -> float:
    """That the processors of this machine have worked since its start; 0 where that is not told."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = (
            int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        )
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
