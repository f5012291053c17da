"""Computer use: sizes of screenshots, points in them, and what calls of models mean."""

from collections.abc import Callable, Mapping
from itertools import pairwise, takewhile

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import ToolCallPart, ToolResultPart
from chatd.domain.computer_use import (
    ANTHROPIC_PICTURES,
    OPENAI_PICTURES,
    InputAction,
    PictureLimits,
    PictureRegion,
    Screen,
    map_point,
    picture_size,
    read_call,
    split_chord,
)
from chatd.domain.errors import ToolError
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import PromptMessage, PromptResult
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.domain.prompt.kept_rows import KEPT_SCREENSHOTS, SCREENSHOT_BATCH
from chatd.domain.tool_policy.decision import decide
from chatd.domain.tool_policy.rules import PolicyLayer, ToolPolicy, ToolRule
from tests.support import factories

FULL_HD = Screen(1920, 1080)


@pytest.mark.parametrize(
    ("screen", "limits", "size"),
    [
        (Screen(1280, 720), ANTHROPIC_PICTURES, Screen(1280, 720)),
        (FULL_HD, ANTHROPIC_PICTURES, Screen(1280, 720)),
        (FULL_HD, OPENAI_PICTURES, Screen(1600, 900)),
        (Screen(1600, 900), OPENAI_PICTURES, Screen(1600, 900)),
        (Screen(1600, 900), ANTHROPIC_PICTURES, Screen(1280, 720)),
        (Screen(1024, 768), ANTHROPIC_PICTURES, Screen(1024, 768)),
        (Screen(1600, 1200), ANTHROPIC_PICTURES, Screen(1024, 768)),  # 1280x960 has too many
        (Screen(1600, 1200), OPENAI_PICTURES, Screen(1280, 960)),
        (Screen(2560, 1440), ANTHROPIC_PICTURES, Screen(1280, 720)),  # HiDPI
        (Screen(3840, 2160), ANTHROPIC_PICTURES, Screen(1280, 720)),
        (Screen(3840, 2160), OPENAI_PICTURES, Screen(1600, 900)),
        (Screen(3840, 1080), ANTHROPIC_PICTURES, Screen(1280, 360)),
        (Screen(1080, 1920), ANTHROPIC_PICTURES, Screen(804, 1429)),  # portrait
        (Screen(1080, 1920), OPENAI_PICTURES, Screen(900, 1600)),
        (Screen(768, 1366), ANTHROPIC_PICTURES, Screen(768, 1366)),
        (Screen(320, 3840), ANTHROPIC_PICTURES, Screen(130, 1568)),
    ],
)
def test_a_picture_has_the_largest_size_that_the_vendor_reads_unscaled(
    screen: Screen, limits: PictureLimits, size: Screen
) -> None:
    assert picture_size(screen, limits) == size
    assert max(size.width, size.height) <= limits.long_edge
    assert size.width * size.height <= limits.pixels


@pytest.mark.parametrize(
    ("point", "start", "end", "mapped"),
    [
        ((0, 0), Screen(1280, 720), FULL_HD, (0, 0)),
        ((1279, 719), Screen(1280, 720), FULL_HD, (1919, 1079)),
        ((640, 360), Screen(1280, 720), FULL_HD, (960, 540)),
        ((1, 1), Screen(1280, 720), FULL_HD, (2, 2)),
        ((0, 0), Screen(640, 360), Screen(2560, 1440), (2, 2)),  # the centre of 4x4 pixels
        ((639, 359), Screen(640, 360), Screen(2560, 1440), (2558, 1438)),
        ((403, 700), Screen(804, 1429), Screen(1080, 1920), (542, 941)),
        ((5000, -3), Screen(1280, 720), FULL_HD, (1919, 0)),
        ((2559, 1439), Screen(2560, 1440), Screen(1280, 720), (1279, 719)),
    ],
)
def test_a_point_is_mapped_to_the_pixel_at_its_centre(
    point: tuple[float, float], start: Screen, end: Screen, mapped: tuple[int, int]
) -> None:
    assert map_point(point, start, end) == mapped


