"""Search: the text of a message as it is searched, its pieces for the index, snippets; the query
language of the chat list; the order of pinned chats.

Text is searched on one line, without Markdown, letter case and accents. `fold` replaces character
by character, so that a place in the folded text is the same place in the text that people see.

The index knows a text by its grams: every three characters within a word of it (here: between
spaces), the first one and two characters of a word, and whether it is a title. A gram is a number
of 20 bits; 12 bits of the owner stand before it, so that a search reads the entries of few owners.
Different pieces and owners may share a number: what has the grams of a term is compared with it.
"""

import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NoReturn, get_args
from uuid import UUID

from msgspec import UNSET, Struct, field

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import (
    CommandPart,
    FilePart,
    FileReferencePart,
    Part,
    TextPart,
    ToolCallPart,
)
from chatd.domain.chat.states import PublicStatus
from chatd.domain.errors import Conflict, InvalidInput
from chatd.domain.ids import ChatId, ProjectId, UserId
from chatd.domain.text import model_text, parse_json

MAX_INDEXED_CHARS: Final = 100_000
"""Of one message."""
MAX_CALL_CHARS: Final = 10_000
"""Of the arguments of one tool call."""
MAX_ARGUMENT_CHARS: Final = 2_000
"""Of one argument: such as a command or a path, and the beginning of a file's content."""
MAX_QUERY_GRAMS: Final = 64
"""Of all terms of a query together."""
SNIPPET_CHARS: Final = 160
_SNIPPET_LEAD_CHARS: Final = 40

