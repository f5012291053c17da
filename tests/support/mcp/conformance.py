"""The conformance scenarios of the Model Context Protocol: the program of `tests/mcp_conformance`.

It needs Node 22, so it runs with the locked Node of the development environment.
"""

from pathlib import Path
from typing import Final

from tests.support.node_packages import install_packages, locked_node

DIRECTORY: Final = Path(__file__).parents[2] / "mcp_conformance"
PACKAGE: Final = "@modelcontextprotocol/conformance"


async def conformance_command() -> tuple[str, ...]:
    """The program and its first arguments, before `server` or `client`. Skips the test, with the
    reason, where it cannot run."""
    node = locked_node()
    await install_packages(DIRECTORY, PACKAGE)
    return str(node), str(DIRECTORY / "node_modules" / PACKAGE / "dist" / "index.js")
