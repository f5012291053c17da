"""Which models get their vendor's own tool for a desktop, and which a plain one; what screenshots
cost."""

import base64
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from itertools import takewhile
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from chatd.agent.desktop.x_display import encode_png
from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import ToolCallPart, ToolResultPart
from chatd.domain.computer_use import Screen, computer_description, computer_schema
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ComputerTool, ModelRequest, ToolSpec, as_function
from chatd.domain.prompt import kept_rows
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.providers.anthropic.anthropic_request import encode_request
from chatd.providers.openai.openai_models import has_computer_tool
from chatd.providers.openai.openai_tools import computer_input
from chatd.providers.openai.responses_wire import ITEM
from tests.support import factories
from tests.support.providers import anthropic, openai_responses
from tests.support.providers.client import ClientRig, anthropic_rig, responses_rig
from tests.support.providers.prompts import message
from tests.support.providers.stream_reader import collect
from tests.support.sent_requests import MARK

FUNCTION = ToolSpec(
    name="computer",
    description=computer_description(Screen(1280, 720)),
    input_schema=computer_schema(),
)
COMPUTER = ComputerTool(width_px=1280, height_px=720, function=FUNCTION)


def request(model: str) -> ModelRequest:
    return ModelRequest(model=model, messages=(message("user", "go"),), computer=COMPUTER)


@pytest.mark.parametrize(
    ("model", "kind"),
    [("claude-opus-4-6", "computer_20251124"), ("kimi-k2", None), ("glm-5", None)],
)
def test_only_claude_gets_anthropics_tool(model: str, kind: str | None) -> None:
    body = msgspec.json.decode(encode_request(request(model)).body)
    [tool] = body["tools"]
    assert (tool.get("type"), tool["name"]) == (kind, "computer")
    assert ("input_schema" in tool) == (kind is None)


@pytest.mark.parametrize(
    ("model", "has_it"),
    [
        ("gpt-5.4", True),
        ("gpt-5.4-2026-03-05", True),
        ("gpt-6", True),
        ("computer-use-preview", True),
        ("gpt-5.3", False),
        ("gpt-5", False),
        ("gpt-5.4-nano", False),
        ("gpt-4o", False),
        ("o3", False),
        ("my-deployment", False),
    ],
)
def test_newer_models_of_openai_get_openais_tool(model: str, has_it: bool) -> None:  # noqa: FBT001
    assert has_computer_tool(model) is has_it


def test_others_get_a_plain_tool() -> None:
    plain = as_function(request("any"))
    assert (plain.computer, plain.tools) == (None, (FUNCTION,))


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (
            {"type": "click", "button": "right", "x": 1, "y": 2, "keys": ["CTRL"]},
            {"action": "right_click", "keys": ["CTRL"], "coordinate": [1, 2]},
        ),
        (
            {"type": "click", "button": "wheel", "x": 1, "y": 2},
            {"action": "middle_click", "coordinate": [1, 2]},
        ),
        (
            {"type": "click", "button": "back", "x": 1, "y": 2},
            {"action": "key", "text": "alt+Left"},
        ),
        ({"type": "keypress", "keys": ["CTRL", "A"]}, {"action": "key", "text": "CTRL+A"}),
        ({"type": "wait", "ms": 1500}, {"action": "wait", "duration": 1.5}),
        ({"type": "wait"}, {"action": "wait"}),
        (
            {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]},
            {"action": "left_click_drag", "path": [[1, 2], [3, 4]]},
        ),
        ({"type": "move", "x": 0, "y": 0}, {"action": "mouse_move", "coordinate": [0, 0]}),
        (
            {"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": -150},
            {"action": "scroll", "scroll_x": 0, "scroll_y": -150, "coordinate": [1, 2]},
        ),
        ({"type": "dance"}, {"action": "dance"}),
    ],
)
def test_actions_of_openai_are_translated(sent: object, read: object) -> None:
    item = {"type": "computer_call", "id": "cu_1", "call_id": "c", "actions": [sent]}
    found = computer_input(ITEM.decode(Raw(msgspec.json.encode(item))))
    assert msgspec.json.decode(found) == {"actions": [read]}


