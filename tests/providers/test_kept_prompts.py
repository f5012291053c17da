"""A prompt that is continued from step to step equals one that is built as a whole, and so does its
body."""

from random import Random
from typing import Final

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.messages import Message, Role
from chatd.domain.chat.parts import Part, ReasoningPart, ToolCallPart, ToolResultPart
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ModelRequest
from chatd.domain.prompt.builder import KeptPrompt, PromptTarget, build_prompt
from chatd.providers.openai.chat_dialect import ChatDialect, choose_dialect
from chatd.providers.openai.chat_request import encode_request
from chatd.providers.openai.openai_models import CompatOptions
from chatd.providers.tool_schema import ToolNames
from tests.support.domain.histories import FILES, any_history
from tests.support.factories import message, text

HISTORIES: Final = 40
TARGET: Final = PromptTarget(provider="here", files=FILES, strict_tools=True)
NAMES: Final = ToolNames.of(("execute", "read_file"))


def body_of(request: ModelRequest, dialect: ChatDialect, names: ToolNames = NAMES) -> bytes:
    return encode_request(request, CompatOptions(), names, dialect, "origin")


DIALECTS: Final = {
    "plain": choose_dialect("openai-compat", "http://127.0.0.1/v1", "qwen3"),
    "deepseek": choose_dialect("openai-compat", "https://api.deepseek.com/v1", "deepseek-reasoner"),
    "mistral": choose_dialect("openai-compat", "https://api.mistral.ai/v1", "mistral-large"),
}


def any_turns(seed: int) -> list[Message]:
    """Rows in the order of real chats, most of the time: calls with and without results, results
    that come late or twice, pauses, empty and consecutive answers."""
    draw = Random(seed)
    rows: list[Message] = []

    def add(role: Role, *content: Part, **columns: object) -> None:
        rows.append(message(len(rows) + 1, role, *content, **columns))

    while len(rows) < 14:
        add("user", text(draw.choice(("go", " ", "and now?"))))
        for _ in range(draw.randrange(4)):
            ids = [ToolCallId(f"c{draw.randrange(6)}") for _ in range(draw.randrange(3))]
            calls = (
                ToolCallPart(tool_call_id=one, tool_name="execute", args=Raw(b"{}")) for one in ids
            )
            said = draw.choice((text("thinking"), text(""), ReasoningPart(text="hm")))
            add("assistant", said, *calls, finish_reason=draw.choice((None, None, "pause")))
            for one in draw.choices(ids, k=draw.randrange(3)) if ids else ():
                result = Raw(b'{"output":"done"}')
                add("tool", ToolResultPart(tool_call_id=one, tool_name="execute", result=result))
        if draw.random() < 0.7:
            add("assistant", text("so it is"))
    return rows


@pytest.mark.parametrize("name", DIALECTS)
def test_a_prompt_that_grows_row_by_row_equals_one_that_is_built_as_a_whole(name: str) -> None:
    kept_bytes, dialect = 0, DIALECTS[name]
    for seed in range(HISTORIES):
        for rows in (any_turns(seed), any_history(seed)):
            kept = KeptPrompt()
            for count in range(1, len(rows) + 1):
                grown = rows[:count]
                messages = build_prompt(grown, TARGET, kept)
                assert messages == build_prompt(grown, TARGET), (seed, count)
                request = ModelRequest(model="m", messages=messages, kept_wire=kept.wire)
                whole = msgspec.structs.replace(request, kept_wire=None)
                assert body_of(request, dialect) == body_of(whole, dialect), (seed, count)
                kept_bytes += sum(len(form.body) for form in kept.wire.forms.values())
    assert kept_bytes > 0


def conversation(turns: int) -> list[Message]:
    rows: list[Message] = []
    for number in range(turns):
        rows.append(message(2 * number + 1, "user", text(f"question {number}")))
        rows.append(message(2 * number + 2, "assistant", text(f"answer {number}")))
    return [*rows, message(2 * turns + 1, "user", text("last question"))]


def test_only_what_is_new_is_built() -> None:
    rows, kept = conversation(50), KeptPrompt()
    build_prompt(rows[:-2], TARGET, kept)
    before = kept.wire
    messages = build_prompt(rows, TARGET, kept)
    assert before.count == len(rows) - 4
    assert kept.wire.count == len(rows) - 2
    assert kept.wire.forms is before.forms
    assert messages == build_prompt(rows, TARGET)


@pytest.mark.parametrize("change", ["edit", "provider", "system"])
def test_a_change_of_the_beginning_is_noticed(change: str) -> None:
    rows, kept, target = conversation(5), KeptPrompt(), TARGET
    build_prompt(rows, target, kept)
    forms = kept.wire.forms
    match change:
        case "edit":
            rows = [*rows[:4], message(12, "user", text("rather this"))]
        case "provider":
            target = PromptTarget(provider="there", origins={})
        case _:
            rows = [*rows, message(12, "system", text("Be brief."))]
    assert build_prompt(rows, target, kept) == build_prompt(rows, target)
    assert kept.wire.forms is not forms


def test_other_names_of_tools_are_encoded_anew() -> None:
    rows, kept, dialect = conversation(5), KeptPrompt(), DIALECTS["plain"]
    messages = build_prompt(rows, TARGET, kept)
    request = ModelRequest(model="m", messages=messages, kept_wire=kept.wire)
    for names in (NAMES, ToolNames.of(("execute",)), NAMES):
        body_of(request, dialect, names)
        assert len(kept.wire.forms) == 1


def test_a_late_request_does_not_spoil_the_bytes_of_a_later_one() -> None:
    rows, kept, dialect = conversation(9), KeptPrompt(), DIALECTS["plain"]
    requests = [
        ModelRequest(
            model="m", messages=build_prompt(rows[:count], TARGET, kept), kept_wire=kept.wire
        )
        for count in (9, 19)
    ]
    for request in (*reversed(requests), *requests):
        whole = msgspec.structs.replace(request, kept_wire=None)
        assert body_of(request, dialect) == body_of(whole, dialect)