@pytest.mark.parametrize("screen", [FULL_HD, Screen(2560, 1440), Screen(1080, 1920)])
@pytest.mark.parametrize("limits", [ANTHROPIC_PICTURES, OPENAI_PICTURES])
def test_a_point_comes_back_to_the_same_pixel_of_the_picture(
    screen: Screen, limits: PictureLimits
) -> None:
    picture = picture_size(screen, limits)
    for x in range(0, picture.width, 7):
        there = map_point((x, 0), picture, screen)
        assert map_point(there, screen, picture) == (x, 0)


SMALL = Screen(1280, 720)


def call(args: object, screen: Screen = SMALL) -> tuple[InputAction, ...]:
    return read_call(Raw(msgspec.json.encode(args)), screen).actions


ONE = InputAction


@pytest.mark.parametrize(
    ("args", "actions"),
    [
        ({"action": "screenshot"}, ()),
        ({"action": "cursor_position"}, ()),
        ({"action": "left_click"}, (ONE(kind="click"),)),
        ({"action": "left_click", "coordinate": [0, 0]}, (ONE(kind="click", points=((0, 0),)),)),
        (
            {"action": "right_click", "coordinate": [5, 6], "text": "ctrl+shift"},
            (ONE(kind="click", points=((5, 6),), button="right", keys=("ctrl", "shift")),),
        ),
        (
            {"action": "triple_click", "coordinate": [5.0, 6.4]},
            (ONE(kind="click", points=((5, 6),), count=3),),
        ),
        ({"action": "mouse_move", "coordinate": [9, 9]}, (ONE(kind="move", points=((9, 9),)),)),
        (
            {"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]},
            (ONE(kind="drag", points=((1, 2), (3, 4))),),
        ),
        (
            {"action": "left_click_drag", "coordinate": [3, 4]},
            (
                ONE(kind="button", is_down=True),
                ONE(kind="move", points=((3, 4),)),
                ONE(kind="button"),
            ),
        ),
        ({"action": "left_mouse_down"}, (ONE(kind="button", is_down=True),)),
        (
            {"action": "scroll", "coordinate": [1, 1], "scroll_direction": "up"},
            (ONE(kind="scroll", points=((1, 1),), down="-3"),),
        ),
        (
            {"action": "scroll", "scroll_direction": "right", "scroll_amount": 7},
            (ONE(kind="scroll", across="7"),),
        ),
        ({"action": "type", "text": " a\n"}, (ONE(kind="type", text=" a\n"),)),
        (
            {"action": "key", "text": "ctrl+a Delete"},
            (ONE(kind="key", keys=("ctrl", "a")), ONE(kind="key", keys=("Delete",))),
        ),
        ({"action": "key", "text": "ctrl++"}, (ONE(kind="key", keys=("ctrl", "plus")),)),
        (
            {"action": "hold_key", "text": "shift", "duration": 2.5},
            (ONE(kind="hold", keys=("shift",), ms=2500),),
        ),
        ({"action": "wait"}, (ONE(kind="wait", ms=1000),)),
        (
            {
                "actions": [
                    {"action": "left_click", "coordinate": [1, 1], "keys": ["CTRL"]},
                    {"action": "scroll", "coordinate": [1, 1], "scroll_x": 0, "scroll_y": 250},
                    {"action": "left_click_drag", "path": [[1, 1], [2, 2], [3, 3]]},
                    {"action": "screenshot"},
                ]
            },
            (
                ONE(kind="click", points=((1, 1),), keys=("CTRL",)),
                ONE(kind="scroll", points=((1, 1),), down="3"),
                ONE(kind="drag", points=((1, 1), (2, 2), (3, 3))),
            ),
        ),
        ({"actions": []}, ()),
    ],
)
def test_a_call_is_read(args: object, actions: tuple[InputAction, ...]) -> None:
    assert call(args) == actions


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ({}, "action must be one of"),
        ({"action": "dance"}, "action must be one of"),
        ({"action": "type"}, "text is required"),
        ({"action": "key", "text": ""}, "text is required"),
        ({"action": "mouse_move"}, "coordinate must be [x, y]"),
        ({"action": "left_click", "coordinate": [1]}, "coordinate must be [x, y]"),
        ({"action": "left_click", "coordinate": ["1", 2]}, "coordinate must be [x, y]"),
        ({"action": "left_click", "coordinate": [1280, 2]}, "outside of the screenshot"),
        ({"action": "left_click", "coordinate": [-1, 2]}, "outside of the screenshot"),
        ({"action": "scroll", "scroll_direction": "away"}, "scroll_direction"),
        ({"action": "scroll", "scroll_amount": 101}, "scroll_amount"),
        ({"action": "wait", "duration": 61}, "duration"),
        ({"actions": [{"action": "wait", "duration": 40}] * 2}, "60 seconds at most"),
        ({"actions": [{"action": "left_click_drag", "path": [[1, 1]]}]}, "two points"),
        ({"actions": ["click"]}, "action must be one of"),
        ({"action": "zoom", "region": [5, 5, 5, 9]}, "x0 < x1"),
        ({"action": "zoom"}, "region must be"),
    ],
)
def test_a_wrong_call_does_nothing_and_says_what_is_wrong(args: object, part: str) -> None:
    with pytest.raises(ToolError) as refused:
        call(args)
    assert part in refused.value.message


