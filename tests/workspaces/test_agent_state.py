"""At every isolation level, the agent's journal of calls is out of the reach of commands."""

import secrets
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from pathlib import Path

import pytest

from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.workspaces.local.local_backend import LocalConfig
from chatd.workspaces.local.sandbox_command import ISOLATION_LEVELS, IsolationLevel
from tests.support.local_rig import (
    AS_ROOT,
    HOST,
    TEST_TIMEOUT_S,
    LocalRig,
    data_directory,
    open_rig,
)

ONE_ACCOUNT = {"none"} if not AS_ROOT else set[str]()
"""Levels at which a command can open all files of the agent's account: those without isolation."""


@pytest.fixture(scope="module")
def kits() -> Generator[Path]:
    """Every account can read it."""
    with data_directory() as found:
        for directory in (found, found.parent):
            directory.chmod(0o711)
        yield found


@pytest.fixture(params=[level for level in ISOLATION_LEVELS if level not in ONE_ACCOUNT])
async def rig(request: pytest.FixtureRequest, kits: Path) -> AsyncGenerator[LocalRig]:
    """Every account can enter its directory, as workspaces without namespaces must."""
    level: IsolationLevel = request.param
    with data_directory(kits) as data_dir:
        data_dir.chmod(0o711)
        data_dir.parent.chmod(0o711)
        config = LocalConfig(data_dir=data_dir, host_id=HOST, allow_unsafe=True, levels=(level,))
        async with open_rig(config) as rig:
            report = await rig.backend.prepare()
            if report.level is None:
                pytest.skip(report.text)
            yield rig


@pytest.mark.promise("P7")
async def test_a_command_cannot_read_or_change_which_calls_have_run(rig: LocalRig) -> None:
    """Takes seconds: a workspace is started."""
    running = await rig.start()
    await rig.wait_new_agent(running, "")  # its socket is there a little before it listens
    key = secrets.token_hex(16)
    client = await rig.client(running)
    started = await client.start_process("echo ran >> $HOME/log", key=key)
    await client.output(started.id, wait_s=TEST_TIMEOUT_S)
    half = f"{key[:16]}''{key[16:]}"  # The text is not in the command itself.
    state = rig.data_dir / "ws" / running.name / "state"
    found = await rig.output_of(
        running,
        f"grep -rls {half} $HOME /run/chatd {state} {state.parent}/run;"
        f" for f in /proc/[0-9]*/fd/*; do test -f $f && grep -ls {half} $f; done",
    )
    assert found == ""
    boot = (await rig.connect(running)).hello.boot_id
    forge = f"rm -rf {state} {state.parent}/run/once* /run/chatd/once*; kill -9 $PPID"
    with suppress(AgentUnreachable):  # it may be killed before it replies
        await client.start_process(forge, key=secrets.token_hex(16))
    await rig.wait_new_agent(running, boot)
    client = await rig.client(running)
    again = await client.start_process("echo ran >> $HOME/log", key=key)
    assert (again.id, again.again) == (started.id, True)
    assert await rig.output_of(running, "cat $HOME/log") == "ran"
