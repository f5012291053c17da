"""The conformance scenarios of MCP for clients. `tests/mcp_conformance/client-scenarios.toml` names
every scenario: who passes it, or why it does not apply."""

import asyncio
import os
import sys
import tomllib
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest
from msgspec import Struct

from tests.support.api.server import ADMINISTRATOR, ApiOptions, serve_api
from tests.support.mcp.conformance import DIRECTORY, conformance_command
from tests.support.processes import ROOT

# The runner cuts a command at its spaces, which the path of the checkout may have.
PYTHON: Final = os.path.relpath(sys.executable, ROOT)
CLIENT: Final = f"{PYTHON} -m tests.support.mcp.conformance_client"
OAUTH_CLIENT: Final = f"{PYTHON} -m tests.support.mcp.conformance_oauth_client"
pytestmark = pytest.mark.conformance

LOCAL: Final = ApiOptions(mcp_hosts=frozenset({"127.0.0.1", "localhost"}))


class ClientScenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    passes: Literal["client", "user", "never"]
    reason: str = ""


class ScenarioCheck(Struct, frozen=True, kw_only=True):
    id: str
    status: Literal["SUCCESS", "FAILURE", "WARNING", "INFO", "SKIPPED"]


TABLE: Final = msgspec.convert(
    tomllib.loads((DIRECTORY / "client-scenarios.toml").read_text()), dict[str, ClientScenario]
)


def names(passes: str) -> list[str]:
    return [name for name, row in TABLE.items() if row.passes == passes]


async def output_of(*arguments: str) -> str:
    command = await conformance_command()
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=PIPE, stderr=STDOUT, cwd=ROOT
    )
    try:
        async with asyncio.timeout(50):
            return (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def run_scenario(name: str, client: str, directory: Path) -> None:
    arguments = ("--command", client, "--scenario", name, "-o", str(directory))
    printed = await output_of("client", *arguments)
    checks = read_checks(directory)
    # Whether a delay is exact depends on how busy the machine is.
    statuses = {check.status for check in checks if check.id != "client-sse-retry-timing"}
    assert "SUCCESS" in statuses
    assert statuses <= {"SUCCESS", "INFO"}, printed


def read_checks(directory: Path) -> list[ScenarioCheck]:
    [result] = directory.rglob("checks.json")
    return msgspec.json.decode(result.read_bytes(), type=list[ScenarioCheck])


@pytest.mark.covers("mcp-12")
async def test_every_client_scenario_is_in_the_table() -> None:
    listed = await output_of("list", "--client")
    found = {line.split()[1] for line in listed.splitlines() if line.startswith("  - ")}
    assert found == TABLE.keys()
    assert all(TABLE[name].reason for name in names("never"))


@pytest.mark.covers("mcp-12")
@pytest.mark.parametrize("name", names("client"))
async def test_the_client_passes_the_scenario(name: str, tmp_path: Path) -> None:
    """Takes seconds: two programs are started."""
    await run_scenario(name, CLIENT, tmp_path)


@pytest.mark.covers("mcp-12")
@pytest.mark.parametrize("name", names("user"))
async def test_a_user_who_connects_passes_the_scenario(name: str, dsn: str, tmp_path: Path) -> None:
    """Takes seconds: two programs are started."""
    async with serve_api(dsn, LOCAL) as server:
        client = f"{OAUTH_CLIENT} {server.url} {ADMINISTRATOR}"
        await run_scenario(name, client, tmp_path)
