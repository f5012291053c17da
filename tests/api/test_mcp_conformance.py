"""The conformance scenarios of MCP against chatd's server.

`tests/mcp_conformance/server-scenarios.toml` names every scenario: with which tools it passes, or
why it does not apply. The protocol layer of chatd also serves the tools of the fixture.
"""

import asyncio
import tomllib
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest
from msgspec import Struct

from tests.support.api.server import ApiServer
from tests.support.mcp.conformance import DIRECTORY, conformance_command
from tests.support.mcp.fixture_server import serving_chats, serving_fixture

pytestmark = pytest.mark.conformance


class ScenarioRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """It passes with the tools of chatd, only with those of the fixture, or never."""

    passes: Literal["chatd", "fixture", "never"]
    reason: str = ""


class Check(Struct, frozen=True, kw_only=True):
    id: str
    status: Literal["SUCCESS", "FAILURE", "WARNING", "INFO", "SKIPPED"]
    errorMessage: str = ""  # noqa: N815


TABLE: Final = msgspec.convert(
    tomllib.loads((DIRECTORY / "server-scenarios.toml").read_text()), dict[str, ScenarioRow]
)


async def output_of(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    try:
        async with asyncio.timeout(50):
            return (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def run_scenarios(url: str, directory: Path) -> Mapping[str, list[Check]]:
    """The checks of every scenario."""
    command = await conformance_command()
    arguments = ("server", "--url", url, "--suite", "all", "-o", str(directory))
    printed = await output_of(*command, *arguments)
    return {name: read_checks(directory, name, printed) for name in TABLE}


def read_checks(directory: Path, name: str, printed: str) -> list[Check]:
    results = list(directory.glob(f"server-{name}-2*/checks.json"))
    assert len(results) == 1, (name, printed)
    return msgspec.json.decode(results[0].read_bytes(), type=list[Check])


def has_passed(checks: list[Check]) -> bool:
    """A scenario that only informs has tested nothing."""
    statuses = {check.status for check in checks}
    return "SUCCESS" in statuses and statuses <= {"SUCCESS", "INFO"}


async def test_every_scenario_is_in_the_table() -> None:
    listed = await output_of(*await conformance_command(), "list", "--server")

    names = {line.split()[1] for line in listed.splitlines() if line.startswith("  - ")}
    assert names == TABLE.keys()
    assert all(row.reason for row in TABLE.values() if row.passes == "never")


async def test_scenarios_pass_as_the_table_says(server: ApiServer, tmp_path: Path) -> None:
    """Takes seconds: the program runs all scenarios, once with each set of tools."""
    async with serving_chats(server) as chats, serving_fixture(server) as fixture:
        by_chatd, by_fixture = await asyncio.gather(
            run_scenarios(chats, tmp_path / "chatd"), run_scenarios(fixture, tmp_path / "fixture")
        )
    for name, row in TABLE.items():
        passed = (has_passed(by_chatd[name]), has_passed(by_fixture[name]))
        expected = {"chatd": (True, True), "fixture": (False, True), "never": (False, False)}
        assert passed == expected[row.passes], (name, by_chatd[name], by_fixture[name])
