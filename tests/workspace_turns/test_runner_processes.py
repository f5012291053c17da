"""`chatd runner` beside `chatd serve`, as processes that are killed: a command of a workspace on
another machine runs once, and its result arrives."""

import re
import signal
from contextlib import AsyncExitStack

import pytest
from aiohttp import ClientSession, DummyCookieJar
from yarl import URL

from chatd.workspaces.local.local_backend import LocalConfig
from tests.support.eventually import eventually
from tests.support.local_rig import HOST, NO_BUBBLEWRAP, LocalRig, data_directory, shared_kits
from tests.support.relay import Relay
from tests.workspace_turns.servers import (
    COUNT,
    COUNTED,
    WAIT_TIMEOUT_S,
    ServerSite,
    WorkspaceServer,
    check_counted,
    execute,
    prepare_pool,
    runner_process,
    wait_for_text,
)

SERVE = "exec python3 -m http.server 8000 --bind 127.0.0.2"
DIAL = 'import socket; socket.create_connection(("127.0.0.2", 8000))'


async def wait_for_reason(server: WorkspaceServer, chat: str, *, machine: str | None) -> None:
    """Until the chat says that it waits for its machine, or (None) nothing of it any more."""

    async def look() -> bool:
        told: str | None = (await server.ask("GET", f"/chats/{chat}")).get("waits_for")
        if machine is None or told is None:
            return told is machine
        assert re.search(f"{machine}.*, which is not connected since", told), told
        return True

    await eventually(look, within_s=WAIT_TIMEOUT_S)


async def preview_lines(server: WorkspaceServer, workspace_id: str) -> str:
    """The file `lines` as a preview shows it to a browser at this server."""
    body = {"port": 8000, "path": "/lines"}
    made = await server.ask("POST", f"/workspaces/{workspace_id}/previews", body)
    link = URL(made["url"], encoded=True)
    headers = {"Host": link.authority}
    async with ClientSession(server.url, cookie_jar=DummyCookieJar()) as viewer:
        async with viewer.get(link.relative(), headers=headers, allow_redirects=False) as opened:
            assert opened.status == 303, await opened.text()
            cookie = opened.headers["Set-Cookie"].partition(";")[0]
        async with viewer.get("/lines", headers={**headers, "Cookie": cookie}) as page:
            return await page.text()


pytestmark = [
    pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed"),
    pytest.mark.timeout(150),
]


@pytest.mark.promise("P7")
async def test_a_command_on_a_runner_survives_the_death_of_runner_and_server_and_runs_once(
    site: ServerSite, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Takes seconds: servers and runners are started, and two commands run for a while."""
    async with AsyncExitStack() as stack:
        where = stack.enter_context(data_directory(shared_kits(tmp_path_factory)))
        stack.push_async_callback(LocalRig(LocalConfig(data_dir=where, host_id=HOST)).close)
        front = await stack.enter_async_context(Relay().listening())
        victim = await stack.enter_async_context(site.server())
        front.targets = [victim.url]
        token_file, template = await prepare_pool(victim, site.data_dir.parent)

        async with runner_process(front.url, token_file, where) as machine:
            create = ("create_workspace", {"template_id": template})
            chat = await victim.create("make", create)
            made = (await victim.wait_idle(chat))[0]
            lines = where / "ws" / made["workspace_id"] / "home" / "lines"
            await victim.send(chat, "count", execute(COUNT), execute("cat lines"))
            await wait_for_text(lines, "line 2\n")
            machine.send_signal(signal.SIGKILL)
            await machine.wait()
        heir = await stack.enter_async_context(site.server())
        await wait_for_reason(heir, chat, machine="on the machine ")
        async with runner_process(front.url, token_file, where):
            check_counted((await victim.wait_idle(chat))[1:])
            await wait_for_reason(heir, chat, machine=None)

            # Previews, at the server that holds the runner and by its peer.
            await victim.call(
                chat,
                "serve",
                ("execute", {"command": SERVE, "run_in_background": True}),
                execute(f"until python3 -c '{DIAL}'; do sleep 0.05; done 2>/dev/null"),
            )
            for server in (victim, heir):
                assert await preview_lines(server, made["workspace_id"]) == COUNTED

            await victim.send(
                chat, "again", execute("rm lines"), execute(COUNT), execute("cat lines")
            )
            await wait_for_text(lines, "line 2\n")
            # Connections to the dead one are refused.
            front.targets = [victim.url, heir.url]
            await victim.kill()
            check_counted((await heir.wait_idle(chat))[6:])
