"""Links that answer one call once: what is told of a call outside of the page, and which call a
link is for.

A notification and the page of such a link are read by people who have not opened the chat, perhaps
on a locked screen, so they have the call in plain words and without what looks like a secret.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Literal, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.chat.call_waits import call_fingerprint, wait_of, waiting_calls
from chatd.domain.chat.messages import PendingCall
from chatd.domain.chat.row import Chat
from chatd.domain.description import describe
from chatd.domain.ids import ChatId, ToolCallId, UserId
from chatd.domain.model.failures import redact_urls
from chatd.domain.text import clip, parse_json

ANSWER_PATH: Final = "/answer"
"""The page of a link. The secret follows as the fragment, which browsers do not send."""
ANSWER_LINK_LIFETIME_S: Final = 3600
"""Of a link, unless the call expires before."""
MAX_LINKED_CALL_CHARS: Final = 2000
"""A longer call has no link: a person must see all of what runs."""
MAX_TOLD_CALL_CHARS: Final = 4000
"""Of a call that is looked through for secrets: the time grows with the square of it."""
HIDDEN: Final = "[hidden]"
COMMAND_TOOL: Final = "execute"
"""Its description of a command does nothing. Other tools may do something with theirs."""
_PURPOSE: Final = "answer link"
_PATHS: Final = ("path", "file_path", "url", "query", "name")
"""Arguments that say most of a call, in this order."""

_ASSIGNED: Final = re.compile(
    r"""(?ix) ( (?<![\w.-]) [\w.-]* (?:
                    password | passwd | secret | token | api[_-]?key | access[_-]?key
                          | private[_-]?key | credential | authorization | cookie ) [\w.-]* ["']?
                (?: \s*[=:]\s* | \s+ ) )
        ( (?: bearer | basic | token ) \s+ )? ( "[^"]*" | '[^']*' | [^\s"'&|;,)}]+ )"""
)
_USER: Final = re.compile(
    r"""(?x) (\s (?: -u | --user ) (?: \s+ | =) ) ( "[^"]*" | '[^']*' | \S+ )"""
)
_OPAQUE: Final = re.compile(
    r"\b(?:gh[opsu]_|github_pat_|glpat-|xox[abprs]-|ey[JK])[A-Za-z0-9_\-.]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.DOTALL,
)

_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
)
"""Python calls them printable, but they show nothing."""

LinkDecision = Literal["approve", "deny"]


class CallText(Struct, frozen=True, kw_only=True):
    """A call in plain words, without secrets. `is_whole`: nothing was left out or hidden, and a
    reader sees every character. What looks like a secret may be the part that does harm."""

    tool: Annotated[str, describe("The tool.", "execute")]
    text: Annotated[str, describe("What it would do: a command, a path.", "git push")]
    is_whole: bool = True


class AnswerLink(Struct, frozen=True, kw_only=True):
    """`decision` is that of the first press; None: not used yet."""

    id: UUID
    chat_id: ChatId
    tool_call_id: ToolCallId
    user_id: UserId
    fingerprint: str
    created_at: datetime
    expires_at: datetime
    decision: LinkDecision | None
    used_at: datetime | None


def answer_digest_text(secret: str) -> str:
    """What is hashed. Not the secret alone: it must be no credential for anything else."""
    return f"{_PURPOSE}:{secret}"


def strip_secrets(text: str) -> str:
    """Without keys, credentials in URLs, and values under the name of a secret. It hides too much
    rather than too little."""
    text = _OPAQUE.sub(HIDDEN, text)
    text = _ASSIGNED.sub(lambda found: f"{found[1]}{HIDDEN}", text)
    return redact_urls(_USER.sub(lambda found: f"{found[1]}{HIDDEN}", text))


def describe_call(call: PendingCall) -> CallText:
    """The command of a command, else the path or the arguments of the call."""
    value = None if call.args is UNSET else parse_json(call.args)
    if not isinstance(value, dict):
        return CallText(tool=call.name, text="", is_whole=False)
    args = cast("Mapping[str, object]", value)
    command = args.get("command")
    text = msgspec.json.encode(args).decode()
    if isinstance(command, str):
        known = ("command", "description") if call.name == COMMAND_TOOL else ("command",)
        rest = {name: one for name, one in args.items() if name not in known}
        text = f"{command}\n{msgspec.json.encode(rest).decode()}" if rest else command
    shown = strip_secrets(clip(text, MAX_TOLD_CALL_CHARS))
    is_plain = _UNSEEN.search(text) is None and all(
        char.isprintable() or char in "\n\t" for char in text
    )
    return CallText(tool=call.name, text=shown, is_whole=shown == text and is_plain)


def headline(call: PendingCall) -> str:
    """One line for a notification."""
    shown = describe_call(call).text
    value = None if call.args is UNSET else parse_json(call.args)
    if isinstance(value, dict):
        args = cast("Mapping[str, object]", value)
        named = (args.get(name) for name in ("command", *_PATHS))
        told = next((one for one in named if isinstance(one, str) and one), shown)
        shown = strip_secrets(clip(told, MAX_TOLD_CALL_CHARS))
    return (
        f"Allow {call.name}? {shown}".strip() if shown not in ("", "{}") else f"Allow {call.name}?"
    )


def first_approval(chat: Chat) -> PendingCall | None:
    """The call that a notification is about: the first that a person must approve."""
    return next((call for call in waiting_calls(chat) if wait_of(call) == "approval"), None)


def find_linked(chat: Chat, link: AnswerLink) -> PendingCall | None:
    """The call of the link, if it still waits."""
    found = (call for call in waiting_calls(chat) if call.id == link.tool_call_id)
    call = next(found, None)
    if call is None or wait_of(call) != "approval":
        return None
    return call if call_fingerprint(chat, call) == link.fingerprint else None


def may_have_link(call: PendingCall) -> bool:
    """Whether the page of a link can show all of what would run."""
    told = describe_call(call)
    return told.is_whole and len(told.text) <= MAX_LINKED_CALL_CHARS
