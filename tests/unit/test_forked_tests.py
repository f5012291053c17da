"""`pytest --forks`: which process runs which test, and what a process that dies leaves."""

import subprocess
import sys
from pathlib import Path

from tests.support.forked_tests import ROOT, TestQueue

CONFTEST = """
from contextlib import nullcontext
from tests.support.forked_tests import ForkedTests

def pytest_configure(config):
    config.pluginmanager.register(ForkedTests(2, nullcontext))
"""
TESTS = """
import os, pytest

@pytest.mark.parametrize("n", range(8))
def test_passes(n, tmp_path):
    (tmp_path / "alone").touch(exist_ok=False)

def test_dies():
    os._exit(3)

def test_fails():
    print("a captured line")
    assert os.getpid() == 0
"""


def test_a_group_stays_with_its_worker_until_only_the_ends_of_begun_groups_are_left() -> None:
    queue = TestQueue([[0, 1, 2, 3], [4], [5, 6]])
    assert [queue.take(worker) for worker in (1, 2, 1, 2, 2)] == [0, 4, 1, 5, 6]
    assert [queue.take(worker) for worker in (2, 1, 1, 2)] == [3, 2, None, None]


def test_what_a_dead_worker_had_not_begun_is_taken_by_another() -> None:
    queue = TestQueue([[0, 1]])
    assert queue.take(1) == 0
    queue.put_back([7])
    assert [queue.take(2), queue.take(2), queue.take(2)] == [7, 1, None]


def test_a_process_that_dies_fails_its_test_only(tmp_path: Path) -> None:
    """Starts pytest, which takes a second."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", "-c", "/dev/null"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 8 passed" in done.stdout
    assert "The process that ran the test ended with status 3." in done.stdout
    assert "a captured line" in done.stdout
