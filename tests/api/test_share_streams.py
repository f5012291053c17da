"""Streams and downloads of a reader end, on every replica, once the chat is no longer shared."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from chatd.domain.chat.worker_transitions import acquire
from chatd.domain.ids import ChatId
from tests.agent.git.git_fixture import run_git as git
from tests.api.test_files import upload_id
from tests.api.test_git import bench
from tests.api.test_websocket import page, topic
from tests.api.workspace_api import WorkspaceApi, end_build
from tests.support.api.accounts import create_user, hears, listening_changes
from tests.support.api.server import (
    ADMINISTRATOR,
    ME,
    OTHER_USER,
    ApiOptions,
    ApiServer,
    authorized,
    heard_changes,
    serve_api,
)
from tests.support.api.shares import READER, create_group, set_sharing, share, two_replicas
from tests.support.api.sse_viewer import SseViewer, event_source, narrow_socket, reached
from tests.support.factories import WORKER
from tests.support.outcomes import present
from tests.support.sample_files import png
from tests.workspaces.agent_process import AGENT, Workbench

__all__ = ["bench"]

MIB = 1024 * 1024


async def share_with_group(server: ApiServer, chat_id: ChatId) -> str:
    group = await create_group(server, READER)
    shared = await server.ask("PATCH", f"/chats/{chat_id}/acl", {"group_roles": {group: "read"}})
    assert shared.status == 200
    return group


async def unshare(server: ApiServer, chat_id: ChatId, group: str) -> None:
    await server.ask("PATCH", f"/chats/{chat_id}/acl", {"group_roles": {group: ""}})


async def leave_group(server: ApiServer, _chat_id: ChatId, group: str) -> None:
    await server.ask("DELETE", f"/groups/{group}/members/{READER}", token=ADMINISTRATOR)


async def delete_group(server: ApiServer, _chat_id: ChatId, group: str) -> None:
    await server.ask("DELETE", f"/groups/{group}", token=ADMINISTRATOR)


async def disable_sharing(server: ApiServer, _chat_id: ChatId, _group: str) -> None:
    await set_sharing(server, enabled=False)


Revocation = Callable[[ApiServer, ChatId, str], Awaitable[None]]


@pytest.mark.promise("P12")
@pytest.mark.parametrize("end", [unshare, leave_group, delete_group, disable_sharing])
async def test_a_readers_streams_on_another_replica_end_and_the_owners_stay(
    dsn: str, end: Revocation
) -> None:
    async with two_replicas(dsn) as (server, other):
        chat_id = await server.create()
        group = await share_with_group(server, chat_id)
        reader, owner = SseViewer(chat_id), SseViewer(chat_id)
        async with (
            event_source(other, reader.path, token=OTHER_USER) as source,
            event_source(other, owner.path) as own_source,
            page(other, OTHER_USER) as socket,
        ):
            await reader.watch(source, reached(1))
            await owner.watch(own_source, reached(1))
            await socket.subscribe(topic(chat_id))
            await end(server, chat_id, group)
            await reader.read_all(source)
            assert reader.end == "not_found"
            ended = await socket.until("unsubscribed")
            assert (ended["topic"], ended["code"]) == (topic(chat_id), "not_found")
            await socket.tell(type="subscribe", topic=topic(chat_id))
            assert (await socket.next())["code"] == "not_found"
            changed = await other.act(chat_id, lambda chat: acquire(chat, WORKER))
            await owner.watch(own_source, reached(changed.snapshot_version))


@pytest.mark.promise("P12")
async def test_other_readers_and_other_chats_are_not_ended(dsn: str) -> None:
    async with two_replicas(dsn) as (server, other):
        first, second = await server.create("one"), await server.create("two")
        for chat_id in (first, second):
            await share(server, chat_id)
        gone, stays = SseViewer(first), SseViewer(second)
        async with (
            event_source(other, gone.path, token=OTHER_USER) as source,
            event_source(other, stays.path, token=OTHER_USER) as staying,
            event_source(other, gone.path, token=ADMINISTRATOR) as by_role,
        ):
            await gone.watch(source, reached(1))
            await stays.watch(staying, reached(1))
            await share(server, first, "")
            await gone.read_all(source)
            assert gone.end == "not_found"
            changed = await other.act(second, lambda chat: acquire(chat, WORKER))
            await stays.watch(staying, reached(changed.snapshot_version))
            administrator = SseViewer(first)
            changed = await other.act(first, lambda chat: acquire(chat, WORKER))
            await administrator.watch(by_role, reached(changed.snapshot_version))


@pytest.mark.promise("P12")
async def test_streams_are_checked_after_notices_were_lost(dsn: str) -> None:
    changes = heard_changes()  # this replica hears nothing: all notices are lost
    async with serve_api(dsn, ApiOptions(changes=changes)) as server, asyncio.timeout(45):
        chat_id = await server.create()
        await share(server, chat_id)
        user = await create_user(server, "ada", is_service=True)
        path = f"/users/{user['id']}/tokens"
        made = await server.ask("POST", path, {"name": "a job"}, token=ADMINISTRATOR)
        token = str(made.json["token"])
        reader, owner = SseViewer(chat_id), SseViewer(chat_id)
        async with (
            event_source(server, reader.path, token=OTHER_USER) as source,
            event_source(server, owner.path) as own_source,
            event_source(server, "/events", token=token) as revoked,
            server.http.ws_connect("/api/v1/ws", headers=authorized(token)) as socket,
        ):
            await reader.watch(source, reached(1))
            await owner.watch(own_source, reached(1))
            await revoked.json()
            await share(server, chat_id, "")
            token_path = f"{path}/{made.json['id']}"
            assert (await server.ask("DELETE", token_path, token=ADMINISTRATOR)).status == 204
            changes.on_disconnected()
            changes.on_connected()
            await reader.read_all(source)
            assert reader.end == "not_found"
            assert (await revoked.json())["code"] == "signed_out"
            assert (await socket.receive(timeout=30)).data == 1008
            changed = await server.act(chat_id, lambda chat: acquire(chat, WORKER))
            await owner.watch(own_source, reached(changed.snapshot_version))


@pytest.mark.promise("P12")
async def test_a_readers_git_stream_ends_with_the_share(
    api: WorkspaceApi, bench: Workbench
) -> None:
    made = await api.make()
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    chat_id = await api.server.create(workspace_id=made["id"])
    git(bench.process.home, "init", "-q", "-b", "trunk")
    await bench.on_behalf(chat_id).write_file(bench.path("a.txt"), b"hello\n", key="k1")
    await share(api.server, chat_id)
    changes = api.server.deps.accounts.changes
    async with event_source(api.server, f"/chats/{chat_id}/git", token=OTHER_USER) as source:
        await source.json()
        await share(api.server, chat_id, "")
        changes.on_notice(f'{{"kind":"share","id":"{chat_id}"}}')
        end = present(await source.event())
        assert (end.event, b"not_found" in end.data) == ("end", True)


@pytest.mark.promise("P12")
async def test_a_download_in_progress_is_cut_when_the_share_ends(dsn: str) -> None:
    async with (
        listening_changes(dsn) as changes,
        serve_api(dsn, ApiOptions(changes=changes)) as server,
        asyncio.timeout(45),
    ):
        file_id = await upload_id(server, png(padding=9 * MIB))
        part = {"type": "file", "file_id": file_id}
        made = await server.ask("POST", "/chats", {"content": [part]})
        await share(server, made.json["id"])
        connector = aiohttp.TCPConnector(socket_factory=narrow_socket)
        url = f"http://127.0.0.1:{server.port}/api/v1/files/{file_id}/content"
        async with (
            aiohttp.ClientSession(connector=connector, read_bufsize=1024) as http,
            http.get(url, headers=authorized(OTHER_USER)) as response,
        ):
            assert response.status == 200
            await response.content.readexactly(1024)
            heard = hears(changes, "share")
            await share(server, made.json["id"], "")
            await heard.wait()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


async def test_reads_of_files_by_the_role_are_recorded_and_others_are_not(
    server: ApiServer,
) -> None:
    file_id = await upload_id(server)
    made = await server.ask("POST", "/chats", {"content": [{"type": "file", "file_id": file_id}]})
    content = f"/files/{file_id}/content"
    await share(server, made.json["id"])
    for token in (ME, OTHER_USER):
        assert (await server.ask("GET", content, token=token)).status == 200
    where = f"/audit?object_type=file&object_id={file_id}"
    assert (await server.ask("GET", where, token=ADMINISTRATOR)).items == []
    assert (await server.ask("GET", content, token=ADMINISTRATOR)).status == 200
    link = await server.ask("POST", f"/files/{file_id}/download-url", token=ADMINISTRATOR)
    path = str(link.json["url"]).removeprefix("/api/v1")
    assert (await server.ask("GET", path, token=None)).status == 200
    entries = (await server.ask("GET", where, token=ADMINISTRATOR)).items
    assert [entry["action"] for entry in entries] == ["file.read"] * 3
    assert {entry["actor"] for entry in entries} == {"admin"}


async def test_a_link_of_a_reader_ends_with_the_share(server: ApiServer) -> None:
    file_id = await upload_id(server)
    made = await server.ask("POST", "/chats", {"content": [{"type": "file", "file_id": file_id}]})
    await share(server, made.json["id"])
    link = await server.ask("POST", f"/files/{file_id}/download-url", token=OTHER_USER)
    path = str(link.json["url"]).removeprefix("/api/v1")
    assert (await server.ask("GET", path, token=None)).status == 200
    await share(server, made.json["id"], None)
    assert (await server.ask("GET", path, token=None)).code == (404, "not_found")
