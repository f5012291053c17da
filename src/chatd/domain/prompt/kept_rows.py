"""What stays of a long chat: the newest messages next to a summary, and the first lines of old tool
results.

Both choices are made from committed history and stored in it (`BoundaryPart`, a notice), so that
every worker builds the same prompt from it. Sizes are estimates.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from chatd.domain.chat.messages import Draft, Message, local_calls, local_results, notice_draft
from chatd.domain.chat.parts import BoundaryPart, FilePart, NoticePart, Part, ToolResultPart
from chatd.domain.computer_use import COMPUTER_TOOL
from chatd.domain.ids import MessageId, ToolCallId
from chatd.domain.model.config import LearnedLimit
from chatd.domain.model.protocol import PromptResult
from chatd.domain.model.usage import BYTES_PER_TOKEN, IMAGE_TOKENS, utf8_size
from chatd.domain.prompt.compaction import (
    DEFAULT_CEILING_TOKENS,
    DEFAULT_THRESHOLD_PERCENT,
    NOTHING_KEPT,
    ContextFill,
    Kept,
    select_rows,
    trigger_tokens,
)

DEFAULT_KEPT_TOKENS: Final = 20_000
DEFAULT_CLEAR_STEPS: Final = 20

KEPT_SHARE: Final = 4
"""At most a quarter of the prompt stays next to a summary, and half of it as the user's message:
otherwise a short chat would not get shorter."""
PROMPT_SHARE: Final = 2

RESULTS_CLEARED: Final = "results_cleared"
CLEAR_FROM_PERCENT: Final = 75
"""Percent of the tokens at which the chat is summarized: earlier, clearing costs more of the
provider's cache than it saves."""
MIN_CLEARED_PERCENT: Final = 20
"""Percent of the prompt: clearing less does not pay for losing the provider's cache."""
LARGE_RESULT_TOKENS: Final = 500
CLEARED_CHARS: Final = 400

_LONG_FIELDS: Final = ("text", "args", "result", "content", "context_file_content")
_PART_BYTES: Final = 16


class CompactionLimits(Struct, frozen=True, kw_only=True):
    """`ceiling_tokens`: a longer prompt is summarized in any window; 0: no ceiling. `kept_tokens`
    stay next to a summary. Old results are cleared at most once in `clear_steps` steps; 0:
    never."""

    ceiling_tokens: int = DEFAULT_CEILING_TOKENS
    kept_tokens: int = DEFAULT_KEPT_TOKENS
    clear_steps: int = DEFAULT_CLEAR_STEPS


def below_bound(
    limits: CompactionLimits, learned: LearnedLimit | None, threshold: int
) -> CompactionLimits:
    """The ceiling for a model whose window is only known to be smaller than a request that it
    refused: the threshold's share of that request."""
    if learned is None or not learned.is_bound:
        return limits
    due = trigger_tokens(learned.tokens, threshold, limits.ceiling_tokens)
    return limits if due is None else replace(limits, ceiling_tokens=due)