def test_points_of_a_batch_are_of_the_larger_picture() -> None:
    point = {"action": "left_click", "coordinate": [640, 360]}
    assert call(point, FULL_HD)[0].points == ((960, 540),)
    assert call({"actions": [point]}, FULL_HD)[0].points == ((768, 432),)


def test_a_zoom_shows_a_region_with_its_shape_as_large_as_a_picture() -> None:
    raw = Raw(msgspec.json.encode({"action": "zoom", "region": [0, 0, 320, 90]}))
    found = read_call(raw, FULL_HD)
    assert found.region == PictureRegion(0, 0, 480, 135)
    assert found.picture == Screen(1280, 360)


@pytest.mark.parametrize(
    ("text", "keys"),
    [("a", ("a",)), ("+", ("plus", "plus")), ("ctrl+shift+T", ("ctrl", "shift", "T"))],
)
def test_a_chord_is_split_into_keys(text: str, keys: tuple[str, ...]) -> None:
    assert split_chord(text)[-1] == keys[-1]


# Old screenshots leave the prompt


def screenshots(count: int) -> list[Message]:
    rows = [factories.message(1, "user", factories.text("Open the editor"))]
    for number in range(count):
        call_id = ToolCallId(f"call{number}")
        used = ToolCallPart(tool_call_id=call_id, tool_name="computer", args=Raw(b"{}"))
        shown = ToolResultPart(
            tool_call_id=call_id,
            tool_name="computer",
            result=Raw(b'{"data":"iVBORw0KGgo=","mime_type":"image/png"}'),
            is_media=True,
        )
        rows.append(factories.message(2 + 2 * number, "assistant", used))
        rows.append(factories.message(3 + 2 * number, "tool", shown))
    return rows


def shown_in(messages: tuple[PromptMessage, ...]) -> list[bool]:
    parts = (part for message in messages for part in message.parts)
    return [part.media is not None for part in parts if isinstance(part, PromptResult)]


STEPS = 100
PICTURE_TOKENS = 1280 * 720 // 750  # as Anthropic counts them
NOTE_TOKENS, STEP_TOKENS, HEAD_TOKENS = 10, 200, 3000
CACHED, WRITTEN = 0.1, 1.25  # of the price of input


