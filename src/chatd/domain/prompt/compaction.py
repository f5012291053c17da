"""Compaction: when a chat's context is too full, the summary request, and which rows remain.

A compaction appends three compressed rows: the summary as a user message that only the model
sees (the boundary), and a tool call with its result for viewers. The boundary says which of the
messages before it stay: the newest ones and the user's last message. `kept_rows` chooses them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.answer.answer import Answer, ModelCallRecord, RejectAnswer, judge_answer
from chatd.domain.chat.messages import (
    Draft,
    Message,
    TokenUsage,
    has_notice,
    local_calls,
    notice_draft,
)
from chatd.domain.chat.parts import (
    SUMMARY_PREFIX,
    SUMMARY_TOOL_NAME,
    BoundaryPart,
    ContextFilePart,
    NoticePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.row import ChatError
from chatd.domain.ids import ModelConfigId, ToolCallId
from chatd.domain.model.config import cost_micros
from chatd.domain.model.failures import (
    ClassifiedFailure,
    FailureKind,
    clip_detail,
    known_failure,
)
from chatd.domain.model.protocol import ModelRequest, PromptMessage, PromptText
from chatd.domain.text import replace_surrogates

DEFAULT_THRESHOLD_PERCENT: Final = 70
DEFAULT_CEILING_TOKENS: Final = 200_000
"""A larger prompt is summarized however large the window is: every step pays for all of it, and
models read long prompts less well."""

FULL_PERCENT: Final = 95
"""Percent of the context window: an answer hardly fits into the rest. Only a chat this full must
not continue without a summary."""

MAX_FAILED_SUMMARIES: Final = 3
"""Failures since the last summary. Each costs a model call with the whole chat; after this many,
none is tried before the window is full or a user asks for one."""

CACHE_LIFETIME_S: Final = 300.0
"""The shortest time for which a vendor keeps the prompt of a call in its cache."""

SUMMARY_FAILED: Final = "summary_failed"

Status = Literal["none", "needed", "still_over_limit"]


class ContextFill(Struct, frozen=True, kw_only=True):
    """How much of the context window the latest step used. Unknown numbers are 0."""

    tokens: int = 0
    limit: int = 0

    @property
    def percent(self) -> int:
        return self.tokens * 100 // self.limit if self.limit > 0 else 0

    def reaches(self, threshold: int) -> bool:
        known = self.tokens > 0 and self.limit > 0
        return known and self.tokens * 100 >= threshold * self.limit

    @property
    def is_full(self) -> bool:
        return self.reaches(FULL_PERCENT)


def find_boundary(history: Sequence[Message]) -> Message | None:
    """The newest summary. The tool result for viewers is compressed too, but only a row with
    visibility `model` is a boundary."""
    summaries = (
        row for row in history if row.compressed and not row.deleted and row.visibility == "model"
    )
    return max(summaries, key=lambda row: row.id, default=None)


class PromptRows(Struct, frozen=True, kw_only=True):
    """What the model sees: system rows, the newest summary, the user message that it keeps, and
    the rows after those that the summary replaces. `first_id` is the id of the first of these."""

    system: list[Message]
    boundary: Message | None
    prompt: Message | None
    rows: list[Message]
    first_id: int

    @property
    def answers(self) -> list[Message]:
        """The answers since the summary. Those that it keeps had a longer prompt."""
        after = 0 if self.boundary is None else self.boundary.id
        return [row for row in self.rows if row.role == "assistant" and row.id > after]


def select_rows(history: Sequence[Message]) -> PromptRows:
    boundary = find_boundary(history)
    live = sorted((row for row in history if not row.deleted), key=lambda row: row.id)
    mark = BoundaryPart() if boundary is None else _read_mark(boundary)
    older = [row for row in live if boundary is not None and row.id < boundary.id]
    first_id = 0 if boundary is None else boundary.id
    if mark.kept > 0 and older:
        first_id = older[-mark.kept :][0].id
    prompts = (row for row in reversed(older) if row.starts_turn and row.id < first_id)
    shown = [row for row in live if not row.compressed and row.visibility != "user"]
    return PromptRows(
        system=[row for row in shown if row.role == "system"],
        boundary=boundary,
        prompt=next(prompts, None) if mark.keeps_prompt else None,
        rows=[row for row in shown if row.role != "system" and row.id >= first_id],
        first_id=first_id,
    )


def _read_mark(boundary: Message) -> BoundaryPart:
    """A summary by an earlier version of chatd has no mark: it replaces everything before it."""
    marks = (part for part in boundary.content if isinstance(part, BoundaryPart))
    return next(marks, BoundaryPart())


def rows_for_prompt(history: Sequence[Message]) -> list[Message]:
    """The rows the model sees, by id, but the summary and the user message that it keeps before
    the rows that follow them in the prompt."""
    chosen = select_rows(history)
    front = (row for row in (chosen.boundary, chosen.prompt) if row is not None)
    before = [row for row in chosen.system if row.id < chosen.first_id]
    after = [*chosen.rows, *(row for row in chosen.system if row.id >= chosen.first_id)]
    return [*before, *front, *sorted(after, key=lambda row: row.id)]


def is_compactable(history: Sequence[Message]) -> bool:
    """Whether the model has answered since the last summary, or that summary keeps messages. They
    may be too long: one more summary, which keeps nothing, makes room."""
    chosen = select_rows(history)
    keeps = chosen.boundary is not None and _read_mark(chosen.boundary) != BoundaryPart()
    return keeps or bool(chosen.answers)


def measure_fill(history: Sequence[Message], limit: int | None) -> ContextFill:
    """The fill at the newest answer with usage that the provider reported; if it reported none
    since the summary, at the newest estimate. A limit that it reported with that answer takes
    precedence over the configured one."""
    row = _measured(select_rows(history).answers)
    if row is None:
        return ContextFill(limit=max(limit or 0, 0))
    reported = row.usage.context_limit if row.usage is not None else None
    return ContextFill(tokens=_context_tokens(row.usage), limit=max(reported or limit or 0, 0))


def cached_usage(
    history: Sequence[Message], model_id: ModelConfigId | None, now: datetime
) -> TokenUsage | None:
    """The usage of the newest answer, if the next call begins with its prompt and the provider
    still has that in its cache."""
    row = next(reversed(select_rows(history).answers), None)
    if row is None or row.usage is None or row.usage.estimated or row.model_config_id != model_id:
        return None
    age_s = (now - row.created_at).total_seconds()
    return row.usage if age_s < CACHE_LIFETIME_S else None


def _measured(answers: Sequence[Message]) -> Message | None:
    counted = [row for row in answers if _context_tokens(row.usage) > 0]
    told = [row for row in counted if row.usage is not None and not row.usage.estimated]
    return (told or counted or [None])[-1]


def _context_tokens(usage: TokenUsage | None) -> int:
    if usage is None:
        return 0
    if usage.context_tokens is not None:
        return usage.context_tokens
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens
    return read or usage.total_tokens


def effective_threshold(percent: int) -> int:
    return percent if 0 <= percent <= 100 else DEFAULT_THRESHOLD_PERCENT


def compaction_status(
    history: Sequence[Message],
    limit: int | None,
    threshold: int,
    ceiling: int = DEFAULT_CEILING_TOKENS,
) -> Status:
    """Needed from `threshold` percent of the window, or from `ceiling` tokens (0: no ceiling). A
    threshold of 100 turns compaction off.

    If the first answer after a summary is over the threshold, another summary helps little: the
    system prompt, the tools and the summary alone are too long. The chat goes on while the window
    has room.
    """
    fill = measure_fill(history, limit)
    due = trigger_tokens(fill.limit, threshold, ceiling)
    if due is None or fill.tokens == 0 or fill.tokens < due:
        return "none"
    if find_boundary(history) is None:
        return "needed"
    usage = select_rows(history).answers[0].usage
    tokens = _context_tokens(usage)
    if tokens >= due and not fill.is_full:
        return "none"
    if not ContextFill(tokens=tokens, limit=fill.limit).is_full:
        return "needed"
    # An estimate may be wrong, and the limit may be larger by now, by its setting or with another
    # model: the provider then says whether the prompt fits.
    now = max(limit or 0, fill.limit)
    is_told = usage is None or not usage.estimated
    is_over = is_told and ContextFill(tokens=tokens, limit=now).is_full
    return "still_over_limit" if is_over else "none"


def trigger_tokens(limit: int | None, threshold: int, ceiling: int) -> int | None:
    """The number of tokens at which a chat is summarized. None: never."""
    percent = effective_threshold(threshold)
    if percent == 100:
        return None
    share = None if limit is None or limit <= 0 else -(-percent * limit // 100)
    return min((each for each in (share, ceiling or None) if each is not None), default=None)


def may_try_summary(history: Sequence[Message], fill: ContextFill) -> bool:
    """False after a summary has failed in this turn, or too often since the last one, while the
    window has room: the chat goes on without. A full window is always worth a try, because the
    turn fails otherwise."""
    if fill.is_full:
        return True
    boundary = find_boundary(history)
    after = 0 if boundary is None else boundary.id
    codes = (p.code for r in history if r.id > after and not r.deleted for p in _notices(r))
    failed = sum(code == SUMMARY_FAILED for code in codes)
    return failed < MAX_FAILED_SUMMARIES and not has_notice(history, SUMMARY_FAILED)


def _notices(row: Message) -> list[NoticePart]:
    return [part for part in row.content if isinstance(part, NoticePart)] if row.is_notice else []


def summary_failed_notice(failed: ClassifiedFailure, source: Literal["auto", "manual"]) -> Draft:
    text = "The summary of this chat could not be written"
    reason = failed.error.message
    if source == "manual":
        text = f"{text}: {reason} The chat is as it was; you can go on or ask for a summary again."
    else:
        text = f"{text}: {reason} The chat goes on without it while the context window has room."
    detail = {"kind": failed.kind}
    if failed.error.detail:
        detail["detail"] = failed.error.detail
    return notice_draft(SUMMARY_FAILED, text, detail)


def summary_failed_error(failed: ClassifiedFailure) -> ChatError:
    """The window is full, so that the turn cannot go on without the summary."""
    reasons = (failed.error.message, failed.error.detail)
    return ChatError(
        kind=SUMMARY_FAILED,
        message="The context window is full, and the summary that would make room could not be"
        " written. Send a message to try again, choose a model with a larger window, or start a"
        " new chat.",
        detail=clip_detail(" ".join(reason for reason in reasons if reason)),
        provider=failed.error.provider,
        status_code=failed.error.status_code,
    )


SUMMARY_INSTRUCTION: Final = """\
Write a summary of everything above. It will replace the chat: the model that continues sees \
nothing else but the user's last message and the latest few steps, which may follow it word for \
word, and must be able to continue exactly where things stand. Do not call any tool and do not \
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
Next: the action that was under way when this was requested, in enough detail to continue it.

