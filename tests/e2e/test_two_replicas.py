"""Two `chatd serve` processes on one database: what ends at one server ends at the other."""

import asyncio
import os
import signal
import socket
import tarfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession, StreamReader

from tests.e2e.test_serve import until_event
from tests.support.chaos.servers import AUTH, Installation, ServerProcess, server
from tests.support.eventually import eventually
from tests.support.providers.openai_chat import FakeCompatible, stream
from tests.support.providers.server import RecordedRequest, Reply

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)

HEARD_WITHIN_S = 20
"""Far less than the minute after which a replica that heard nothing reads a credential again."""


class AnsweringApi(FakeCompatible):
    def answer(self, request: RecordedRequest) -> Reply:
        del request
        return Reply(steps=(stream("text"),))


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A service account, with one token."""

    id: str
    token_id: str
    headers: Mapping[str, str]


async def ask(
    http: ClientSession,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] = AUTH,
) -> tuple[int, dict[str, object]]:
    async with http.request(method, f"/api/v1{path}", json=body, headers=headers) as reply:
        data = await reply.read()
        return reply.status, msgspec.json.decode(data or b"{}", type=dict[str, object])


async def create_user(http: ClientSession, name: str) -> User:
    status, user = await ask(http, "POST", "/users", {"username": name, "is_service": True})
    assert status == 201, user
    status, token = await ask(http, "POST", f"/users/{user['id']}/tokens", {"name": "a job"})
    assert status == 201, token
    return User(
        id=str(user["id"]),
        token_id=str(token["id"]),
        headers={"Authorization": f"Bearer {token['token']}"},
    )


async def create_model(http: ClientSession, url: str) -> tuple[str, str]:
    """The ids of a provider and of its model."""
    body = {"name": "local", "kind": "openai-compat", "base_url": f"{url}/v1"}
    status, provider = await ask(http, "POST", "/providers", body)
    assert status == 201, provider
    body = {"name": "small", "provider": "local", "model": "small-1"}
    status, model = await ask(http, "POST", "/models", body)
    assert status == 201, model
    return str(provider["id"]), str(model["id"])


async def follow_new_chat(http: ClientSession, user: User, model: str, until: bytes) -> None:
    """Send the first message of a chat with the model, and read its stream up to the word."""
    body = {"content": [{"type": "text", "text": "hello"}], "model_config_id": model}
    status, chat = await ask(http, "POST", "/chats", body, user.headers)
    assert status == 201, chat
    async with http.get(f"/api/v1/chats/{chat['id']}/events", headers=user.headers) as reply:
        await until_event(reply.content, until)


@asynccontextmanager
async def events_of(http: ClientSession, user: User) -> AsyncGenerator[StreamReader]:
    """An open stream of the chat list, after its first event."""
    async with http.get("/api/v1/events", headers=user.headers) as reply:
        assert reply.status == 200
        while (await reply.content.readline()).strip():
            pass
        yield reply.content


async def end_of(events: StreamReader) -> str:
    async with asyncio.timeout(HEARD_WITHIN_S):
        return (await events.read()).decode()


@pytest.mark.promise("P12")
async def test_what_is_ended_at_one_server_is_refused_at_the_other_and_its_streams_end(
    dsn: str, tmp_path: Path
) -> None:
    async with AnsweringApi.running() as vendor:
        shared = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path)
        async with (
            server(shared) as first,
            server(shared) as second,
            ClientSession(first.url) as here,
            ClientSession(second.url) as there,
        ):
            ada, bob = await create_user(here, "ada"), await create_user(here, "bob")
            provider, model = await create_model(here, vendor.url)
            async with events_of(there, ada) as of_ada, events_of(there, bob) as of_bob:
                await follow_new_chat(there, bob, model, b'"assistant"')

                disabled = await ask(here, "PATCH", f"/providers/{provider}", {"enabled": False})
                suspended = await ask(here, "PATCH", f"/users/{ada.id}", {"status": "suspended"})
                assert (disabled[0], suspended[0]) == (200, 200)
                assert "signed_out" in await end_of(of_ada)
                # Notices arrive in the order of the changes: that of the provider came before.
                await follow_new_chat(there, bob, model, b"provider_disabled")

                revoked = await ask(here, "DELETE", f"/users/{bob.id}/tokens/{bob.token_id}")
                assert revoked[0] == 204
                assert "signed_out" in await end_of(of_bob)
            for user in (ada, bob):
                refused = await ask(there, "GET", "/chats", headers=user.headers)
                assert (refused[0], refused[1]["code"]) == (401, "unauthorized")


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as port:
        return f"127.0.0.1:{port.getsockname()[1]}"


async def build_workspace(http: ClientSession) -> str:
    status, made = await ask(http, "POST", "/workspaces", {"template": "scratch", "name": "one"})
    assert status == 201, made
    build = msgspec.convert(made["latest_build"], dict[str, object])["id"]

    async def is_built() -> bool:
        _, found = await ask(http, "GET", f"/builds/{build}")
        assert found["status"] in {"pending", "running", "succeeded"}, found
        return found["status"] == "succeeded"

    await eventually(is_built, within_s=60)
    return str(made["id"])


async def test_a_host_with_nothing_but_the_database_and_a_peer_address_is_a_whole_replica(
    dsn: str, data_dir: Path
) -> None:
    """It gets the secrets of the first: it opens the provider's key and reaches its workspaces.
    Slow: creates a workspace."""
    async with AnsweringApi.running() as vendor, AsyncExitStack() as stack:
        servers = list[ServerProcess]()

        async def start(name: str) -> ClientSession:
            directory = data_dir / name
            directory.mkdir()
            shared = Installation(dsn=dsn, model_url=vendor.url, data_dir=directory)
            started = server(
                shared,
                CHATD_SERVER_PEER_ADDRESS=free_address(),
                CHATD_WORKSPACES_ALLOW_UNSAFE="true",
                CHATD_CHATS_TITLES="false",
            )
            servers.append(await stack.enter_async_context(started))
            http = ClientSession(servers[-1].url, headers=AUTH)
            return await stack.enter_async_context(http)

        first = await start("first")
        workspace = await build_workspace(first)
        stack.callback(end_workspaces, data_dir / "first")
        ada = await create_user(first, "ada")
        provider, model = await create_model(first, vendor.url)
        key = {"name": "main", "api_key": "sk-of-the-first-host"}
        added = await ask(first, "POST", f"/providers/{provider}/keys", key)
        assert added[0] == 201, added
        second = await start("second")
        for file in ("secret", "secret-keys"):
            joined = data_dir / "second" / file
            assert joined.read_bytes() == (data_dir / "first" / file).read_bytes()
            assert joined.stat().st_mode & 0o777 == 0o600

        await follow_new_chat(second, ada, model, b'"assistant"')
        sent = vendor.requests[-1].headers
        assert sent["authorization"] == "Bearer sk-of-the-first-host"

        files = BytesIO()
        with tarfile.open(fileobj=files, mode="w") as archive:
            note = tarfile.TarInfo("note.txt")
            note.size = 5
            archive.addfile(note, BytesIO(b"hello"))
        path = f"/api/v1/workspaces/{workspace}/archive"
        async with second.put(path, data=files.getvalue()) as put:
            assert put.status < 300, await put.text()
        for http in (first, second):
            async with http.get(path) as got:
                assert got.status == 200, await got.text()
                whole = BytesIO(await got.read())
            with tarfile.open(fileobj=whole) as archive:
                assert any(name.endswith("note.txt") for name in archive.getnames())
        for one in servers:
            await one.terminate()


def end_workspaces(data_dir: Path) -> None:
    os.kill(int((data_dir / "ws-supervisor" / "lock").read_text()), signal.SIGTERM)
