"""The fake rejects what the API rejects; otherwise tests with it would prove nothing."""

import pytest

from tests.support.providers.anthropic import FakeAnthropic

Body = dict[str, object]

HI: Body = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
USE: Body = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}
RESULT: Body = {"type": "tool_result", "tool_use_id": "toolu_1", "content": []}
SEARCH: Body = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
FOUND: Body = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
TOOL: Body = {"name": "now", "description": "", "input_schema": {"type": "object"}}
THOUGHT: Body = {"type": "thinking", "thinking": "Hm", "signature": "Eq"}


def body(**more: object) -> Body:
    return {
        "model": "claude-opus-4-6",
        "max_tokens": 9000,
        "stream": True,
        "messages": [HI],
        **more,
    }


def request_body(*contents: list[Body], model: str = "claude-opus-4-6", **more: object) -> Body:
    """Alternating messages of user and assistant."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return body(messages=messages, model=model, **more)


def text(words: str = "a") -> Body:
    return {"type": "text", "text": words}


def image(data: str, media_type: str = "image/png") -> Body:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def with_schema(schema: object) -> Body:
    return body(tools=[{**TOOL, "input_schema": schema}])


MARK = {"cache_control": {"type": "ephemeral"}}

REFUSED: list[tuple[Body, str]] = [
    ({"model": "m", "messages": [HI], "stream": True}, "max_tokens: Field required"),
    (body(frequency_penalty=1), "Extra inputs"),
    (body(stream=False), "streams"),
    (body(messages=[]), "at least one message"),
    (body(messages=[{"role": "assistant", "content": [text()]}]), "first message"),
    (body(messages=[HI, HI]), "alternate"),
    (request_body([text()], [text()]), "prefill"),
    (request_body([]), "non-empty content"),
    (request_body([USE]), "not allowed"),
    (request_body([{"type": "hologram"}]), "not allowed"),
    (request_body([text(" \n")]), "non-whitespace"),
    (body(system=[text("")]), "non-whitespace"),
    (request_body([text()], [USE], [text()]), "without `tool_result`"),
    (request_body([RESULT]), "unexpected `tool_use_id`"),
    (request_body([text()], [USE], [RESULT, RESULT]), "single result"),
    (request_body([text()], [USE], [text(), RESULT]), "must come first"),
    (request_body([text()], [SEARCH], [text()]), "without its result"),
    (request_body([text()], [FOUND], [text()]), "without server_tool_use"),
    (request_body([text()], [FOUND, SEARCH], [text()]), "without server_tool_use"),
    (
        request_body([text()], [SEARCH, {**FOUND, "content": [{"url": "x"}]}], [text()]),
        "encrypted_content",
    ),
    (request_body([text()], [{**USE, "input": []}], [RESULT]), "valid dictionary"),
    (request_body([text()], [{**USE, "id": "a:b"}], [{**RESULT, "tool_use_id": "a:b"}]), ".id"),
    (request_body([text()], [{**USE, "name": "a.b"}], [RESULT]), ".name"),
    (request_body([text()], [USE], [{**RESULT, "is_error": True}]), "cannot be empty"),
    (
        request_body([text()], [USE], [{**RESULT, "is_error": True, "content": [image("YQ==")]}]),
        'must be type "text"',
    ),
    (request_body([text()], [{**THOUGHT, "signature": ""}, text()], [text()]), "signature"),
    (request_body([text()], [{**THOUGHT, "signature": "forged"}, text()], [text()]), "Invalid"),
    (request_body([text()], [{**THOUGHT, **MARK}, text()], [text()]), "cache_control"),
    (request_body([image("?")]), "base64"),
    (request_body([image("/9j/4A==")]), "image/jpeg"),
    (request_body([{"type": "document", "title": "a/b", "source": {"type": "text"}}]), "title"),
    (request_body([{**text(), **MARK}] * 5), "maximum of 4"),
    (body(tools=[{"type": "computer_19990101", "name": "computer"}]), "expected tags"),
    (body(tools=[{"type": "computer_20251124", "name": "computer"}]), "beta header"),
    (body(tools=[{**TOOL, "name": "a.b"}]), "pattern"),
    (body(tools=[TOOL, TOOL]), "unique"),
    (with_schema(None), "Field required"),
    (with_schema({"type": "string"}), "'object'"),
    (with_schema({"type": "object", "anyOf": []}), "top level"),
    (with_schema({"type": "object", "properties": None}), "draft 2020-12"),
    (with_schema({"type": "object", "required": None}), "draft 2020-12"),
    (body(tool_choice={"type": "auto"}), "while providing tools"),
    (body(tools=[TOOL], tool_choice={"type": "tool", "name": "x"}), "not found"),
    (
        body(tools=[TOOL], tool_choice={"type": "any"}, thinking={"type": "adaptive"}),
        "forces tool use",
    ),
    (body(model="claude-opus-5-5", tools=[TOOL], tool_choice={"type": "any"}), "forced tool use"),
    (body(thinking={"type": "enabled", "budget_tokens": 1}), "1024"),
    (body(thinking={"type": "enabled", "budget_tokens": 9000}), "greater than"),
    (
        body(model="claude-opus-5", thinking={"type": "enabled", "budget_tokens": 2000}),
        "not supported",
    ),
    (body(model="claude-haiku-4-5", thinking={"type": "adaptive"}), "not supported"),
    (body(model="claude-fable-5", thinking={"type": "disabled"}), "not supported"),
    (body(thinking={"type": "between_tools"}), "not supported"),
    (body(thinking={"type": "adaptive", "block_binding": {}}), "Extra inputs"),
    (
        request_body([text()], [THOUGHT, text()], [text()], model="claude-opus-5-5"),
        "different conversation",
    ),
    (body(temperature=1, thinking={"type": "adaptive"}), "temperature"),
    (body(model="claude-opus-5", top_k=1), "top_k"),
    (body(temperature=1, top_p=1), "both"),
]


@pytest.mark.parametrize(("wrong", "words"), REFUSED)
async def test_the_fake_rejects_invalid_requests(wrong: Body, words: str) -> None:
    refusal = FakeAnthropic().refuse_body(wrong, set())
    assert refusal is not None
    (body,) = refusal.steps
    assert isinstance(body, bytes)
    assert words in body.decode().replace("\\", "")


async def test_the_fake_accepts_valid_requests() -> None:
    fake = FakeAnthropic()
    for right in (
        body(),
        body(system=[{**text(), **MARK}], tools=[TOOL], tool_choice={"type": "any"}),
        request_body([text()], [THOUGHT, text(), USE], [RESULT, text()]),
        request_body([text()], [SEARCH, FOUND, text()], [text()]),
        body(thinking={"type": "enabled", "budget_tokens": 2000}),
        body(model="claude-3-7-sonnet", temperature=1, top_p=1),
    ):
        assert fake.refuse_body(right, set()) is None
    computer: Body = {"type": "computer_20251124", "name": "computer"}
    assert fake.refuse_body(body(tools=[computer]), {"computer-use-2025-11-24"}) is None
