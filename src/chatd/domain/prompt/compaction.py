"""When a chat's context is too full, and which rows the model still sees after a summary.

Owns the reading of history around a boundary. Does not own the summary: neither the prompt
that asks for it nor the rows that hold it.

A compaction leaves three compressed rows: the summary as a user message that only the model
sees, and a call with its result for people. The first is the boundary.

Asking for a summary, and what it leaves in history.

Owns the request, the words of it and the three rows. Does not own when a summary is due or what
it hides: that is `compaction`.
"""

from collections.abc import Sequence
from typing import Final, Literal
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.answer.answer import Answer, ModelCallRecord
from chatd.domain.chat.messages import Draft, Message, TokenUsage
from chatd.domain.chat.parts import SUMMARY_TOOL_NAME, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.ids import ToolCallId
from chatd.domain.model.config import cost_micros
from chatd.domain.model.protocol import ModelRequest, PromptMessage, PromptText
from chatd.domain.text import replace_surrogates

DEFAULT_THRESHOLD_PERCENT: Final = 70

Status = Literal["none", "needed", "still_over_limit"]


class ContextFill(Struct, frozen=True, kw_only=True):
    """How much of a context window the latest step took. Unknown numbers are 0."""

    tokens: int = 0
    limit: int = 0

    @property
    def percent(self) -> int:
        return self.tokens * 100 // self.limit if self.limit > 0 else 0

    def reaches(self, threshold: int) -> bool:
        known = self.tokens > 0 and self.limit > 0
        return known and self.tokens * 100 >= threshold * self.limit


def find_boundary(history: Sequence[Message]) -> Message | None:
    """The newest summary. The result shown to people is compressed too, but `both` sees it:
    only a row for the model alone cuts."""
    summaries = (
        row for row in history if row.compressed and not row.deleted and row.visibility == "model"
    )
    return max(summaries, key=lambda row: row.id, default=None)


def rows_for_prompt(history: Sequence[Message]) -> list[Message]:
    """What the model sees, by id: system rows, the newest summary, all that came after it."""
    cut = find_boundary(history)
    kept = [row for row in history if row is cut or _survives(row, cut)]
    return sorted(kept, key=lambda row: row.id)


def _survives(row: Message, cut: Message | None) -> bool:
    if row.deleted or row.compressed or row.visibility == "user":
        return False
    return cut is None or row.role == "system" or row.id > cut.id


def is_compactable(history: Sequence[Message]) -> bool:
    """Something was answered since the last summary."""
    return bool(_answers(history))


def _answers(history: Sequence[Message]) -> list[Message]:
    return [row for row in rows_for_prompt(history) if row.role == "assistant"]


def measure_fill(history: Sequence[Message], limit: int | None) -> ContextFill:
    """The fill at the newest answer that was counted. A limit that the provider itself
    reported with that answer is worth more than the configured one."""
    for row in reversed(_answers(history)):
        if (tokens := _context_tokens(row.usage)) > 0:
            reported = row.usage.context_limit if row.usage is not None else None
            return ContextFill(tokens=tokens, limit=max(reported or limit or 0, 0))
    return ContextFill(limit=max(limit or 0, 0))


def _context_tokens(usage: TokenUsage | None) -> int:
    if usage is None:
        return 0
    if usage.context_tokens is not None:
        return usage.context_tokens
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens
    return read or usage.total_tokens


def effective_threshold(percent: int) -> int:
    return percent if 0 <= percent <= 100 else DEFAULT_THRESHOLD_PERCENT


def compaction_status(history: Sequence[Message], limit: int | None, threshold: int) -> Status:
    """A threshold of 100 turns compaction off.

    If the first answer after a summary was over the threshold already, summaries do not help:
    the system prompt, the tools and the summary are too much, and the next one would be, too.
    """
    percent = effective_threshold(threshold)
    fill = measure_fill(history, limit)
    if percent == 100 or not fill.reaches(percent):
        return "none"
    if find_boundary(history) is None:
        return "needed"
    first = _context_tokens(_answers(history)[0].usage)
    over = ContextFill(tokens=first, limit=fill.limit).reaches(percent)
    return "still_over_limit" if over else "needed"


