"""`/v1` as OpenAI's own package uses it, on a real server."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import openai
import pytest
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessageParam,
)
from openai.types.responses import (
    FunctionToolParam,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseStreamEvent,
)

from chatd.api.openai import endpoint
from tests.support.chaos.servers import TOKEN as SERVER_TOKEN
from tests.support.chaos.servers import Installation
from tests.support.chaos.servers import server as serve_process
from tests.support.eventually import eventually
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate
from tests.support.sample_files import PNG
from tests.support.terminal import TOKEN, TerminalServer, serve_terminal

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = {
    "index": 0,
    "id": "call_7",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
}


def client_of(url: str, token: str, *, retries: int = 0) -> AsyncOpenAI:
    """These two values are all that a program changes."""
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=retries)


@pytest.fixture
async def server(dsn: str, tmp_path: Path) -> AsyncGenerator[TerminalServer]:
    async with serve_terminal(dsn, tmp_path) as server:
        yield server


@pytest.fixture
async def client(server: TerminalServer) -> AsyncGenerator[AsyncOpenAI]:
    async with client_of(server.address.url, TOKEN) as client:
        yield client


async def listed(server: TerminalServer, query: str = "") -> list[dict[str, object]]:
    page = await server.call("GET", f"/chats{query}")
    return msgspec.convert(page["items"], list[dict[str, object]])


async def count_chats(server: TerminalServer) -> int:
    return len(await listed(server, "?label=chatd/listed:no"))


def user(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


def assistant(text: str) -> ChatCompletionMessageParam:
    return {"role": "assistant", "content": text}


def sent_messages(server: TerminalServer) -> list[tuple[str, object]]:
    """What the model got last, without instructions."""
    messages = server.vendor.accepted[-1].messages
    found = [(one.role, one.content) for one in messages if one.role not in ("system", "developer")]
    return msgspec.convert(msgspec.to_builtins(found), list[tuple[str, object]])


async def test_completions_continue_the_chat_that_their_messages_extend(
    server: TerminalServer, client: AsyncOpenAI
) -> None:
    models = [model.id async for model in await client.models.list()]
    assert models == ["chatd", "demo", "scripted"]

    server.will_answer("Good day.")
    first = await client.chat.completions.create(
        model="scripted", messages=[{"role": "system", "content": "Be kind."}, user("hello")]
    )
    assert first.choices[0].message.content == "Good day."
    assert first.choices[0].finish_reason == "stop"
    assert first.model == "scripted"

    server.will_answer("Very well.")
    told: Sequence[ChatCompletionMessageParam] = [
        {"role": "system", "content": "Be kind."},
        user("hello"),
        assistant("Good day."),
        user("how are you?"),
    ]
    chunks = await client.chat.completions.create(
        model="scripted", messages=told, stream=True, stream_options={"include_usage": True}
    )
    text, reasons, has_usage = "", list[str](), False
    async for one in chunks:
        has_usage = has_usage or one.usage is not None
        for choice in one.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert (text, reasons, has_usage) == ("Very well.", ["stop"], True)
    assert await count_chats(server) == 1
    assert await listed(server) == []

    # Regenerated: the messages are not those of the chat and one more, so another chat begins.
    server.will_answer("As always.")
    again = await client.chat.completions.create(model="scripted", messages=told)
    assert again.choices[0].message.content == "As always."
    assert await count_chats(server) == 2
    *before, (role, prompt) = sent_messages(server)
    assert before == [("user", "hello"), ("assistant", "Good day.")]
    assert (role, str(prompt).partition("\n")[0]) == ("user", "how are you?")


async def test_functions_of_the_client_run_in_both_endpoints(
    server: TerminalServer, client: AsyncOpenAI
) -> None:
    server.vendor.script(
        chunk(role="assistant", content="I look."),
        chunk(tool_calls=[CALL]),
        chunk(finish="tool_calls"),
        DONE,
    )
    asked = await client.responses.create(model="scripted", input="weather?", tools=[WEATHER])
    call = next(one for one in asked.output if isinstance(one, ResponseFunctionToolCall))
    assert (call.name, call.arguments, asked.output_text) == (
        "weather",
        '{"city":"Oslo"}',
        "I look.",
    )
    with pytest.raises(openai.BadRequestError, match="No output was given"):
        await client.responses.create(
            model="scripted", input="never mind", previous_response_id=asked.id
        )
    server.will_answer("It rains.")
    told = await client.responses.create(
        model="scripted",
        previous_response_id=asked.id,
        tools=[WEATHER],
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
    )
    assert told.output_text == "It rains."
    assert (await client.responses.retrieve(asked.id)).output_text == "I look."

    server.vendor.script(
        chunk(role="assistant", tool_calls=[CALL]), chunk(finish="tool_calls"), DONE
    )
    tool = {"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}
    body: dict[str, object] = {
        "model": "scripted",
        "tools": [tool],
        "messages": [user("weather?")],
        "stream": False,
    }
    first = await client.post("/chat/completions", body=body, cast_to=ChatCompletion)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    made = choice.message.tool_calls[0]
    server.will_answer("Still rain.")
    output = {"role": "tool", "tool_call_id": made.id, "content": "rain"}
    body["messages"] = [user("weather?"), choice.message.to_dict(), output]
    before = await count_chats(server)
    second = await client.post("/chat/completions", body=body, cast_to=ChatCompletion)
    assert second.choices[0].message.content == "Still rain."
    assert await count_chats(server) == before

    # The chat has the outputs: with the same history again, another chat goes on from them.
    server.will_answer("And again.")
    third = await client.post(
        "/chat/completions",
        body={**body, "messages": [user("so?"), choice.message.to_dict(), output]},
        cast_to=ChatCompletion,
    )
    assert third.choices[0].message.content == "And again."
    assert await count_chats(server) == before + 1


async def test_a_response_in_the_background_is_read_resumed_and_cancelled(
    server: TerminalServer, client: AsyncOpenAI
) -> None:
    gate = Gate()
    server.will_answer("The lamp was lit before the storm.", held=gate)
    begun = await client.responses.create(model="scripted", input="tell me", background=True)
    assert (begun.status, begun.output_text) == ("in_progress", "")
    await gate.reached.wait()

    seen: list[ResponseStreamEvent] = []
    async for event in await client.responses.retrieve(begun.id, stream=True):
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    last = seen[-1]
    assert last.type == "response.output_text.delta"
    assert "The lamp was lit before the storm.".startswith(last.delta)

    gate.open()
    rest = last.delta
    async for event in await client.responses.retrieve(
        begun.id, stream=True, starting_after=last.sequence_number
    ):
        rest += event.delta if event.type == "response.output_text.delta" else ""
        seen.append(event)
    assert rest == "The lamp was lit before the storm."
    assert seen[-1].type == "response.completed"
    assert seen[-1].response.output_text == rest

    gate = Gate()
    server.will_answer("An endless story, word by word.", held=gate)
    assert begun.conversation is not None
    endless = await client.responses.create(
        model="scripted", input="go on", conversation=begun.conversation.id, background=True
    )
    await gate.reached.wait()
    with pytest.raises(openai.ConflictError):
        await client.responses.create(
            model="scripted", input="and?", conversation=begun.conversation.id
        )
    stopped = await client.responses.cancel(endless.id)
    assert stopped.status == "cancelled"
    assert "An endless story, word by word.".startswith(stopped.output_text)
    assert (await client.responses.cancel(endless.id)).status == "cancelled"
    gate.open()

    # From an earlier response on, in a copy of its chat.
    server.will_answer("It was blue.")
    branch = await client.responses.create(
        model="scripted", input="which colour?", previous_response_id=begun.id
    )
    assert branch.output_text == "It was blue."
    assert branch.conversation != begun.conversation
    assert sent_messages(server)[-1] == ("user", "which colour?")
    assert not any("go on" in str(one) for one in sent_messages(server))


async def test_calls_that_need_approval_are_asked_for_in_the_protocol(
    server: TerminalServer, client: AsyncOpenAI
) -> None:
    rules = [{"tool": "list_agents", "action": "ask"}]
    await server.call("PUT", "/settings/me/tool-policy", {"rules": rules})
    made = {**CALL, "function": {"name": "list_agents", "arguments": "{}"}}
    server.vendor.script(
        chunk(role="assistant", tool_calls=[made]), chunk(finish="tool_calls"), DONE
    )
    asked = await client.responses.create(model="scripted", input="ask me")
    items: list[ResponseOutputItem] = [
        one for one in asked.output if one.type == "mcp_approval_request"
    ]
    assert asked.status == "completed"
    assert len(items) == 1
    assert items[0].type == "mcp_approval_request"
    assert len(await listed(server)) == 1  # It waits for a person: the list shows it.
    server.will_answer("Then not.")
    told = await client.responses.create(
        model="scripted",
        previous_response_id=asked.id,
        input=[
            {
                "type": "mcp_approval_response",
                "approval_request_id": items[0].id,
                "approve": False,
                "reason": "no need",
            }
        ],
    )
    assert told.output_text == "Then not."


async def test_a_function_that_a_policy_denies_never_reaches_the_client(
    server: TerminalServer, client: AsyncOpenAI
) -> None:
    rules = [{"tool": "weather", "action": "deny"}]
    await server.call("PUT", "/settings/me/tool-policy", {"rules": rules})
    server.vendor.script(
        chunk(role="assistant", tool_calls=[CALL]), chunk(finish="tool_calls"), DONE
    )
    server.will_answer("I may not look.")
    tool = {"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}
    body: dict[str, object] = {"model": "scripted", "tools": [tool], "stream": False}
    asked = {**body, "messages": [user("weather?")]}
    first = await client.post("/chat/completions", body=asked, cast_to=ChatCompletion)
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert choice.message.content == "I may not look."
    server.will_answer("Still not.")
    told = [user("weather?"), choice.message.to_dict(), user("and now?")]
    before = await count_chats(server)
    second = await client.post(
        "/chat/completions", body={**body, "messages": told}, cast_to=ChatCompletion
    )
    assert second.choices[0].message.content == "Still not."
    assert await count_chats(server) == before


async def test_images_are_sent_once_and_reach_the_model(
    server: TerminalServer, client: AsyncOpenAI
) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    content: ChatCompletionMessageParam = {
        "role": "user",
        "content": [
            {"type": "text", "text": "what is it?"},
            {"type": "image_url", "image_url": {"url": url}},
        ],
    }
    server.will_answer("A dot.")
    await client.chat.completions.create(model="scripted", messages=[content])
    assert "image_url" in str(sent_messages(server))
    server.will_answer("A black dot.")
    await client.chat.completions.create(
        model="scripted", messages=[content, assistant("A dot."), user("which colour?")]
    )
    assert await count_chats(server) == 1
    files = await server.call("GET", "/files")
    assert len(msgspec.convert(files["items"], list[object])) == 1


async def test_requests_with_a_key_and_retries_are_carried_out_once(
    server: TerminalServer, client: AsyncOpenAI
) -> None:
    headers = {"Idempotency-Key": "once"}
    server.will_answer("One.")
    first = await client.responses.create(model="scripted", input="count", extra_headers=headers)
    again = await client.responses.create(model="scripted", input="count", extra_headers=headers)
    assert (again.id, again.output_text) == (first.id, "One.")
    with pytest.raises(openai.ConflictError):
        await client.responses.create(model="scripted", input="else", extra_headers=headers)

    server.will_answer("Two.")
    messages = [user("count on")]
    told = await client.chat.completions.create(model="scripted", messages=messages)
    retried = await client.chat.completions.create(
        model="scripted", messages=messages, extra_headers={"X-Stainless-Retry-Count": "1"}
    )
    assert (retried.id, retried.choices[0].message.content) == (told.id, "Two.")
    assert len(server.vendor.requests) == 2


async def test_a_lost_stream_of_a_completion_that_is_asked_for_again_goes_on(
    server: TerminalServer, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "RETRY_GRACE_S", 0.0)
    gate, story = Gate(), "It was a dark night, and then it was day."
    server.will_answer(story, held=gate)

    def ask() -> Awaitable[AsyncStream[ChatCompletionChunk]]:
        return client.chat.completions.create(
            model="scripted",
            messages=[user("a story")],
            stream=True,
            extra_headers={"Idempotency-Key": "lost-stream"},
        )

    lost, again = await ask(), await ask()
    text = await read_one(again)
    await lost.close()

    async def has_ended() -> bool:
        async with server.http.get("/metrics") as reply:
            found = await reply.text()
        return any(
            "http_requests_total" in one and "completions" in one for one in found.split("\n")
        )

    await eventually(has_ended)
    gate.open()
    async for one in again:
        text += (one.choices[0].delta.content or "") if one.choices else ""
    assert text == story


async def read_one(stream: AsyncStream[ChatCompletionChunk]) -> str:
    async for one in stream:
        if one.choices and one.choices[0].delta.content:
            return one.choices[0].delta.content
    return ""


async def test_who_closes_the_stream_of_a_completion_stops_it(
    server: TerminalServer, client: AsyncOpenAI
) -> None:
    gate = Gate()
    server.will_answer("A long answer that nobody reads to its end.", held=gate)
    stream = await client.chat.completions.create(
        model="scripted", messages=[user("tell me")], stream=True
    )
    async for one in stream:
        if one.choices[0].delta.content:
            break
    await stream.close()

    async def is_stopped() -> bool:
        chats = await listed(server, "?label=chatd/listed:no")
        return [chat["status"] for chat in chats] == ["waiting"]

    await eventually(is_stopped)
    gate.open()


async def test_errors_have_the_shape_that_clients_know(
    server: TerminalServer, client: AsyncOpenAI
) -> None:
    hello = [user("hello")]
    with pytest.raises(openai.NotFoundError) as found:
        await client.chat.completions.create(model="gpt-none", messages=hello)
    assert (found.value.code, found.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model="scripted", messages=hello, response_format={"type": "json_object"}
        )
    assert refused.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(
            model="scripted", input="hello", tools=[{"type": "web_search"}]
        )
    with pytest.raises(openai.BadRequestError, match="effort must be one of"):
        await client.responses.create(
            model="scripted", input="hello", extra_body={"reasoning": {"effort": "huge"}}
        )
    with pytest.raises(openai.APIStatusError, match="characters"):
        await client.responses.create(model="scripted", input="x" * 1_000_001)
    picture: ChatCompletionMessageParam = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}],
    }
    with pytest.raises(openai.BadRequestError, match="Nothing is fetched"):
        await client.chat.completions.create(model="scripted", messages=[picture])
    for unknown in ("resp_0", f"resp_{'1' * 33}"):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unknown)
    async with client_of(server.address.url, "no-token") as stranger:
        with pytest.raises(openai.AuthenticationError) as denied:
            await stranger.models.list()
    assert denied.value.code == "invalid_api_key"
    assert await count_chats(server) == 0

    # A failure of the model is told once: repeated, it would begin another chat.
    server.vendor.reply(401, {"error": {"message": "bad key"}})
    async with client_of(server.address.url, TOKEN, retries=2) as patient:
        with pytest.raises(openai.InternalServerError):
            await patient.chat.completions.create(model="scripted", messages=hello)
    assert await count_chats(server) == 1
    server.vendor.reply(401, {"error": {"message": "bad key"}})
    failed = await client.responses.create(model="scripted", input="hello")
    assert failed.status == "failed"
    assert failed.error is not None


BEGINNING, REST = "The lamp was lit ", "before the storm came."


@pytest.mark.promise("P6", "P8")
@pytest.mark.timeout(150)
async def test_a_stream_goes_on_after_the_server_was_killed(dsn: str, tmp_path: Path) -> None:
    """Slow: starts two servers in sequence."""
    gate = Gate()
    async with FakeCompatible.running() as vendor:
        installation = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path / "data")
        vendor.script(chunk(role="assistant", content=BEGINNING), gate)
        vendor.script(chunk(role="assistant", content=BEGINNING + REST), chunk(finish="stop"), DONE)
        async with (
            serve_process(installation) as first,
            client_of(first.url, SERVER_TOKEN) as client,
        ):
            text, last, response = await read_until_killed(client, first.kill)
        assert text == BEGINNING
        async with (
            serve_process(installation) as second,
            client_of(second.url, SERVER_TOKEN) as client,
        ):
            async with asyncio.timeout(60):
                async for event in await client.responses.retrieve(
                    response, stream=True, starting_after=last
                ):
                    assert event.sequence_number > last
                    text += event.delta if event.type == "response.output_text.delta" else ""
            assert text == BEGINNING + REST
            whole = await client.responses.retrieve(response)
            assert (whole.status, whole.output_text) == ("completed", text)
    gate.open()


async def read_until_killed(client: AsyncOpenAI, kill: Callable[[], None]) -> tuple[str, int, str]:
    """The text, the number of the last event and the id of a response whose server dies."""
    text, last, response = "", -1, ""
    asked = client.responses.create(model="fake", input="tell me of the lamp", stream=True)
    try:
        async for event in await asked:
            last = event.sequence_number
            if event.type == "response.created":
                response = event.response.id
            if event.type == "response.output_text.delta":
                text += event.delta
                if text == BEGINNING:
                    kill()
    except openai.APIConnectionError:
        return text, last, response
    raise AssertionError("the stream ended as if nothing had happened")