def choose_kept(history: Sequence[Message], kept_tokens: int, halvings: int = 0) -> Kept:
    """The newest messages that fit `kept_tokens` and a quarter of the prompt, and the user's last
    message if it lies before them. A call and its result are never separated, nor is a paused
    answer from its continuation. `halvings`: how often the prompt was halved until the provider
    accepted it. A message with a file stays only if the file surely fits. Nothing stays if no
    answer follows the last summary: what that one kept may be too long."""
    chosen = select_rows(history)
    if chosen.boundary is not None and not chosen.answers:
        return NOTHING_KEPT
    cleared = find_cleared(history)
    sizes = [row_tokens(row, cleared) for row in chosen.rows]
    total = sum(sizes) >> halvings
    budget, start, used, size = min(kept_tokens, total // KEPT_SHARE), len(sizes), 0, 0
    inseparable = _inseparable(chosen.rows)
    for index in range(len(sizes) - 1, -1, -1):
        size += sizes[index]
        if size > budget or _has_unfit_file(chosen.rows[index], halvings):
            break
        if index not in inseparable:
            start, used = index, size
    tail = chosen.rows[start:]
    prompt = _newest_prompt(chosen.rows[:start], chosen.prompt)
    if any(row.starts_turn for row in tail):
        prompt = None
    if prompt is not None:
        size = row_tokens(prompt, cleared)
        fits = size <= min(kept_tokens, total // PROMPT_SHARE)
        prompt = prompt if fits and not _has_unfit_file(prompt, halvings) else None
        used += 0 if prompt is None else size
    count = sum(not row.deleted and row.id >= tail[0].id for row in history) if tail else 0
    return Kept(
        mark=BoundaryPart(kept=count, keeps_prompt=prompt is not None),
        messages=len(tail) + (prompt is not None),
        tokens=used,
    )


def _newest_prompt(rows: Sequence[Message], earlier: Message | None) -> Message | None:
    """`earlier` is the message that the last summary kept."""
    return next((row for row in reversed(rows) if row.starts_turn), earlier)


def _has_unfit_file(row: Message, halvings: int) -> bool:
    """Whether a file may not fit: one of unknown size that is not an image or, after an overflow,
    any file. Files in an answer are not sent."""
    if row.role == "assistant":
        return False
    if halvings > 0 and any(isinstance(p, ToolResultPart) and p.is_media for p in row.content):
        return True
    files = [part for part in row.content if isinstance(part, FilePart)]
    return any(halvings > 0 or (f.data is None and not _is_image(f)) for f in files)


def _is_image(file: FilePart) -> bool:
    return file.media_type.strip().lower().startswith("image/")


def _inseparable(rows: Sequence[Message]) -> frozenset[int]:
    """The indexes at which the rows must not be cut."""
    joined = set[int]()
    called: dict[ToolCallId, int] = {}
    for index, row in enumerate(rows):
        if index and rows[index - 1].finish_reason == "pause":
            joined.add(index)
        called.update((call.tool_call_id, index) for call in local_calls(row.content))
        for result in local_results(row.content):
            joined.update(range(called.get(result.tool_call_id, index) + 1, index + 1))
    return frozenset(joined)


class ClearedResults(Struct, frozen=True, kw_only=True):
    """The model gets only the first `kept_chars` characters of large results in messages before
    `before_id`."""

    before_id: int = 0
    marked_id: int = 0
    over_tokens: int = LARGE_RESULT_TOKENS
    kept_chars: int = CLEARED_CHARS

    def covers(self, row_id: MessageId, part: ToolResultPart) -> bool:
        if row_id >= self.before_id or part.provider_executed:
            return False
        return _part_tokens(part) > self.over_tokens


NOTHING_CLEARED: Final = ClearedResults()

# Screenshots: an agent at a desktop gets one with every step, and acts on the newest. A prompt that
# lost one with every step would never be in the provider's cache; so they leave it in batches.

KEPT_SCREENSHOTS: Final = 3
"""At least this many of the newest stay in the prompt."""
SCREENSHOT_BATCH: Final = 10
"""This many leave the prompt at once, so the provider's cache is lost only once in as many
steps."""


def find_old_screenshots(rows: Sequence[Message]) -> frozenset[ToolCallId]:
    """The calls whose screenshots the prompt of these rows does not have."""
    taken = [
        part.tool_call_id
        for row in rows
        if row.role == "tool"
        for part in local_results(row.content)
        if part.tool_name == COMPUTER_TOOL and part.is_media and not part.is_error
    ]
    batches = max(len(taken) - KEPT_SCREENSHOTS, 0) // SCREENSHOT_BATCH
    return frozenset(taken[: batches * SCREENSHOT_BATCH])


def find_cleared(history: Sequence[Message]) -> ClearedResults:
    """What the newest notice says. It counts back from itself, as a `BoundaryPart` does."""
    marked = [
        (row.id, part.detail)
        for row in history
        if row.is_notice and not row.deleted
        for part in row.content
        if isinstance(part, NoticePart) and part.code == RESULTS_CLEARED
    ]
    if not marked:
        return NOTHING_CLEARED
    marked_id, detail = max(marked, key=lambda each: each[0])
    older = sorted(row.id for row in history if not row.deleted and row.id < marked_id)
    kept = _number(detail, "kept_messages", 0)
    return ClearedResults(
        before_id=older[-kept:][0] if kept and older else marked_id,
        marked_id=marked_id,
        over_tokens=_number(detail, "over_tokens", LARGE_RESULT_TOKENS),
        kept_chars=_number(detail, "kept_chars", CLEARED_CHARS),
    )


def _number(detail: Mapping[str, str], name: str, otherwise: int) -> int:
    text = detail.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else otherwise


def clear_results(
    history: Sequence[Message],
    fill: ContextFill,
    rules: CompactionLimits,
    threshold: int = DEFAULT_THRESHOLD_PERCENT,
) -> Draft | None:
    """The notice by which the large results before the newest messages are cleared, if that saves
    much shortly before a summary is needed. None: nothing is cleared now."""
    due = trigger_tokens(fill.limit, threshold, rules.ceiling_tokens)
    if rules.clear_steps <= 0 or due is None or fill.tokens * 100 < due * CLEAR_FROM_PERCENT:
        return None
    rows, cleared = select_rows(history).rows, find_cleared(history)
    answers = [row.id for row in rows if row.role == "assistant"]
    live = sorted(row.id for row in history if not row.deleted)
    if not answers:
        return None
    # The model has not read the results of its newest calls.
    newest = sum(each >= answers[-1] for each in live)
    kept = max(choose_kept(history, rules.kept_tokens).mark.kept, newest)
    now = ClearedResults(before_id=live[-kept])
    saved = [
        _part_tokens(part) - CLEARED_CHARS // BYTES_PER_TOKEN
        for row in rows
        for part in _results(row)
        if now.covers(row.id, part) and not cleared.covers(row.id, part)
    ]
    steps = sum(each > cleared.marked_id for each in answers)
    is_early = cleared is not NOTHING_CLEARED and steps < rules.clear_steps
    if is_early or not saved or sum(saved) * 100 < fill.tokens * MIN_CLEARED_PERCENT:
        return None
    numbers = {
        "results": len(saved),
        "tokens": sum(saved),
        "kept_messages": kept,
        "over_tokens": LARGE_RESULT_TOKENS,
        "kept_chars": CLEARED_CHARS,
    }
    text = (
        f"{len(saved)} old tool results, about {sum(saved):,} tokens, were shortened for the model"
        " to their first lines. It can call the tools again. You still see them in full."
    )
    return notice_draft(RESULTS_CLEARED, text, {name: str(n) for name, n in numbers.items()})


def count_cleared(drafts: Sequence[Draft]) -> tuple[int, int] | None:
    """The results and tokens that a notice among these clears."""
    for part in (part for draft in drafts for part in draft.content):
        if isinstance(part, NoticePart) and part.code == RESULTS_CLEARED:
            return _number(part.detail, "results", 0), _number(part.detail, "tokens", 0)
    return None


def _results(row: Message) -> list[ToolResultPart]:
    """Results of tool rows only: results in a user's message are the client's own."""
    return local_results(row.content) if row.role == "tool" else []


def shorten_result(result: PromptResult, kept_chars: int) -> PromptResult:
    """The first lines of a cleared result, without its file."""
    head = result.text[:kept_chars]
    if len(head) < len(result.text) and "\n" in head:
        head = head[: head.rindex("\n")]
    missing = len(result.text) - len(head)
    what = f"{missing} more characters" if result.media is None else "its file"
    note = f"[Removed to save context: {what}. Call the tool again if you need it.]"
    return replace(result, text=f"{head}\n{note}" if head else note, media=None)


def drop_screenshot(result: PromptResult) -> PromptResult:
    note = "[An old screenshot was here.]"
    return replace(result, text=f"{result.text}\n{note}" if result.text else note, media=None)


def row_tokens(row: Message, cleared: ClearedResults = NOTHING_CLEARED) -> int:
    """Estimate the message's tokens in a prompt."""
    is_tool = row.role == "tool"
    return sum(
        cleared.kept_chars // BYTES_PER_TOKEN
        if is_tool and isinstance(part, ToolResultPart) and cleared.covers(row.id, part)
        else _part_tokens(part)
        for part in row.content
    )


def _part_tokens(part: Part) -> int:
    if isinstance(part, FilePart) and part.data is not None and not _is_image(part):
        return -(-len(part.data) * 3 // (4 * BYTES_PER_TOKEN))  # The data is base64.
    if isinstance(part, FilePart) or (isinstance(part, ToolResultPart) and part.is_media):
        return IMAGE_TOKENS
    size = _PART_BYTES
    for name in _LONG_FIELDS:
        match getattr(part, name, UNSET):
            case str() as text:
                size += utf8_size(text)
            case Raw() as raw:
                size += memoryview(raw).nbytes
            case _:
                pass
    return -(-size // BYTES_PER_TOKEN)
