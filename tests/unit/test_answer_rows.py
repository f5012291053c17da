"""The messages and usage entries of a model call."""

from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.answer import (
    Answer,
    ModelCallRecord,
    StartedCall,
    answer_message,
    estimated_entry,
    result_messages,
    runtime_ms,
    usage_entry,
)
from chatd.domain.answer.tool_output import AnsweredCall, ToolOutput
from chatd.domain.chat.messages import Draft, TokenUsage, UsageEntry
from chatd.domain.chat.parts import ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.ids import ModelConfigId, ToolCallId
from chatd.domain.model.protocol import Finished, ModelConfig, Prices
from tests.support.factories import call, result, text

CONFIG = ModelConfig(
    id=ModelConfigId(UUID(int=7)),
    name="Small",
    provider="my-openai",
    model="gpt-x",
    context_limit=4096,
    prices=Prices(input="2", output="8"),
)
CALL = ModelCallRecord(config=CONFIG, reasoning_effort="low", runtime_ms=1200)
USAGE = TokenUsage(input_tokens=100, output_tokens=10)


def finished(**columns: object) -> Finished:
    return msgspec.structs.replace(Finished(reason="stop", usage=USAGE), **columns)


@pytest.mark.covers("loop-2", "commit-1")
def test_an_answer_is_one_message_with_the_facts_of_its_call() -> None:
    thought = ReasoningPart(text="hm", created_at="1", completed_at="2")
    answer = Answer(
        content=(thought, text("Hi.")), finished=finished(response_id="r1"), usage=USAGE
    )
    assert answer_message(answer, CALL) == Draft(
        role="assistant",
        content=(thought, text("Hi.")),
        model_config_id=CONFIG.id,
        reasoning_effort="low",
        usage=TokenUsage(input_tokens=100, output_tokens=10, context_limit=4096),
        cost_micros=280,
        runtime_ms=1200,
        provider_response_id="r1",
        finish_reason="stop",
    )


def test_a_reported_context_limit_takes_precedence_over_the_configured_one() -> None:
    metadata = Raw(b'{"x":{"context_window":8192}}')
    answer = Answer(content=(), finished=finished(provider_metadata=metadata), usage=USAGE)
    draft = answer_message(answer, CALL)
    assert draft.usage is not None
    assert draft.usage.context_limit == 8192


def test_an_unknown_limit_stays_unknown() -> None:
    bare = ModelCallRecord(config=msgspec.structs.replace(CONFIG, context_limit=None, prices=None))
    draft = answer_message(Answer(content=(), finished=finished(), usage=USAGE), bare)
    assert draft.usage == msgspec.structs.replace(USAGE, unpriced=True)
    assert (draft.cost_micros, draft.runtime_ms) == (None, None)


def test_an_interrupted_answer_has_estimated_usage_and_its_cost() -> None:
    estimate = msgspec.structs.replace(USAGE, estimated=True)
    draft = answer_message(Answer(content=(text("Once"),), usage=estimate), CALL)
    assert draft.usage == msgspec.structs.replace(estimate, context_limit=4096)
    assert (draft.cost_micros, draft.provider_response_id) == (280, None)
    assert draft.finish_reason is None
    assert (draft.model_config_id, draft.runtime_ms) == (CONFIG.id, 1200)


@pytest.mark.covers("loop-3")
def test_provider_results_stay_in_the_answer_in_order() -> None:
    content = (
        text("Searching."),
        call("s", "web_search", provider_executed=True),
        result("s", "web_search", "[]", provider_executed=True),
        text("Found."),
        call("a"),
    )
    assert answer_message(Answer(content=content, finished=finished()), CALL).content == content


@pytest.mark.covers("commit-2")
def test_calls_have_the_mcp_server_of_their_tool() -> None:
    content = (call("a", "git__log"), call("b", "execute"), TextPart(text="git__log"))
    stored = answer_message(Answer(content=content), CALL, {"git__log": "mcp-1"}).content
    servers = [p.mcp_server_config_id for p in stored if isinstance(p, ToolCallPart)]
    assert servers == ["mcp-1", None]


@pytest.mark.covers("loop-3")
def test_each_result_is_one_message_in_the_given_order() -> None:
    answers = [
        AnsweredCall(call_id=ToolCallId(one), name="execute", output=ToolOutput(text=one))
        for one in ("b", "a")
    ]
    drafts = result_messages(answers, None, at="09:00")
    assert [draft.role for draft in drafts] == ["tool", "tool"]
    parts = [part for draft in drafts for part in draft.content if isinstance(part, ToolResultPart)]
    assert [part.tool_call_id for part in parts] == ["b", "a"]
    assert {part.created_at for part in parts} == {"09:00"}


def test_results_are_clipped_to_the_context_limit() -> None:
    answer = AnsweredCall(call_id=ToolCallId("a"), name="x", output=ToolOutput(text="x" * 100_000))
    (draft,) = result_messages([answer], 1000)
    (part,) = draft.content
    assert isinstance(part, ToolResultPart)
    assert isinstance(part.result, Raw)
    assert len(bytes(part.result)) < 17 * 1024


@pytest.mark.covers("loop-25")
@pytest.mark.parametrize(
    ("opened", "ended", "expected"),
    [(10.0, 11.5, 1500), (10.0, 10.0009, None), (10.0, 10.0, None), (10.0, 10.0015, 1)],
)
def test_runtime_is_in_whole_milliseconds_or_unknown(
    opened: float, ended: float, expected: int | None
) -> None:
    assert runtime_ms(opened, ended) == expected


@pytest.mark.covers("commit-5")
def test_a_usage_entry_has_the_prices_of_its_time() -> None:
    assert usage_entry("turn", CALL, USAGE) == UsageEntry(
        kind="turn",
        provider="my-openai",
        model="gpt-x",
        usage=USAGE,
        model_config_id=CONFIG.id,
        cost_micros=280,
        price=usage_entry("turn", CALL, USAGE).price,
        runtime_ms=1200,
    )
    price = usage_entry("turn", CALL, USAGE).price
    assert price is not None
    assert bytes(price) == b'{"input":"2","output":"8"}'


@pytest.mark.covers("commit-5")
def test_a_failed_call_has_a_usage_entry_too() -> None:
    entry = usage_entry("compaction", CALL, None, ok=False)
    assert (entry.usage, entry.cost_micros, entry.ok) == (TokenUsage(), None, False)


def test_a_cost_that_the_provider_reported_has_no_price() -> None:
    reported = msgspec.structs.replace(USAGE, provider_cost_micros=7)
    entry = usage_entry("turn", CALL, reported)
    assert (entry.cost_micros, entry.price) == (7, None)


def test_a_call_that_its_worker_did_not_record_is_estimated_from_its_start() -> None:
    told = msgspec.structs.replace(USAGE, output_tokens=1)
    started = StartedCall(id=UUID(int=1), kind="turn", config=CONFIG, usage=told)
    entry = estimated_entry(
        msgspec.json.decode(msgspec.json.encode(started), type=StartedCall), output_tokens=50
    )
    assert entry.usage == TokenUsage(
        input_tokens=100, output_tokens=50, total_tokens=150, estimated=True
    )
    assert (entry.cost_micros, entry.ok, entry.call_id) == (600, False, UUID(int=1))


def test_a_usage_entry_without_prices_has_no_cost() -> None:
    entry = usage_entry(
        "title", ModelCallRecord(config=msgspec.structs.replace(CONFIG, prices=None)), USAGE
    )
    assert (entry.cost_micros, entry.price) == (None, None)
