"""Who may use `/v1`, and within which limits: the same as the API."""

import base64
import io

import msgspec
import pytest

from chatd.api.accounts.authenticator import AccountsConfig
from chatd.api.accounts.request_limits import RequestLimits
from chatd.api.deps import StreamLimits
from chatd.api.openai.endpoint import OPENAI_PREFIX
from chatd.api.openai.given import MAX_FILES, MAX_REQUEST_FILES
from chatd.api.openai.protocol import MAX_BODY_BYTES
from chatd.api.route import MountedRoute
from chatd.domain.ids import ChatId
from tests.support.api.accounts import Browser, create_token, create_user
from tests.support.api.server import (
    ME,
    OTHER_USER,
    ApiOptions,
    ApiServer,
    Json,
    authorized,
    serve_api,
)

HELLO: Json = {"model": "fast", "input": "hello", "background": True}


async def ask(
    server: ApiServer, method: str, path: str, body: object = None, *, token: str | None = ME
) -> tuple[int, Json]:
    data = None
    if body is not None:
        data = io.BytesIO(body if isinstance(body, bytes) else msgspec.json.encode(body))
    headers = authorized(token)
    async with server.http.request(method, f"/v1{path}", data=data, headers=headers) as reply:
        found = msgspec.json.decode(await reply.read(), type=Json)
        if reply.status >= 400:
            error = msgspec.convert(found["error"], Json)
            assert error.keys() == {"message", "type", "param", "code"}
            return reply.status, error
        return reply.status, found


async def begin(server: ApiServer, **fields: object) -> tuple[str, str]:
    """The ids of a response and of its conversation."""
    status, made = await ask(server, "POST", "/responses", {**HELLO, **fields})
    assert status == 200, made
    conversation = msgspec.convert(made["conversation"], dict[str, str])
    return str(made["id"]), conversation["id"]


@pytest.mark.promise("P12")
async def test_another_users_response_is_not_found_by_any_route(server: ApiServer) -> None:
    response, conversation = await begin(server)
    chat_id = conversation.removeprefix("conv_")
    output = {"type": "function_call_output", "call_id": f"call_{chat_id}_x", "output": "y"}
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": f"mcpr_{chat_id}_x",
        "approve": True,
    }
    attempts: list[tuple[str, str, Json | None]] = [
        ("GET", f"/responses/{response}", None),
        ("GET", f"/responses/{response}?stream=true", None),
        ("POST", f"/responses/{response}/cancel", None),
        ("POST", "/responses", {**HELLO, "previous_response_id": response}),
        ("POST", "/responses", {**HELLO, "conversation": conversation}),
        ("POST", "/responses", {**HELLO, "conversation": conversation, "input": [output]}),
        ("POST", "/responses", {**HELLO, "input": [approval]}),
    ]
    for method, path, body in attempts:
        status, error = await ask(server, method, path, body, token=OTHER_USER)
        assert (status, error["type"]) == (404, "invalid_request_error"), path
    assert (await ask(server, "GET", f"/responses/{response}"))[0] == 200
    assert (await server.chat(ChatId(msgspec.convert(chat_id, ChatId)))).snapshot_version == 1


async def test_tokens_need_the_scopes_of_the_api(server: ApiServer) -> None:
    paths = {
        f"{method} {path.template.removeprefix(OPENAI_PREFIX)}"
        for path in server.api.table
        for method, handler in path.handlers.items()
        if isinstance(handler, MountedRoute) and path.template.startswith(f"{OPENAI_PREFIX}/")
    }
    response, _ = await begin(server)
    rows: dict[str, tuple[str, Json | None, int]] = {
        "GET /models": ("/models", None, 200),
        "GET /models/{model}": ("/models/fast", None, 200),
        "POST /chat/completions": ("/chat/completions", {"messages": []}, 403),
        "POST /responses": ("/responses", HELLO, 403),
        "GET /responses/{response_id}": (f"/responses/{response}", None, 404),
        "POST /responses/{response_id}/cancel": (f"/responses/{response}/cancel", None, 403),
    }
    assert rows.keys() == paths
    await create_user(server)
    browser = await Browser(server).sign_in()
    reader = str((await create_token(browser, scopes=["chat:read"]))["token"])
    for endpoint, (path, body, expected) in rows.items():
        method = endpoint.partition(" ")[0]
        assert (await ask(server, method, path, body, token=reader))[0] == expected, endpoint
        for stranger in (None, "no-token"):
            status, error = await ask(server, method, path, body, token=stranger)
            assert (status, error["code"]) == (401, "invalid_api_key"), endpoint


