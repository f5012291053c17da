"""Fixtures of whole servers."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.database import scratch_space


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """As root the database runs under another account, which cannot enter pytest's directories."""
    path = Path(tempfile.mkdtemp(prefix="chatd-e2e-", dir=scratch_space()))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
