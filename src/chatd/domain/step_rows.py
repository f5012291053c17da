"""What a model call leaves behind: a message in history, and an entry in the books.

Owns the conversion of an answer to rows. Does not own their commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from chatd.domain.answer import Answer
from chatd.domain.context_limit import effective_limit
from chatd.domain.cost import cost_micros
from chatd.domain.messages import Draft, Usage, UsageEntry
from chatd.domain.model import ModelConfig
from chatd.domain.parts import Part, ToolCall
from chatd.domain.tool_output import Answered, fit, result_message

_NO_SERVERS: Mapping[str, str] = {}


class Call(Struct, frozen=True, kw_only=True):
    """A model call as it was made. `runtime_ms` is the time from opening the stream to its
    end, of the attempt that counts: neither tools nor failed attempts are in it."""

    config: ModelConfig
    reasoning_effort: str | None = None
    runtime_ms: int | None = None


def runtime_ms(opened: float, ended: float) -> int | None:
    """Less than a millisecond is as good as unknown. Times are in seconds, of one clock."""
    return int((ended - opened) * 1000) or None


def answer_message(
    answer: Answer, call: Call, mcp_servers: Mapping[str, str] = _NO_SERVERS
) -> Draft:
    """The answer as one assistant message. `mcp_servers` says whose tool a name is.

    Without a `finished` the answer was interrupted: nobody knows its usage.
    """
    done = answer.finished
    usage = _with_limit(answer, call.config)
    return Draft(
        role="assistant",
        content=tuple(_stamped(part, mcp_servers) for part in answer.content),
        model_config_id=call.config.id,
        reasoning_effort=call.reasoning_effort,
        usage=usage,
        cost_micros=cost_micros(usage, call.config.prices),
        runtime_ms=call.runtime_ms,
        provider_response_id=None if done is None else done.response_id,
    )


def _with_limit(answer: Answer, config: ModelConfig) -> Usage | None:
    if answer.finished is None:
        return None
    limit = effective_limit(answer.finished.provider_metadata, config.context_limit)
    usage = answer.finished.usage
    return msgspec.structs.replace(usage, context_limit=usage.context_limit or limit)


def _stamped(part: Part, mcp_servers: Mapping[str, str]) -> Part:
    if not isinstance(part, ToolCall) or part.tool_name not in mcp_servers:
        return part
    return msgspec.structs.replace(part, mcp_server_config_id=mcp_servers[part.tool_name])


def result_messages(
    answers: Sequence[Answered], context_limit: int | None, at: str | None = None
) -> tuple[Draft, ...]:
    """One tool message per result, in the order of the calls, within what the context bears."""
    return tuple(result_message(answer, at) for answer in fit(answers, context_limit))


def usage_entry(
    kind: Literal["turn", "compaction", "title", "summary"],
    call: Call,
    usage: Usage | None,
    *,
    ok: bool = True,
) -> UsageEntry:
    """The prices go with it: a later change of prices does not change what was spent."""
    prices = call.config.prices
    return UsageEntry(
        kind=kind,
        provider=call.config.provider,
        model=call.config.model,
        usage=usage or Usage(),
        model_config_id=call.config.id,
        cost_micros=cost_micros(usage, prices),
        price=None if prices is None else Raw(msgspec.json.encode(prices)),
        runtime_ms=call.runtime_ms,
        ok=ok,
    )


def in_call_order(calls: Iterable[ToolCall], answers: Iterable[Answered]) -> list[Answered]:
    """Results as the model asked for them, whoever was done first."""
    by_id = {answer.call_id: answer for answer in answers}
    return [by_id[call.tool_call_id] for call in calls if call.tool_call_id in by_id]
