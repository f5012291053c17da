"""Notices: what chatd itself tells the people who read a chat, as messages of its history.

A notice is no part of the conversation: the model never gets it, and it neither starts nor ends a
turn nor counts as a step. It is one of the messages of the step or of the change that it tells
about, before or after the others, so that it is committed with it and said exactly once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from chatd.domain.chat.messages import Draft, Message
from chatd.domain.chat.parts import NoticePart
from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.text import replace_surrogates

NoticeCode = Literal[
    "step_limit",
    "stopped",
    "empty_answer",
    "model_stream_cut",
    "model_replaced",
    "effort_not_sent",
    "summary_failed",
    "results_cleared",
    "calls_over_limit",
    "imported",
    "imported_prompt",
]
NOTICE_CODES: Final[frozenset[str]] = frozenset(get_args(NoticeCode))
CONTINUABLE_NOTICES: Final = frozenset({"step_limit", "empty_answer", "model_stream_cut"})
"""Codes of notices that tell why a turn ended early: a user may send the chat on."""


def notice_draft(code: NoticeCode, text: str, detail: Mapping[str, str] | None = None) -> Draft:
    part = NoticePart(
        code=code,
        text=replace_surrogates(text),
        detail={name: replace_surrogates(value) for name, value in (detail or {}).items()},
    )
    return Draft(role="system", content=(part,), visibility="user")


def step_limit_notice(steps: int) -> Draft:
    text = f"The turn ended after {steps:,} steps, its limit. The task may not be complete."
    return notice_draft("step_limit", text, {"steps": str(steps)})


def stopped_notice() -> Draft:
    text = "Stopped by you, before the next step. What was done is kept."
    return notice_draft("stopped", text)


def empty_answer_notice(*, has_reasoning: bool) -> Draft:
    end = ", after reasoning only." if has_reasoning else "."
    return notice_draft("empty_answer", f"The model ended the turn without an answer{end}")


def ends_early(message: Draft | PublicMessage) -> bool:
    """Whether it is a notice that tells why the turn ended early."""
    codes = (part.code for part in message.content if isinstance(part, NoticePart))
    return message.role == "system" and any(code in CONTINUABLE_NOTICES for code in codes)


def is_stop(message: Draft | PublicMessage) -> bool:
    """Whether it is the notice that the turn was stopped between two steps."""
    parts = (part for part in message.content if isinstance(part, NoticePart))
    return message.role == "system" and any(part.code == "stopped" for part in parts)


def early_end(drafts: Iterable[Draft | PublicMessage]) -> NoticePart | None:
    """The notice among these messages that tells why their turn ended early."""
    notices = (part for draft in drafts if ends_early(draft) for part in draft.content)
    return next((part for part in notices if isinstance(part, NoticePart)), None)


def has_notice(
    history: Sequence[Message], code: str, detail: Mapping[str, str] | None = None
) -> bool:
    """Whether the current turn has this notice already, with these facts if `detail` is given."""
    for row in reversed(history):
        if row.deleted:
            continue
        if row.starts_turn:
            return False
        for part in row.content if row.is_notice else ():
            if isinstance(part, NoticePart) and _is_same(part, code, detail or {}):
                return True
    return False


def _is_same(part: NoticePart, code: str, detail: Mapping[str, str]) -> bool:
    return part.code == code and detail.items() <= part.detail.items()
