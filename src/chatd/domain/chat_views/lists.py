"""The query language of the chat list and of the search within a chat, and the order of pinned
chats.

A query is a list of terms, all of which must match: `title:`, `archived:`, `label:`, `source:` and
`status:` with a value, and words or quoted phrases of the text. A value may be quoted too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NoReturn, get_args

from msgspec import Struct, field

from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat_views.search_text import fold, one_line
from chatd.domain.errors import Conflict, InvalidInput
from chatd.domain.ids import ChatId

MAX_QUERY_CHARS: Final = 1000
MAX_QUERY_TERMS: Final = 30

ActiveStatus = Literal["waiting", "pending", "running", "interrupting", "requires_action", "error"]
ChatSource = Literal["mine", "shared", "all"]
"""Own chats, chats of other users that are shared with the user, or both."""
_SOURCES: Final = get_args(ChatSource)
_STATUSES: Final = get_args(PublicStatus)
_KEYS: Final = ("archived", "label", "search", "source", "status", "title")
_TERM: Final = re.compile(
    r"(?:(?P<key>[A-Za-z_]+):)?(?:\"(?P<quoted>[^\"]*)(?P<close>\"?)|(?P<plain>[^\s\"]*))"
)
_WORD: Final = re.compile(r"\w+")


class SearchQuery(Struct, frozen=True, kw_only=True):
    """`texts` and `titles` are folded words or phrases: all must be in one text of the chat, or in
    its title. None: the query does not say."""

    texts: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    archived: bool | None = None
    status: PublicStatus | None = None
    source: ChatSource | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


def parse_query(text: str) -> SearchQuery:
    """Raises InvalidInput, which names the position of the wrong term, from 1."""
    if len(text) > MAX_QUERY_CHARS:
        raise InvalidInput("q", f"must have at most {MAX_QUERY_CHARS} characters")
    found = _Terms()
    at, count = 0, 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        term = _TERM.match(text, at)
        assert term is not None  # every part of the pattern is optional
        count += 1
        if count > MAX_QUERY_TERMS:
            raise InvalidInput("q", f"must have at most {MAX_QUERY_TERMS} terms")
        if term["quoted"] is not None and not term["close"]:
            _refuse(at, "the quotation mark is not closed")
        value = term["plain"] if term["quoted"] is None else term["quoted"]
        found.add(at, term["key"], value)
        at = term.end()
    return found.query()


class _Terms:
    """The terms so far. Each may be given once, except texts, titles and labels."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._titles: list[str] = []
        self._labels: dict[str, str] = {}
        self._archived: bool | None = None
        self._status: PublicStatus | None = None
        self._source: ChatSource | None = None

    def add(self, at: int, key: str | None, value: str) -> None:
        if not value.strip():
            _refuse(at, "the term has no value" if key else "the quotation marks are empty")
        match key:
            case None | "search":
                self._texts.append(_words(at, value))
            case "title":
                self._titles.append(_words(at, value))
            case "label":
                self._add_label(at, value)
            case "archived":
                self._add_archived(at, value)
            case "status":
                self._add_status(at, value)
            case "source":
                self._add_source(at, value)
            case _:
                known = ", ".join(f"{name}:" for name in _KEYS)
                _refuse(at, f"there is no {key}: term, only {known}; quote text with a colon")

    def _add_label(self, at: int, value: str) -> None:
        key, colon, text = value.partition(":")
        if not (key and colon and text):
            _refuse(at, "a label is label:key:value")
        if self._labels.setdefault(key, text) != text:
            _refuse(at, f"the label {key} cannot have two values")

    def _add_archived(self, at: int, value: str) -> None:
        if value not in ("true", "false"):
            _refuse(at, "archived: is true or false")
        if self._archived not in (None, value == "true"):
            _refuse(at, "archived: cannot have two values")
        self._archived = value == "true"

    def _add_status(self, at: int, value: str) -> None:
        status: PublicStatus | None = next((one for one in _STATUSES if one == value), None)
        if status is None:
            _refuse(at, f"status: is one of {', '.join(_STATUSES)}")
        if self._status not in (None, status):
            _refuse(at, "status: cannot have two values")
        self._status = status

    def _add_source(self, at: int, value: str) -> None:
        source: ChatSource | None = next((one for one in _SOURCES if one == value), None)
        if source is None:
            _refuse(at, f"source: is one of {', '.join(_SOURCES)}")
        if self._source not in (None, source):
            _refuse(at, "source: cannot have two values")
        self._source = source

    def query(self) -> SearchQuery:
        return SearchQuery(
            texts=tuple(self._texts),
            titles=tuple(self._titles),
            archived=self._archived,
            status=self._status,
            source=self._source,
            labels=self._labels,
        )


def _words(at: int, value: str) -> str:
    text = fold(one_line(value))
    if not _WORD.search(text):
        _refuse(at, "there is no word in the term")
    return text


def _refuse(at: int, reason: str) -> NoReturn:
    raise InvalidInput("q", f"position {at + 1}: {reason}")


# The order of a user's pinned chats: 1 to n without gaps.

MAX_PINNED_CHATS: Final = 200


def place_pin(pinned: Sequence[ChatId], chat: ChatId, wanted: int) -> dict[ChatId, int]:
    """The place of every chat after the change, 0 for `chat` if it is unpinned. A chat that was not
    pinned comes last, whatever place is wanted; a pinned one moves, at most to the end."""
    others = [other for other in pinned if other != chat]
    if wanted == 0:
        return {chat: 0} | {other: place for place, other in enumerate(others, 1)}
    if len(others) >= MAX_PINNED_CHATS:
        raise Conflict(
            f"At most {MAX_PINNED_CHATS} chats can be pinned. Unpin one first.",
            code="too_many_pins",
        )
    index = min(wanted - 1, len(others)) if chat in pinned else len(others)
    others.insert(index, chat)
    return {other: place for place, other in enumerate(others, 1)}