SUMMARY_INSTRUCTION: Final = """\
Write a summary of everything above. It will replace the chat: whoever continues has nothing else \
to go by, and must be able to pick up exactly where things stand. Do not call any tool and do not \
continue the work itself.

Cover, under these headings:

Goal: what the user wants in the end, and the task at hand.
User's rules: every constraint, preference and correction the user has stated, close to their own \
words. They stand until the user takes them back. Keep them apart from rules that come from \
configuration or instruction files, which will be given again.
Decisions: what was decided and why, including what was tried and rejected.
Facts: paths, functions, commands, interfaces, settings, identifiers, values that matter. Name \
where something can be read again (a file and its lines, a command) rather than copying it out.
Errors: what went wrong, its exact cause, and how it was solved. Note the specific case; one \
failure of a tool is no reason to avoid that tool from now on.
Progress: what is DONE, what is IN PROGRESS, what is REMAINING.
Next: the very action that was under way when this was asked for, in enough detail to carry it on.

Be dense and exact. No introduction, no praise, no filler. Leave out a heading that has nothing."""

SUMMARY_PREFIX: Final = """\
The chat so far has been condensed into the summary below. Continue the work from where it stops, \
as if there had been no break; do not comment on the summary.

"""


class SummaryPlan(Struct, frozen=True, kw_only=True):
    """A summary about to be made. The id is made up front: what viewers are shown while it is
    made and what is stored afterwards then belong together."""

    call_id: ToolCallId
    source: Literal["auto", "manual"]
    threshold: int
    fill: ContextFill


def summary_call_id(unique: UUID) -> ToolCallId:
    return ToolCallId(f"{SUMMARY_TOOL_NAME}_{unique.hex}")


def summary_request(request: ModelRequest, hint: str | None = None) -> ModelRequest:
    """The next request of the chat, asked for a summary instead. The tools stay, because the
    conversation holds calls of them and begins in the cache with them; none may be called."""
    text = SUMMARY_INSTRUCTION if not hint else f"{SUMMARY_INSTRUCTION}\n\n{hint}"
    ask = PromptMessage(role="user", parts=(PromptText(text=text),))
    return msgspec.structs.replace(
        request,
        messages=(*request.messages, ask),
        tool_choice="none",
        max_output_tokens=None,
    )


def summary_text(answer: Answer) -> str | None:
    """None: the model has not written any."""
    pieces = [part.text.strip() for part in answer.content if isinstance(part, TextPart)]
    return replace_surrogates(" ".join(piece for piece in pieces if piece)) or None


def summary_call(plan: SummaryPlan) -> ToolCallPart:
    """Shown when the summary is begun, stored when it is done."""
    args = {"source": plan.source, "threshold_percent": plan.threshold}
    return ToolCallPart(
        tool_call_id=plan.call_id, tool_name=SUMMARY_TOOL_NAME, args=Raw(msgspec.json.encode(args))
    )


def summary_result(plan: SummaryPlan, summary: str) -> ToolResultPart:
    result = {
        "summary": summary,
        "source": plan.source,
        "threshold_percent": plan.threshold,
        "usage_percent": plan.fill.percent,
        "context_tokens": plan.fill.tokens,
        "context_limit_tokens": plan.fill.limit,
    }
    return _result(plan, Raw(msgspec.json.encode(result)))


def summary_failed(plan: SummaryPlan, reason: str) -> ToolResultPart:
    """Shown, never stored: a viewer must not wait for a summary that does not come."""
    failed = _result(plan, Raw(msgspec.json.encode({"error": replace_surrogates(reason)})))
    return msgspec.structs.replace(failed, is_error=True)


def _result(plan: SummaryPlan, result: Raw) -> ToolResultPart:
    return ToolResultPart(tool_call_id=plan.call_id, tool_name=SUMMARY_TOOL_NAME, result=result)


def summary_rows(
    plan: SummaryPlan, summary: str, call: ModelCallRecord, answer: Answer
) -> tuple[Draft, ...]:
    """The summary for the model, as the user's: some providers want at least one message that
    is not the system's. Then the call and its result, which people see."""
    told = Draft(
        role="user",
        content=(TextPart(text=SUMMARY_PREFIX + summary),),
        visibility="model",
        compressed=True,
    )
    asked = Draft(
        role="assistant",
        content=(summary_call(plan),),
        visibility="user",
        compressed=True,
        model_config_id=call.config.id,
        usage=answer.usage,
        cost_micros=cost_micros(answer.usage, call.config.prices),
        runtime_ms=call.runtime_ms,
    )
    shown = Draft(role="tool", content=(summary_result(plan, summary),), compressed=True)
    return (told, asked, shown)


def strictest_limit(*limits: int | None) -> int | None:
    """Of the chat's model and the one that writes summaries, the smaller context counts."""
    known = [limit for limit in limits if limit is not None and limit > 0]
    return min(known, default=None)