def cost_of(dropped: Callable[[int], int]) -> tuple[int, float]:
    """Input tokens of all steps, and what they cost in tokens at full price, if after so many
    screenshots `dropped` of them have left the prompt."""
    tokens, cost, before = 0, 0.0, [HEAD_TOKENS]
    for step in range(1, STEPS + 1):
        gone = dropped(step)
        shown = [NOTE_TOKENS] * gone + [PICTURE_TOKENS] * (step - gone)
        sizes = [HEAD_TOKENS, *(STEP_TOKENS + one for one in shown)]
        same = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, sizes, strict=False))
        )
        tokens += sum(sizes)
        cost += CACHED * sum(sizes[:same]) + WRITTEN * sum(sizes[same:])
        before = sizes
    return tokens, cost


def test_what_an_action_costs_with_and_without_old_screenshots() -> None:
    """The numbers of docs/computer-use.md; `pytest -s` prints them."""
    target = PromptTarget(provider="p")
    batches = [
        shown_in(build_prompt(screenshots(count), target)).count(False)
        for count in range(1, STEPS + 1)
    ]
    rules = {
        "all stay": cost_of(lambda _: 0),
        "one leaves at every step": cost_of(lambda step: max(step - KEPT_SCREENSHOTS, 0)),
        "ten leave at once": cost_of(lambda step: batches[step - 1]),
    }
    whole = rules["all stay"][1]
    shares = {name: round(cost / whole * 100) for name, (_, cost) in rules.items()}
    for name, (tokens, cost) in rules.items():
        each = f"{tokens / STEPS:,.0f} tokens of input for an action"
        print(f"{name}: {each}, as {cost / STEPS:,.0f} at full price, {shares[name]} %")  # noqa: T201
    assert shares["ten leave at once"] < shares["one leaves at every step"] < 100
    assert rules["ten leave at once"][0] < rules["all stay"][0] / 3


def test_old_screenshots_leave_the_prompt_in_batches() -> None:
    prompts = [
        build_prompt(screenshots(count), PromptTarget(provider="p")) for count in range(1, 45)
    ]
    breaks = [
        number
        for number, (before, after) in enumerate(pairwise(prompts), start=2)
        if after[: len(before)] != before
    ]
    first = KEPT_SCREENSHOTS + SCREENSHOT_BATCH
    assert breaks == list(range(first, 45, SCREENSHOT_BATCH))
    for prompt in prompts:
        shown = shown_in(prompt)
        assert shown == sorted(shown)  # the newest stay
        assert min(len(shown), KEPT_SCREENSHOTS) <= sum(shown) < first


# Policies


@pytest.mark.parametrize(
    ("args", "action"),
    [
        ({"action": "screenshot"}, "auto"),
        ({"action": "type", "text": "hello"}, "ask"),
        ({"actions": [{"action": "screenshot"}, {"action": "type", "text": "x"}]}, "ask"),
        ({"action": "key", "text": "ctrl+w"}, "deny"),
        ({"actions": [{"action": "wait"}, {"action": "key", "text": "a"}]}, "deny"),
    ],
)
def test_a_policy_asks_for_or_denies_kinds_of_actions(
    args: Mapping[str, object], action: str
) -> None:
    rules = (
        ToolRule(tool="computer", action="ask", args={"action": "type"}),
        ToolRule(tool="computer", action="deny", args={"action": "key"}),
    )
    layers = [PolicyLayer(name="user", policy=ToolPolicy(rules=rules))]
    assert decide(layers, "computer", Raw(msgspec.json.encode(args))).action == action


def test_a_person_is_asked_for_what_the_vendor_wants_confirmed() -> None:
    checks = [{"id": "1", "code": "malicious_instructions", "message": "Check this page."}]
    args = Raw(msgspec.json.encode({"actions": [], "pending_safety_checks": checks}))
    decision = decide([], "computer", args)
    assert (decision.action, decision.may_loosen) == ("ask", True)
    assert decide([], "other", args).action == "auto"
    assert decide([], "computer", Raw(b'{"action":"screenshot"}')).action == "auto"
