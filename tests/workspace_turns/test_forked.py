"""A chat that is forked with its workspace: the new chat gets a copy of the files."""

import pytest

from tests.support.eventually import eventually
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import (
    WAIT_TIMEOUT_S,
    Json,
    ServerSite,
    WorkspaceServer,
    execute,
)

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

FILL = (
    "mkdir -p app/empty && echo one > app/a && echo run > app/run && chmod 755 app/run"
    " && ln -s a app/link && ln -s /etc/hostname app/out && head -c 300000 /dev/urandom > big"
)
LOOK = "cat app/a; test -x app/run && echo runs; readlink app/link app/out; ls -d app/empty"
SEEN = "one\nruns\na\n/etc/hostname\napp/empty\n"


async def built(server: WorkspaceServer, chat: Json) -> Json:
    """The workspace of the chat, once its build has ended."""

    async def look() -> Json | None:
        found = await server.ask("GET", f"/workspaces/{chat['workspace_id']}")
        return found if found["latest_build"]["status"] in ("succeeded", "failed") else None

    return await eventually(look, within_s=WAIT_TIMEOUT_S)


async def fork(server: WorkspaceServer, chat: str) -> Json:
    return await server.ask("POST", f"/chats/{chat}/fork", {"workspace": "copy"})


async def test_a_fork_gets_the_files_of_the_workspace_as_they_are(site: ServerSite) -> None:
    """Takes seconds: a server and three workspaces are started."""
    async with site.server() as server:
        chat = await server.create("first", site.create("plain"))
        theirs = await server.workspace_of(chat)
        await server.call(chat, "fill", execute(FILL))
        made = await fork(server, chat)
        assert made["forked_from"]["chat_id"] == chat
        found = await built(server, made)
        assert found["latest_build"]["status"] == "succeeded", found
        [copied] = await server.call(made["id"], "look", execute(LOOK))
        assert copied["output"] == SEEN
        await server.call(made["id"], "change", execute("echo two > app/a"))
        [kept] = await server.call(chat, "look", execute("cat app/a"))
        assert kept["output"] == "one\n"
        assert (theirs.home / "app/a").read_text() == "one\n"
        log = await server.ask("GET", f"/builds/{found['latest_build']['id']}/logs")
        assert "Copied 3 files" in str(log), log
        again = await built(server, await fork(server, made["id"]))
        assert again["latest_build"]["status"] == "succeeded", again


async def test_a_copy_that_cannot_be_made_is_refused_before_anything_is_made(
    site: ServerSite,
) -> None:
    """Takes seconds: a server is started."""
    site.add_settings("[workspaces]", "max_copy_bytes = 1048576")
    async with site.server() as server:
        chat = await server.create("first", site.create("plain"))
        await server.workspace_of(chat)
        await server.call(chat, "fill", execute("head -c 3000000 /dev/zero > big"))
        with pytest.raises(AssertionError, match=r"workspace_too_large.* 3 MiB.* 1 MiB"):
            await fork(server, chat)
        await server.call(chat, "stop", ("stop_workspace", {}))
        with pytest.raises(AssertionError, match="no_agent"):
            await fork(server, chat)
        assert len((await server.ask("GET", "/workspaces"))["items"]) == 1
        assert len((await server.ask("GET", "/chats"))["items"]) == 1
