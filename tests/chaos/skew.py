"""Runners and servers of two versions work together.

`make skew` checks an older version out (OLD_RUNNER=commit; by default the first one with runners)
and runs commands with its runner beside a server of this version, and with a runner of this version
beside its server. In the middle of a command the runner is replaced by the other version, which
finds the workspaces and agents of the first. At last the older server is replaced too, on the same
database. Each command runs once, and its whole output arrives.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from chatd.workspaces.local.local_backend import LocalConfig
from tests.support.database import own_server_in, scratch_space
from tests.support.local_rig import HOST, LocalRig, data_directory
from tests.support.relay import Relay
from tests.workspace_turns.servers import (
    CHATD,
    COUNT,
    Call,
    ScriptedModel,
    ServerSite,
    check_counted,
    execute,
    prepare_pool,
    runner_process,
    wait_for_text,
)


async def run_mixed(server_program: Path, runner_program: Path, other: Path) -> int:
    """A server and a runner, which is then replaced by one of the `other` program, and so is the
    server if it is of the older version. Returns how many commands ran."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(own_server_in(scratch_space()))
        model = await stack.enter_async_context(ScriptedModel.running())
        kits = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch_space())))
        data_dir = stack.enter_context(data_directory(kits))
        where = stack.enter_context(data_directory(kits))
        for each in (data_dir, where):
            stack.push_async_callback(LocalRig(LocalConfig(data_dir=each, host_id=HOST)).close)
        site = ServerSite(data_dir, database.dsn)
        site.configure(model)
        front = await stack.enter_async_context(Relay().listening())
        first = AsyncExitStack()
        stack.push_async_callback(first.aclose)
        server = await first.enter_async_context(site.server(server_program))
        front.targets = [server.url]
        token_file, template = await prepare_pool(server, data_dir.parent)

        async with runner_process(front.url, token_file, where, runner_program) as machine:
            create = ("create_workspace", {"template_id": template})
            chat = await server.create("make", create)
            made = (await server.wait_idle(chat))[0]
            lines = where / "ws" / made["workspace_id"] / "home" / "lines"
            await server.send(chat, "count", execute(COUNT), execute("cat lines"))
            await wait_for_text(lines, "line 2\n")
            machine.send_signal(signal.SIGKILL)
            await machine.wait()
        async with runner_process(front.url, token_file, where, other):
            check_counted((await server.wait_idle(chat))[1:])
            stop: Call = ("stop_workspace", {})
            start: Call = ("start_workspace", {})
            await server.call(chat, "again", stop, start, execute("rm lines"))
            await server.send(chat, "count2", execute(COUNT), execute("cat lines"))
            await wait_for_text(lines, "line 2\n")
            if server_program != CHATD:
                heir = await stack.enter_async_context(site.server())
                front.targets = [heir.url]
                server.process.terminate()
                await server.process.wait()
                server = heir
            check_counted((await server.wait_idle(chat))[-2:])
            (listed,) = [
                each for each in (await server.ask("GET", "/runners"))["items"] if each["pool"]
            ]
            assert listed["connected"], listed
            assert listed.get("version_gap") is None, listed
    return 2


async def skew(old: Path) -> int:
    mixed = ((CHATD, old, CHATD), (old, CHATD, old))
    return sum([await run_mixed(*programs) for programs in mixed])


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="of the older version, with its .venv")
    asked = parser.parse_args(args)
    ran = asyncio.run(skew((asked.checkout / ".venv/bin/chatd").resolve()))
    sys.stdout.write(f"both versions work together: {ran} commands ran once each\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
