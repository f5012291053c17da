"""Asking for a summary, and what it leaves in history.

Owns the request, the words of it and the three rows. Does not own when a summary is due or what
it hides: that is `compaction`.
"""

from typing import Final, Literal
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.answer import Answer
from chatd.domain.compaction import Fill
from chatd.domain.cost import cost_micros
from chatd.domain.heal import heal_text
from chatd.domain.ids import ToolCallId
from chatd.domain.messages import Draft
from chatd.domain.model import ModelRequest, PromptMessage, PromptText
from chatd.domain.parts import Text, ToolCall, ToolResult
from chatd.domain.step_rows import Call

TOOL: Final = "chat_summarized"

INSTRUCTION: Final = """\
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

PREFIX: Final = """\
The chat so far has been condensed into the summary below. Continue the work from where it stops, \
as if there had been no break; do not comment on the summary.

"""


class Plan(Struct, frozen=True, kw_only=True):
    """A summary about to be made. The id is made up front: what viewers are shown while it is
    made and what is stored afterwards then belong together."""

    call_id: ToolCallId
    source: Literal["auto", "manual"]
    threshold: int
    fill: Fill


def call_id(unique: UUID) -> ToolCallId:
    return ToolCallId(f"{TOOL}_{unique.hex}")


def summary_request(request: ModelRequest, hint: str | None = None) -> ModelRequest:
    """The next request of the chat, asked for a summary instead. The tools stay, because the
    conversation holds calls of them and begins in the cache with them; none may be called."""
    text = INSTRUCTION if not hint else f"{INSTRUCTION}\n\n{hint}"
    ask = PromptMessage(role="user", parts=(PromptText(text=text),))
    return msgspec.structs.replace(
        request,
        messages=(*request.messages, ask),
        tool_choice="none",
        max_output_tokens=None,
    )


def summary_text(answer: Answer) -> str | None:
    """None: the model has not written any."""
    pieces = [part.text.strip() for part in answer.content if isinstance(part, Text)]
    return heal_text(" ".join(piece for piece in pieces if piece)) or None


def summary_call(plan: Plan) -> ToolCall:
    """Shown when the summary is begun, stored when it is done."""
    args = {"source": plan.source, "threshold_percent": plan.threshold}
    return ToolCall(tool_call_id=plan.call_id, tool_name=TOOL, args=Raw(msgspec.json.encode(args)))


def summary_result(plan: Plan, summary: str) -> ToolResult:
    result = {
        "summary": summary,
        "source": plan.source,
        "threshold_percent": plan.threshold,
        "usage_percent": plan.fill.percent,
        "context_tokens": plan.fill.tokens,
        "context_limit_tokens": plan.fill.limit,
    }
    return _result(plan, Raw(msgspec.json.encode(result)))


def summary_failed(plan: Plan, reason: str) -> ToolResult:
    """Shown, never stored: a viewer must not wait for a summary that does not come."""
    failed = _result(plan, Raw(msgspec.json.encode({"error": heal_text(reason)})))
    return msgspec.structs.replace(failed, is_error=True)


def _result(plan: Plan, result: Raw) -> ToolResult:
    return ToolResult(tool_call_id=plan.call_id, tool_name=TOOL, result=result)


def summary_rows(plan: Plan, summary: str, call: Call, answer: Answer) -> tuple[Draft, ...]:
    """The summary for the model, as the user's: some providers want at least one message that
    is not the system's. Then the call and its result, which people see."""
    told = Draft(
        role="user",
        content=(Text(text=PREFIX + summary),),
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
