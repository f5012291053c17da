"""Which models get their vendor's own tool for a desktop, and which a plain one."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.computer_use import Screen, computer_description, computer_schema
from chatd.domain.model.protocol import ComputerTool, ModelRequest, ToolSpec, as_function
from chatd.providers.anthropic.anthropic_request import encode_request
from chatd.providers.openai.openai_models import has_computer_tool
from chatd.providers.openai.openai_tools import computer_input
from chatd.providers.openai.responses_wire import ITEM
from tests.support.providers.prompts import message

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
