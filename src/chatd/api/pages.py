"""Pages of lists: their one shape, and the cursors that lead from a page to the next.

A cursor is opaque to clients. It holds the position of the last item, and a checksum over this
position and its list: the caller, the path and the filters. So a cursor of another list, of other
filters, or with a damaged text is refused. A page may have another `limit` than the one before it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, Final, Generic, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.schemas.messages import MAX_INT32, MAX_INT64
from chatd.domain.errors import InvalidInput
from chatd.domain.list_page import ListPage, ListQuery

P = TypeVar("P")
R = TypeVar("R")

CHECKSUM_BYTES: Final = 8
_NOT_FILTERS: Final = frozenset(ListQuery.__struct_fields__)


class InvalidCursor(InvalidInput):
    code = "invalid_cursor"

    def __init__(self) -> None:
        super().__init__(
            "cursor",
            "is not a cursor of this list; use the next_cursor of its previous page, with the same"
            " filters, or leave it out for the first page",
        )


class Paging(Generic[P]):
    """One request for a page. `position` is that of the last item of the page before, None for
    the first page; `kind` is its type. A list is read with `read_limit`, one more than is shown,
    which tells if there are more."""

    def __init__(self, request: ApiRequest, query: ListQuery, kind: type[P]) -> None:
        """Raises InvalidCursor."""
        filters = {
            name: value
            for name, value in msgspec.structs.asdict(query).items()
            if name not in _NOT_FILTERS
        }
        self._list = msgspec.json.encode((request.caller.user_id, request.path_segments, filters))
        self.limit = query.limit
        self.read_limit = query.limit + 1
        self.position = None if query.cursor is None else self._read(query.cursor, kind)

    def cut(
        self, found: Sequence[R], position_of: Callable[[R], P]
    ) -> tuple[Sequence[R], str | None]:
        """The rows to show, and the cursor of the next page if there is one."""
        if len(found) <= self.limit:
            return found, None
        shown = found[: self.limit]
        return shown, self.make_cursor(position_of(shown[-1]))

    def make_cursor(self, position: P) -> str:
        payload = msgspec.json.encode(position)
        return urlsafe_b64encode(self._checksum(payload) + payload).rstrip(b"=").decode()

    def _read(self, text: str, kind: type[P]) -> P:
        try:
            decoded = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            checksum, payload = decoded[:CHECKSUM_BYTES], decoded[CHECKSUM_BYTES:]
            if checksum != self._checksum(payload):
                raise InvalidCursor
            return msgspec.json.decode(payload, type=kind)
        except (ValueError, msgspec.MsgspecError):
            raise InvalidCursor from None

    def _checksum(self, payload: bytes) -> bytes:
        return blake2b(self._list + b"\0" + payload, digest_size=CHECKSUM_BYTES).digest()


class NumberPosition(Struct, frozen=True, array_like=True):
    """The position in a list that is ordered by a number."""

    number: Annotated[int, Meta(ge=0, le=MAX_INT64)]


class TimePosition(Struct, frozen=True, array_like=True):
    """The position in a list that is ordered by time, then by id."""

    at: Annotated[datetime, Meta(tz=True)]
    id: UUID


class NamePosition(Struct, frozen=True, array_like=True):
    """The position in a list that is ordered by a unique name."""

    name: Annotated[str, Meta(max_length=200)]


class ItemPosition(Struct, frozen=True, array_like=True):
    """The position of an item in a short list that is read whole."""

    index: Annotated[int, Meta(ge=0, le=MAX_INT32)]
    id: UUID


def cut_whole(
    paging: Paging[ItemPosition], found: Sequence[R], id_of: Callable[[R], UUID]
) -> tuple[Sequence[R], str | None]:
    """A page of a list that was read whole. The next page begins after the item where this one
    ended, or at its index if the item has left the list."""
    start, last = 0, paging.position
    if last is not None:
        indexes = (index + 1 for index, row in enumerate(found) if id_of(row) == last.id)
        start = next(indexes, last.index)
    end = start + paging.limit
    shown = found[start:end]
    if end >= len(found):
        return shown, None
    return shown, paging.make_cursor(ItemPosition(end, id_of(shown[-1])))


def page_reply(kind: type[ListPage[R]], items: Iterable[R], cursor: str | None) -> ApiReply:
    return reply(kind(items=tuple(items), has_more=cursor is not None, next_cursor=cursor))