async def test_requests_are_limited_in_number_and_size(dsn: str) -> None:
    limits = AccountsConfig(limits=RequestLimits(requests=6, chats=1))
    async with serve_api(dsn, ApiOptions(accounts=limits)) as server:
        await begin(server)
        status, error = await ask(server, "POST", "/responses", HELLO)
        assert (status, error["code"]) == (429, "rate_limit_exceeded")
        large = b'{"input": "' + b"x" * MAX_BODY_BYTES + b'"}'
        assert (await ask(server, "POST", "/responses", large))[0] == 413
        for broken in (b"{", b"[]", b'{"input": 7}'):
            assert (await ask(server, "POST", "/responses", broken))[0] == 400
        status, error = await ask(server, "GET", "/models")
        assert (status, error["type"]) == (429, "rate_limit_error")


async def test_a_request_that_gets_no_stream_begins_no_chat(dsn: str) -> None:
    async with serve_api(dsn, ApiOptions(limits=StreamLimits(streams_per_user=0))) as server:
        for path, body in (
            ("/responses", {**HELLO, "background": False}),
            ("/responses", {**HELLO, "stream": True}),
            ("/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ):
            assert (await ask(server, "POST", path, body))[0] == 429
        assert await server.replica.pool.fetchval("SELECT count(*) FROM chats") == 0


async def test_the_same_bytes_may_have_two_names(server: ApiServer) -> None:
    data = f"data:text/plain;base64,{base64.b64encode(b'words').decode()}"
    for name in ("a.txt", "b.txt", "a.txt"):
        file = {"type": "input_file", "filename": name, "file_data": data}
        await begin(server, input=[{"role": "user", "content": [file]}])
    assert await server.replica.pool.fetchval("SELECT count(*) FROM files") == 2


def file_named(at: int) -> Json:
    data = base64.b64encode(f"words {at}".encode()).decode()
    return {
        "type": "input_file",
        "filename": "a.txt",
        "file_data": f"data:text/plain;base64,{data}",
    }


async def test_a_file_that_is_sent_again_is_no_new_upload(dsn: str) -> None:
    accounts = AccountsConfig(limits=RequestLimits(files=1))
    async with serve_api(dsn, ApiOptions(accounts=accounts)) as server:
        body = {**HELLO, "input": [{"role": "user", "content": [file_named(1)]}]}
        for _ in range(3):
            status, told = await ask(server, "POST", "/responses", body)
            assert status == 200, told
        body["input"] = [{"role": "user", "content": [file_named(2)]}]
        assert (await ask(server, "POST", "/responses", body))[0] == 429


async def test_files_of_earlier_messages_count_once(server: ApiServer) -> None:
    def said(*files: Json) -> Json:
        return {"role": "user", "content": list(files)}

    await begin(server, input=[said(file_named(at % 3)) for at in range(MAX_FILES + 5)])
    await begin(server, input=[said(file_named(at)) for at in range(MAX_FILES + 1)])
    for wrong in (
        [said(*map(file_named, range(MAX_FILES + 1)))],
        [said(file_named(at)) for at in range(MAX_REQUEST_FILES + 1)],
    ):
        status, told = await ask(server, "POST", "/responses", {**HELLO, "input": wrong})
        assert (status, "images and files" in str(told["message"])) == (400, True), told