_GRAM_CHARS: Final = 3
_GRAM_BITS: Final = 20
_OWNER_BITS: Final = 12
_LOWEST_KEY: Final = -(2**31)
_WORD_START: Final = "\x01"
"""Before the beginning of a word, which is shorter than other pieces."""
# Ideographs, kana and Hangul: a word may begin with each of them.
_WIDE: Final = (
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD_BEGINNING: Final = re.compile(rf"(?:(?<!\w)\w|[{_WIDE}])(?=(\w?))")
_TITLE: Final = "\x02"
_LAST_ACCENTED: Final = "\u2000"


class Snippet(Struct, frozen=True, kw_only=True):
    """A piece of a text, and the places of the terms in it: start and end, in characters."""

    text: str
    highlights: tuple[tuple[int, int], ...] = ()


# What is searched


def message_text(message: Message) -> str:
    """What users see of it, on one line: its text, files, and the calls of tools with commands and
    paths. Nothing of a deleted message or a summary."""
    if message.deleted or message.compressed or message.visibility == "model":
        return ""
    if message.role not in ("user", "assistant"):
        return ""
    return one_line(" ".join(text for part in message.content for text in _part_texts(part)))


def _part_texts(part: Part) -> Iterator[str]:
    match part:
        case TextPart():
            yield plain_text(part.text[:MAX_INDEXED_CHARS])
        case ToolCallPart():
            yield f"{part.tool_name} {_call_text(part)}"
        case FilePart(name=str(name)):
            yield name
        case CommandPart(command=command):
            yield command[:MAX_ARGUMENT_CHARS]
        case FileReferencePart():
            yield f"{part.file_name} {part.content[:MAX_ARGUMENT_CHARS]}"
        case _:
            pass


def _call_text(call: ToolCallPart) -> str:
    found = parse_json(call.args)
    if found is UNSET:
        return (call.args_text or "")[:MAX_ARGUMENT_CHARS]
    texts = (text[:MAX_ARGUMENT_CHARS] for text in _strings(found))
    return _joined(texts, MAX_CALL_CHARS)


def _strings(value: object) -> Iterator[str]:
    """The strings of a JSON value, without names of fields. JSON of any depth."""
    left = [value]
    while left:
        match left.pop():
            case str(text):
                yield text
            case list(items):  # pyright: ignore[reportUnknownVariableType]
                left.extend(reversed(items))  # pyright: ignore[reportUnknownArgumentType]
            case dict(fields):  # pyright: ignore[reportUnknownVariableType]
                left.extend(reversed(fields.values()))  # pyright: ignore[reportUnknownArgumentType]
            case _:
                pass


def _joined(texts: Iterable[str], limit: int) -> str:
    kept: list[str] = []
    for text in texts:
        kept.append(text[:limit])
        limit -= len(text)
        if limit <= 0:
            break
    return " ".join(kept)


def one_line(text: str) -> str:
    """What the database can store of it, on one line and in composed characters."""
    cut = model_text(text[:MAX_INDEXED_CHARS])
    return " ".join(unicodedata.normalize("NFC", cut).split())


# Markdown

_FENCE: Final = re.compile(r" {0,3}(```|~~~)")
_BLOCK_MARKS: Final = re.compile(
    r"\s*(?:(?:#{1,6}|>|[-*+](?: \[[ xX]\])?|\d{1,9}[.)])(?:\s+|$)|>)+"
)
_HAS_BLOCK_MARKS: Final = re.compile(r"\s*[-#>*+=_|:\d]")
_HAS_INLINE_MARKS: Final = re.compile(r"[*_`\[<~\\]")
_CODE_SPAN: Final = re.compile(r"(``?)([^`\n]+)\1")
_INLINE: Final = (
    (re.compile(r"!?\[([^\[\]\n]*)\]\(<?([^()<>\s]+)>?(?: +\"[^\"\n]*\")?\)"), r"\1 (\2)"),
    (re.compile(r"<((?:https?|mailto):[^<>\s]+)>"), r"\1"),
    (re.compile(r"(\*{1,3})(?=\S)([^*\n]+)(?<=\S)\1"), r"\2"),
    (re.compile(r"(\*{2})(?=\S)([^*\n]+)(?<=\S)\1"), r"\2"),
    # Names such as __init__ are left alone.
    (re.compile(r"(?<!\w)(__?)(?=\S)([^_\s]+\s[^_\n]*)(?<=\S)\1(?!\w)"), r"\2"),
    (re.compile(r"~~([^~\n]+)~~"), r"\1"),
    (re.compile(r"\\([\\`*_{}\[\]()#+\-.!|>~])"), r"\1"),
)


def plain_text(markdown: str) -> str:
    """The text without the marks of Markdown: for search and snippets, where a line need not be
    rendered. Code is kept as it is, addresses of links are kept in parentheses."""
    lines: list[str] = []
    fence: str | None = None
    for line in markdown.splitlines():
        found = _FENCE.match(line)
        if found is not None and fence in (None, found[1]):
            fence = found[1] if fence is None else None
        elif fence is not None:
            lines.append(line)
        else:
            lines.append(_without_marks(line))
    return "\n".join(lines)


def _without_marks(line: str) -> str:
    rest = line
    if _HAS_BLOCK_MARKS.match(line) is not None:
        if _is_rule(line):
            return ""
        marks = _BLOCK_MARKS.match(line)
        rest = line if marks is None else line[marks.end() :]
        if rest.lstrip().startswith("|"):
            rest = rest.replace("|", " ")
    if _HAS_INLINE_MARKS.search(rest) is None:
        return rest
    pieces: list[str] = []
    at = 0
    for code in _CODE_SPAN.finditer(rest):
        pieces += (_without_inline_marks(rest[at : code.start()]), code[2])
        at = code.end()
    return "".join((*pieces, _without_inline_marks(rest[at:])))


def _is_rule(line: str) -> bool:
    """A line across the text, below a heading, or below the head of a table."""
    marks = set(line) - set(" \t")
    if marks <= {"-", "|", ":"}:
        return "-" in marks and ("|" in marks or line.count("-") > 2)
    return marks in ({"*"}, {"_"}, {"="}) and sum(map(line.count, marks)) > 2


def _without_inline_marks(text: str) -> str:
    for pattern, kept in _INLINE:
        text = pattern.sub(kept, text)
    return text


# Folding


class _Folds(dict[int, str]):
    """One character for each, made when it is first seen."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = _fold_char(chr(code))
        return folded


def _fold_char(char: str) -> str:
    wide = unicodedata.normalize("NFKC", char)
    lower = (wide if len(wide) == 1 else char).lower()[0]
    if lower < _LAST_ACCENTED:
        base = unicodedata.normalize("NFD", lower)
        if all(unicodedata.combining(mark) for mark in base[1:]):
            return base[0]
    return lower


_FOLDS: Final = _Folds()


def fold(line: str) -> str:
    """Without letter case and accents, of the same length."""
    return line.lower() if line.isascii() else line.translate(_FOLDS)


# The index


def text_grams(folded: str) -> set[int]:
    """The grams of a text for the index."""
    size = _GRAM_CHARS
    words = set(folded.split(" "))
    pieces = {word[at : at + size] for word in words for at in range(len(word) - size + 1)}
    starts = {_WORD_START + word[:length] for word in words for length in range(1, size)}
    return {_gram(piece) for piece in pieces | starts | _beginnings(folded)}


def query_grams(terms: Sequence[str]) -> set[int]:
    """The grams that a text with all terms has. Of a long query some of them."""
    most = max(1, MAX_QUERY_GRAMS // max(1, len(terms)))
    size = _GRAM_CHARS
    found: set[int] = set()
    for term in terms:
        words = term.split(" ")
        pieces = [word[at : at + size] for word in words for at in range(len(word) - size + 1)]
        pieces += [_WORD_START + word[: size - 1] for word in words[1:]]
        pieces = pieces or sorted(_beginnings(term), key=len, reverse=True)
        step = -(-len(pieces) // most)
        found.update(_gram(piece) for piece in pieces[::step])
    return found


def is_short(term: str) -> bool:
    """Whether the term must be the beginning of a word."""
    return len(term) < _GRAM_CHARS


def _beginnings(folded: str) -> set[str]:
    """The first one and two letters of words."""
    starts = {(m[0], m[1]) for m in _WORD_BEGINNING.finditer(folded)}
    return {_WORD_START + piece for first, second in starts for piece in (first, first + second)}


def title_gram() -> int:
    """The gram of the title of a root chat, beside those of its text."""
    return _gram(_TITLE)


def _gram(piece: str) -> int:
    return zlib.crc32(piece.encode()) & ((1 << _GRAM_BITS) - 1)


def index_keys(owner: UserId, grams: Iterable[int]) -> list[int]:
    """The numbers in the index: 32 bits with sign. `store.chat.search` does the same in SQL."""
    lowest = _LOWEST_KEY + ((owner.int & ((1 << _OWNER_BITS) - 1)) << _GRAM_BITS)
    return sorted(lowest + gram for gram in grams)


# Matches


def has_terms(folded: str, terms: Sequence[str]) -> bool:
    return all(_find(folded, term, 0) is not None for term in terms)


def make_snippet(line: str, terms: Sequence[str]) -> Snippet:
    """The piece of a text on one line around the first term. The terms are folded."""
    folded = fold(line)
    places = [place for term in terms if (place := _find(folded, term, 0)) is not None]
    first = min(places, default=(0, 0))[0]
    start = max(0, first - _SNIPPET_LEAD_CHARS)
    if start:
        # Begin with a whole word.
        start = line.find(" ", start, first) + 1 or start
    piece = line[start : start + SNIPPET_CHARS]
    return Snippet(text=piece, highlights=_marks(fold(piece), terms))


def _marks(folded: str, terms: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Where the terms are, without overlaps. A term that the end cuts off is marked up to there."""
    found: list[tuple[int, int]] = []
    for term in terms:
        at = 0
        while (place := _find(folded, term, at)) is not None:
            found.append(place)
            at = place[1]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _find(folded: str, term: str, start: int) -> tuple[int, int] | None:
    """The next place of the term. One that is shorter than a gram is the beginning of a word, or of
    a sign before one."""
    at = folded.find(term, start)
    while at >= 0:
        if not is_short(term) or not _is_within_word(folded, at):
            return at, at + len(term)
        at = folded.find(term, at + 1)
    return None


def _is_within_word(folded: str, at: int) -> bool:
    beginning = _WORD_BEGINNING.match(folded, at)
    return beginning is None and (folded[at].isalnum() or folded[at] == "_")


# The query language of the chat list and of the search within a chat, and the order of pinned
# chats.
#
# A query is a list of terms, all of which must match: `title:`, `archived:`, `label:`, `project:`,
# `source:` and `status:` with a value, and words or quoted phrases of the text. A value may be
# quoted too.

MAX_QUERY_CHARS: Final = 1000
MAX_QUERY_TERMS: Final = 30

ActiveStatus = Literal["waiting", "pending", "running", "interrupting", "requires_action", "error"]
ChatSource = Literal["mine", "shared", "all"]
"""Own chats, chats of other users that are shared with the user, or both."""
_SOURCES: Final = get_args(ChatSource)
_STATUSES: Final = get_args(PublicStatus)
_KEYS: Final = ("archived", "label", "project", "search", "source", "status", "title")
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
    project_id: ProjectId | None = None


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
        self._project: ProjectId | None = None

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
            case "project":
                self._add_project(at, value)
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

    def _add_project(self, at: int, value: str) -> None:
        try:
            project = ProjectId(UUID(value))
        except ValueError:
            _refuse(at, "project: is the id of a project")
        if self._project not in (None, project):
            _refuse(at, "project: cannot have two values")
        self._project = project

    def query(self) -> SearchQuery:
        return SearchQuery(
            texts=tuple(self._texts),
            titles=tuple(self._titles),
            archived=self._archived,
            status=self._status,
            source=self._source,
            labels=self._labels,
            project_id=self._project,
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
