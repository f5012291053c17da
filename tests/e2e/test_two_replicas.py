"""Two `chatd serve` processes on one database: what ends at one server ends at the other."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession, StreamReader

from tests.e2e.test_serve import until_event
from tests.support.chaos.servers import AUTH, Installation, server
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
