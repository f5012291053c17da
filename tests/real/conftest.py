"""One model server for all tests of this directory."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def model_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    log = tmp_path_factory.mktemp("model") / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.real.serve"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        assert server.stdout is not None
        assert server.stdin is not None
        address = server.stdout.readline().strip()
        if not address:
            pytest.fail(f"the model did not start:\n{log.read_text()[-2000:]}")
        yield address
        server.stdin.close()
        server.wait(timeout=30)
