"""Tool outputs as stored: valid JSON, clipped one by one and as a batch."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from chatd.domain.answer.tool_output import (
    MAX_MEDIA_BYTES,
    STEP_OUTPUT_BYTES,
    AnsweredCall,
    ToolMedia,
    ToolOutput,
    clip_middle,
    error_output,
    fit_outputs,
    output_budget_bytes,
    result_json,
    result_message,
)
from chatd.domain.chat.messages import Draft
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.ids import ToolCallId
from chatd.domain.text import parse_json

KIB = 1024


def answered(text: str, call_id: str = "a") -> AnsweredCall:
    return AnsweredCall(call_id=ToolCallId(call_id), name="execute", output=ToolOutput(text=text))


def stored(draft: Draft) -> ToolResultPart:
    (part,) = draft.content
    assert isinstance(part, ToolResultPart)
    return part


# Size


@pytest.mark.covers("loop-26")
@pytest.mark.parametrize(
    ("limit", "budget"),
    [
        (None, 64 * KIB),
        (0, 64 * KIB),
        (-5, 64 * KIB),
        (1, 16 * KIB),
        (16_384, 16 * KIB),
        (16_390, 16_389),
        (200_000, 199_998),
        (1_000_000, 999_999),
    ],
)
def test_one_result_may_use_a_third_of_the_context(limit: int | None, budget: int) -> None:
    assert output_budget_bytes(limit) == budget


@pytest.mark.covers("loop-27")
def test_a_text_within_the_budget_is_unchanged() -> None:
    assert clip_middle("x" * 999, 1000) == "x" * 999
    assert clip_middle("x" * 1000, 1000) == "x" * 1000
    assert clip_middle("", 0) == ""


@pytest.mark.covers("loop-27")
def test_a_clipped_text_keeps_head_and_tail_and_counts_the_rest() -> None:
    text = "h" * 5000 + "m" * 5000 + "t" * 5000
    shown = clip_middle(text, 3328)
    head, _, rest = shown.partition("\n\n[")
    marker, _, tail = rest.partition("]\n\n")
    assert (head, tail) == ("h" * 2048, "t" * 1024)
    assert marker.startswith("11928 bytes left out here.")
    assert len(shown.encode()) <= 3328


@pytest.mark.covers("loop-27")
def test_a_character_is_never_cut_in_two() -> None:
    for budget in range(513, 530):
        shown = clip_middle("ä" * 2000, budget)
        assert "\ufffd" not in shown
        assert len(shown.encode()) <= budget
        kept = shown.count("ä")
        assert f"[{4000 - 2 * kept} bytes" in shown


@pytest.mark.covers("loop-27")
@pytest.mark.parametrize("budget", [512, 10, 1, 0, -1])
def test_a_tiny_budget_leaves_a_head_without_a_marker(budget: int) -> None:
    assert clip_middle("ä" * 1000, budget) == "ä" * (max(budget, 0) // 2)


@pytest.mark.covers("loop-20")
def test_surrogates_are_replaced() -> None:
    assert clip_middle("a\ud800", 100) == "a\ufffd"


def test_results_that_fit_together_are_unchanged() -> None:
    batch = [answered("x" * 10_000, "a"), answered("y" * 20_000, "b")]
    assert fit_outputs(batch, None) == batch


@pytest.mark.covers("loop-28")
def test_results_that_fit_only_alone_share_one_budget() -> None:
    batch = [answered("x" * 60_000, str(index)) for index in range(10)]
    sizes = [len(answer.output.text) for answer in fit_outputs(batch, None)]
    assert sum(sizes) <= output_budget_bytes(None)
    assert min(sizes) > 6_000


@pytest.mark.covers("loop-28")
def test_a_small_result_stays_whole_beside_a_large_one() -> None:
    small, large = fit_outputs([answered("s" * 1000, "a"), answered("l" * 500_000, "b")], None)
    assert small.output.text == "s" * 1000
    assert 60 * KIB < len(large.output.text) <= 64 * KIB - 1000


def test_each_of_very_many_results_keeps_a_minimum() -> None:
    batch = [answered("x" * 5000, str(index)) for index in range(200)]
    assert all(len(answer.output.text) > 500 for answer in fit_outputs(batch, None))


def test_an_empty_batch_is_allowed() -> None:
    assert fit_outputs([], 1000) == []


def test_media_that_are_too_large_are_replaced_by_a_note() -> None:
    big = ToolMedia(media_type="image/png", data=b"x" * (MAX_MEDIA_BYTES + 1))
    ok = ToolMedia(media_type="image/png", data=b"x")
    batch = [
        AnsweredCall(call_id=ToolCallId("a"), name="s", output=ToolOutput(text="", media=big)),
        AnsweredCall(call_id=ToolCallId("b"), name="s", output=ToolOutput(text="seen", media=ok)),
    ]
    left, kept = fit_outputs(batch, None)
    assert left.output.media is None
    assert "image/png" in left.output.text
    assert kept == batch[1]


# JSON


def report(output: str, **fields: object) -> str:
    return msgspec.json.encode(
        {"success": False, "exit_code": 3, "output": output, **fields}
    ).decode()


def fields_of(answer: AnsweredCall) -> dict[str, Any]:
    return msgspec.json.decode(answer.output.text, type=dict[str, Any])


@pytest.mark.parametrize(
    "output",
    ["x" * 40_000, 'a "quoted" line\n' * 2_500, "ä€" * 8_000, "\x00\x1b[0m" * 5_000],
    ids=["plain", "escaped", "wide", "control characters"],
)
def test_the_report_of_a_command_stays_json_with_its_exit_code(output: str) -> None:
    batch = [answered(report(output), str(index)) for index in range(6)]
    fitted = fit_outputs(batch, 1_000_000)
    assert sum(len(each.output.text.encode()) for each in fitted) <= STEP_OUTPUT_BYTES
    for each in fitted:
        found = fields_of(each)
        assert (found["success"], found["exit_code"]) == (False, 3)
        assert "bytes left out here" in found["output"]
        told = found["truncated"]
        assert told["original_bytes"] == len(output.encode())
        assert told["retained_bytes"] + told["omitted_bytes"] == told["original_bytes"]


def test_a_report_that_was_cut_before_counts_from_the_whole_output() -> None:
    cut = {"original_bytes": 9_000_000, "retained_bytes": 32_000, "omitted_bytes": 8_968_000}
    [found] = fit_outputs([answered(report("x" * 32_000, truncated=cut))], None, 16 * KIB)
    assert fields_of(found)["truncated"]["original_bytes"] == 9_000_000
    assert fields_of(found)["truncated"]["omitted_bytes"] > 8_968_000


def test_only_long_strings_of_an_object_are_cut_at_any_depth() -> None:
    value = {
        "ok": True,
        "files": [{"path": "/a", "diff": "d" * 90_000}, {"path": "/b", "diff": "e"}],
    }
    [found] = fit_outputs([answered(msgspec.json.encode(value).decode())], None)
    files = fields_of(found)["files"]
    assert [file["path"] for file in files] == ["/a", "/b"]
    assert files[1]["diff"] == "e"
    assert len(files[0]["diff"]) < 64 * KIB


@pytest.mark.parametrize(
    "text",
    [
        msgspec.json.encode(list(range(50_000))).decode(),
        msgspec.json.encode({str(n): n for n in range(20_000)}).decode(),
        "z" * 200_000,
    ],
    ids=["a list", "an object without long strings", "text"],
)
def test_what_cannot_stay_an_object_is_cut_as_text(text: str) -> None:
    [found] = fit_outputs([answered(text)], 1_000_000)
    assert len(found.output.text.encode()) <= STEP_OUTPUT_BYTES
    assert "bytes left out here" in found.output.text
    assert parse_json(result_json(found.output)) == {"output": found.output.text}


def test_a_cut_says_where_the_whole_result_is() -> None:
    saved = "All of it is in /home/dev/.chatd/results/c1.txt: read it with read_file."
    output = ToolOutput(text="x" * 300_000, saved=saved)
    answer = AnsweredCall(call_id=ToolCallId("a"), name="find", output=output)
    [found] = fit_outputs([answer], None)
    assert saved in found.output.text


def test_the_results_of_a_step_have_one_limit_however_large_the_context_is() -> None:
    batch = [answered("x" * 300_000, str(index)) for index in range(20)]
    fitted = fit_outputs(batch, 2_000_000)
    assert sum(len(each.output.text) for each in fitted) <= STEP_OUTPUT_BYTES


# Format


@pytest.mark.covers("prompt-14")
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (ToolOutput(text="done"), '{"output":"done"}'),
        (ToolOutput(text='{"a": 1}'), '{"a": 1}'),
        (ToolOutput(text="42\n"), "42\n"),
        (ToolOutput(text=""), "{}"),
        (ToolOutput(text=" "), '{"output":" "}'),
        (ToolOutput(text='{"a":'), '{"output":"{\\"a\\":"}'),
        (ToolOutput(text="NaN"), '{"output":"NaN"}'),
        (error_output("no such file"), '{"error":"no such file"}'),
        (error_output('{"error":"x","id":1}'), '{"error":"{\\"error\\":\\"x\\",\\"id\\":1}"}'),
        (
            ToolOutput(text='{"error":"x","id":1}', is_error=True, structured=True),
            '{"error":"x","id":1}',
        ),
        (ToolOutput(text='{"id":1}', is_error=True, structured=True), '{"error":"{\\"id\\":1}"}'),
        (ToolOutput(text="broken", is_error=True, structured=True), '{"error":"broken"}'),
        (ToolOutput(text="a\ud800"), '{"output":"a\ufffd"}'),
        (ToolOutput(text=r'{"a":"\ud800"}'), r'{"a":"\ufffd"}'),
        (ToolOutput(text="nul \0"), '{"output":"nul \\u0000"}'),
    ],
)
def test_an_output_is_stored_as_json(output: ToolOutput, expected: str) -> None:
    assert bytes(result_json(output)).decode() == expected


def test_json_nested_too_deeply_is_stored_as_text() -> None:
    raw = result_json(ToolOutput(text="[" * 50_000 + "]" * 50_000))
    assert bytes(raw).startswith(b'{"output":"[[[')


@pytest.mark.covers("loop-20")
def test_media_are_stored_as_base64_with_their_text() -> None:
    output = ToolOutput(text="seen\ud800", media=ToolMedia(media_type="image/png", data=b"\x89PNG"))
    assert parse_json(result_json(output)) == {
        "data": "iVBORw==",
        "mime_type": "image/png",
        "text": "seen\ufffd",
    }


@pytest.mark.covers("commit-2")
def test_a_result_is_a_tool_message() -> None:
    answer = AnsweredCall(
        call_id=ToolCallId("a"),
        name="slug__tool",
        output=ToolOutput(text="done"),
        mcp_server_config_id="m1",
    )
    draft = result_message(answer, at="09:00")
    part = stored(draft)
    assert (draft.role, draft.visibility) == ("tool", "both")
    assert msgspec.json.decode(msgspec.json.encode(part)) == {
        "type": "tool-result",
        "tool_call_id": "a",
        "tool_name": "slug__tool",
        "result": {"output": "done"},
        "mcp_server_config_id": "m1",
        "created_at": "09:00",
    }


def test_an_error_is_marked_and_takes_precedence_over_media() -> None:
    media = ToolMedia(media_type="image/png", data=b"x")
    output = ToolOutput(text="broke", is_error=True, media=media)
    part = stored(result_message(AnsweredCall(call_id=ToolCallId("a"), name="s", output=output)))
    assert (part.is_error, part.is_media) == (True, False)
    assert part.result is not UNSET
    assert bytes(part.result) == b'{"error":"broke"}'


def test_media_are_marked() -> None:
    output = ToolOutput(text="", media=ToolMedia(media_type="image/png", data=b"x"))
    part = stored(result_message(AnsweredCall(call_id=ToolCallId("a"), name="s", output=output)))
    assert (part.is_error, part.is_media) == (False, True)