Be dense and exact. No introduction, no praise, no filler. Leave out a heading that has nothing."""

MIN_SUMMARY_TOKENS: Final = 8192


class SummaryPlan(Struct, frozen=True, kw_only=True):
    """A summary to be written. Its call id is chosen in advance, so that the live part shown during
    the call and the stored row have the same id."""

    call_id: ToolCallId
    source: Literal["auto", "manual"]
    threshold: int
    fill: ContextFill


def summary_call_id(unique: UUID) -> ToolCallId:
    return ToolCallId(f"{SUMMARY_TOOL_NAME}_{unique.hex}")


def summary_request(request: ModelRequest, hint: str | None = None) -> ModelRequest:
    """The chat's next request, continued by the question for a summary. All else stays, because
    the provider's cache depends on it: the tools, that they may be called, and the output limit,
    from which a thinking budget follows. Only a very low limit is raised."""
    text = SUMMARY_INSTRUCTION if not hint else f"{SUMMARY_INSTRUCTION}\n\n{hint}"
    instruction = PromptMessage(role="user", parts=(PromptText(text=text),))
    limit = request.max_output_tokens
    return msgspec.structs.replace(
        request,
        messages=(*request.messages, instruction),
        max_output_tokens=None if limit is None else max(limit, MIN_SUMMARY_TOKENS),
    )


_FILTERED: Final[Mapping[str, FailureKind]] = {
    "content-filter": "content_filter",
    "refusal": "refusal",
}


def read_summary(answer: Answer, provider: str) -> str | ClassifiedFailure:
    """The summary's text. A failure if there is none, if a filter cut it, or if the model went on
    with the work and called a tool."""
    judged = judge_answer(answer, provider)
    if isinstance(judged, RejectAnswer):
        return judged.failure
    reason = "" if answer.finished is None else answer.finished.reason
    if reason in _FILTERED:
        return known_failure(_FILTERED[reason], provider)
    if local_calls(answer.content):
        called = "The model called a tool instead of writing the summary."
        return known_failure("generic", provider, detail=called)
    pieces = [part.text.strip() for part in answer.content if isinstance(part, TextPart)]
    text = replace_surrogates(" ".join(piece for piece in pieces if piece))
    return text or known_failure("generic", provider, detail="The summary was empty.")


def summary_call(plan: SummaryPlan) -> ToolCallPart:
    """Shown when the model starts the summary, stored when it is complete."""
    args = {"source": plan.source, "threshold_percent": plan.threshold}
    return ToolCallPart(
        tool_call_id=plan.call_id, tool_name=SUMMARY_TOOL_NAME, args=Raw(msgspec.json.encode(args))
    )


class Kept(Struct, frozen=True, kw_only=True):
    """The messages that stay next to a summary. `mark` records them in the boundary; `messages` and
    `tokens` count what the model gets of them."""

    mark: BoundaryPart = BoundaryPart()
    messages: int = 0
    tokens: int = 0


NOTHING_KEPT: Final = Kept()


def summary_result(plan: SummaryPlan, summary: str, kept: Kept = NOTHING_KEPT) -> ToolResultPart:
    result = {
        "summary": summary,
        "source": plan.source,
        "threshold_percent": plan.threshold,
        "usage_percent": plan.fill.percent,
        "context_tokens": plan.fill.tokens,
        "context_limit_tokens": plan.fill.limit,
        "kept_messages": kept.messages,
        "kept_tokens": kept.tokens,
    }
    return _result(plan, Raw(msgspec.json.encode(result)))


def summary_failed(plan: SummaryPlan, reason: str) -> ToolResultPart:
    """Shown, never stored: it tells viewers that the summary failed."""
    failed = _result(plan, Raw(msgspec.json.encode({"error": replace_surrogates(reason)})))
    return msgspec.structs.replace(failed, is_error=True)


def _result(plan: SummaryPlan, result: Raw) -> ToolResultPart:
    return ToolResultPart(tool_call_id=plan.call_id, tool_name=SUMMARY_TOOL_NAME, result=result)


def summary_rows(
    plan: SummaryPlan,
    summary: str,
    call: ModelCallRecord,
    answer: Answer,
    files: Sequence[ContextFilePart] = (),
    *,
    kept: Kept = NOTHING_KEPT,
) -> tuple[Draft, ...]:
    """The summary for the model, as a user message because some providers require one that is not
    the system's. `files` is the workspace context that it hides and that still applies. Then the
    call and its result for viewers."""
    mark = () if kept.mark == BoundaryPart() else (kept.mark,)
    boundary = Draft(
        role="user",
        content=(TextPart(text=SUMMARY_PREFIX + summary), *files, *mark),
        visibility="model",
        compressed=True,
    )
    shown_call = Draft(
        role="assistant",
        content=(summary_call(plan),),
        visibility="user",
        compressed=True,
        model_config_id=call.config.id,
        usage=answer.usage,
        cost_micros=cost_micros(answer.usage, call.config.prices),
        runtime_ms=call.runtime_ms,
    )
    shown_result = Draft(
        role="tool", content=(summary_result(plan, summary, kept),), compressed=True
    )
    return (boundary, shown_call, shown_result)


def newest_context(history: Sequence[Message], kept: Kept = NOTHING_KEPT) -> list[ContextFilePart]:
    """The files of the newest workspace, each as it was last given, without those in messages that
    stay next to the summary."""
    live = sorted(row.id for row in history if not row.deleted)
    stay = frozenset(live[-kept.mark.kept :] if kept.mark.kept else ())
    rows = rows_for_prompt(history)
    given = [(part, row.id in stay) for row in rows for part in _context_files(row)]
    agent = given[-1][0].context_file_agent_id if given else None
    newest = {
        file.context_file_path: (file, stays)
        for file, stays in given
        if file.context_file_agent_id == agent
    }
    return [file for file, stays in newest.values() if not stays]


def _context_files(row: Message) -> list[ContextFilePart]:
    return [part for part in row.content if isinstance(part, ContextFilePart)]


def strictest_limit(*limits: int | None) -> int | None:
    """The smallest known context limit of the chat's model and the one that writes summaries."""
    known = [limit for limit in limits if limit is not None and limit > 0]
    return min(known, default=None)