# What screenshots cost, measured in the requests that leave

STEPS = 50
CACHED, WRITTEN = 0.1, 1.25  # of the price of input
BYTES_PER_TOKEN = 4


@cache
def chat_of_steps() -> list[Message]:
    """A chat that has taken a screenshot at each of its steps."""
    rows = [factories.message(1, "user", factories.text("Open the editor"))]
    for number in range(STEPS):
        call_id = ToolCallId(f"call{number}")
        click = Raw(b'{"action":"left_click","coordinate":[%d,40]}' % number)
        pixels = bytes((number, 90, 90, 0)) * 1280 * 720
        picture = base64.b64encode(encode_png(pixels, 1280, 720)).decode()
        shown = Raw(msgspec.json.encode({"data": picture, "mime_type": "image/png"}))
        used = ToolCallPart(tool_call_id=call_id, tool_name="computer", args=click)
        result = ToolResultPart(
            tool_call_id=call_id, tool_name="computer", result=shown, is_media=True
        )
        rows.append(factories.message(2 + 2 * number, "assistant", used))
        rows.append(factories.message(3 + 2 * number, "tool", result))
    return rows


def pieces_of(body: bytes) -> list[tuple[bytes, float]]:
    """The request from its beginning, with the tokens of each piece: a picture as Anthropic counts
    it, anything else by its length. Marks for the cache count nothing."""
    text = MARK.sub(b"", body)
    fields = msgspec.json.decode(text)
    turns = fields.pop("messages", None) or fields.pop("input")
    found = [msgspec.json.encode(fields)]
    for turn in turns:
        found += re.split(rb'(iVBORw0KGgo[^"]*)', msgspec.json.encode(turn))
    return [
        (piece, 1280 * 720 / 750 if piece.startswith(b"iVBOR") else len(piece) / BYTES_PER_TOKEN)
        for piece in found
    ]


async def measure(wire: str) -> tuple[float, float]:
    """Input tokens of an action, on average, and what they cost in tokens at full price."""
    new_rig, model, answer = WIRES[wire]
    rows, tokens, cost, before = chat_of_steps(), 0.0, 0.0, list[tuple[bytes, float]]()
    target = PromptTarget(provider="here")
    async with new_rig() as rig, rig.provider(name="here") as provider:
        for count in range(1, STEPS + 1):
            messages = build_prompt(rows[: 1 + 2 * count], target)
            rig.fake.script(answer)
            sent = ModelRequest(
                model=model, messages=messages, computer=COMPUTER, max_output_tokens=1000
            )
            await collect(provider, sent)
            now = pieces_of(rig.fake.requests[-1].body)
            same = sum(
                1
                for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False))
            )
            tokens += sum(size for _, size in now)
            cost += CACHED * sum(size for _, size in now[:same])
            cost += WRITTEN * sum(size for _, size in now[same:])
            before = now
    return tokens / STEPS, cost / STEPS


WIRES: dict[str, tuple[Callable[[], AbstractAsyncContextManager[ClientRig[Any]]], str, bytes]] = {
    "anthropic": (anthropic_rig, "claude-opus-4-6", anthropic.stream("text")),
    "responses": (responses_rig, "gpt-5.4", openai_responses.stream("text")),
}


@pytest.mark.parametrize("wire", WIRES)
async def test_old_screenshots_that_leave_the_prompt_halve_what_an_action_costs(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of docs/computer-use.md; `pytest -s` prints them. Takes two seconds: it sends a
    hundred requests with pictures."""
    pruned = await measure(wire)
    monkeypatch.setattr(kept_rows, "SCREENSHOT_BATCH", STEPS + 1)
    whole = await measure(wire)
    for name, (tokens, cost) in (("all stay", whole), ("ten leave at once", pruned)):
        share = f"{cost / whole[1]:.0%}"
        print(f"{wire}, {name}: {tokens:,.0f} tokens, as {cost:,.0f} at full price, {share}")  # noqa: T201
    assert pruned[0] < whole[0] / 2
    assert pruned[1] < whole[1] * 0.75
