"""One chat as this replica's viewers see it: kept current once for all of them.

A local commit that follows on the last version seen is told without a query. Anything else
leads to one read of what has changed, with at most one more behind it, however many hints come
in. Groups are encoded once, and each viewer keeps its own place in their chain. Owns what is
told and in which order; who reads when is up to `feeds`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
from msgspec import Struct

from chatd.domain.chat.diff import ChatSnapshot, ViewerPosition, diff, needs_full_read
from chatd.domain.chat.events import DurableEvent, HistoryReset, PreviewReset, encode_event
from chatd.domain.chat.row import Chat, Episode
from chatd.domain.errors import InvariantBroken, NotFound
from chatd.domain.ids import ChatId
from chatd.store.chat import chats
from chatd.store.chat.transactor import AppliedChange
from chatd.store.conn import Conn
from chatd.stream.fanout import Broadcast, VersionedSharedRead
from chatd.stream.live_parts import LivePartSource, is_live


class EventGroup(Struct, frozen=True, kw_only=True):
    """What leads from version `after` to `version`, encoded event by event. `episode` names
    the parts that may be shown from here on; `anew` if from the first one."""

    after: int
    version: int
    events: tuple[bytes, ...]
    episode: Episode | None
    restarts_episode: bool
    reset: bool


def build_group(after: int, chat: Chat, events: Sequence[DurableEvent]) -> EventGroup:
    return EventGroup(
        after=after,
        version=chat.snapshot_version,
        events=tuple(map(encode_event, events)),
        episode=Episode.of(chat) if is_live(chat) else None,
        restarts_episode=any(isinstance(event, PreviewReset) for event in events),
        reset=isinstance(events[0], HistoryReset),
    )


def is_descendant(old: Chat, new: Chat) -> bool:
    """Whether the new row has the old one in its past, as far as it remembers. Every version
    leaves the id of its change in the row, so a database that lost changes and went on without
    them gives itself away even where the numbers agree."""
    behind = new.snapshot_version - old.snapshot_version
    if behind < 0:
        return False
    both = zip(new.recent_changes[behind:], old.recent_changes, strict=False)
    return all(ours == theirs for ours, theirs in both)


class Wakeable(Protocol):
    def wake(self) -> None: ...


class ChatFeed:
    """`ask(feed)` has its `catch_up` called before long. Whoever joins reads inside of `line`."""

    def __init__(
        self,
        chat_id: ChatId,
        conn: Conn,
        live: LivePartSource,
        ask: Callable[["ChatFeed"], None],
        line: AbstractAsyncContextManager[object],
    ) -> None:
        self.chat_id = chat_id
        self.chat: Chat | None = None
        self.groups: Broadcast[EventGroup] = Broadcast()
        self.ears: set[Wakeable] = set()
        self.is_gone = False
        self._conn = conn
        self._live = live
        self._ask = ask
        self._line = line
        self._leading = VersionedSharedRead(self._lead_from)
        self._wanted = 0
        self._must_look = False
        self._heard_early = False

    # Joining

    async def join(self, version: int) -> EventGroup:
        """What brings a viewer from this version (0: nothing yet) to now. It must hold its
        place in the chain before: what comes in between is then behind that place. Those who
        come together from the same version share it, encoded once."""
        return await self._leading.get(version)

    async def _lead_from(self, version: int) -> EventGroup:
        async with self._line:
            known = self.chat
            snapshot = await self._whole(version)
            if known is None and self._is_behind(snapshot.chat):
                # Another one has come meanwhile and brought a newer row, with which the chain
                # began: no group leads there.
                known = self.chat
                snapshot = await self._whole(version)
        self._met(known, snapshot.chat)
        seen = ViewerPosition(version=version) if version else None
        return build_group(version, snapshot.chat, diff(seen, snapshot))

    async def _whole(self, version: int) -> ChatSnapshot:
        snapshot = await self._read(version)
        return await self._read(0) if needs_full_read(version, snapshot) else snapshot

    def _is_behind(self, found: Chat) -> bool:
        return self.chat is not None and found.snapshot_version < self.chat.snapshot_version

    def _met(self, known: Chat | None, found: Chat) -> None:
        if self.chat is None:
            self._show(found)
            if self._heard_early:
                self.request_read()
        elif found.snapshot_version > self.chat.snapshot_version:
            self.on_hint(found.snapshot_version)
        elif known is not None and not is_descendant(known, found):
            self.request_read()

    # News

    def on_applied(self, applied: AppliedChange) -> None:
        """A write of this replica."""
        chat, was = applied.chat, self.chat
        if was is None:
            self._heard_early = True
            return
        if chat.snapshot_version <= was.snapshot_version:
            return
        next_one = chat.snapshot_version == was.snapshot_version + 1 and is_descendant(was, chat)
        queue_known = chat.queue_version <= was.snapshot_version or chat.queue_len == 0
        if applied.replayed or not next_one or not queue_known:
            self.on_hint(chat.snapshot_version)
            return
        snapshot = ChatSnapshot(
            chat=chat,
            since=was.snapshot_version,
            messages=applied.messages,
            deleted=applied.deleted_ids,
            queue=() if chat.queue_len == 0 else None,
        )
        try:
            self._advance(ViewerPosition.of(was), snapshot)
        except (InvariantBroken, UnicodeEncodeError):
            # Whoever writes must not suffer from how we tell it. What is stored can be told.
            self.request_read()

    def on_hint(self, version: int) -> None:
        if self.chat is None:
            self._heard_early = True
        elif version > self.chat.snapshot_version:
            self._wanted = max(self._wanted, version)
            self._ask(self)

    def request_read(self) -> None:
        """Something may have changed, nobody knows what."""
        self._must_look = True
        self._ask(self)

    def on_deleted(self) -> None:
        self.is_gone = True
        self._wake()

    def on_parts(self) -> None:
        self._wake()

    # Reading

    async def catch_up(self) -> None:
        """Raises Unavailable; what it was to look for is then still to be looked for."""
        known = self.chat
        if known is None or not (self._must_look or self._wanted > known.snapshot_version):
            return
        self._must_look = False
        try:
            await self._catch_up_from(known)
        except NotFound:
            self.on_deleted()
        except BaseException:
            self._must_look = True
            raise

    async def _catch_up_from(self, known: Chat) -> None:
        snapshot = await self._read(known.snapshot_version)
        # We knew the row before we asked for it. If it is older now, or has another past, then
        # the database has lost what we told.
        lost = not is_descendant(known, snapshot.chat)
        if lost or needs_full_read(known.snapshot_version, snapshot):
            snapshot = await self._read(0)
        now = self.chat or known
        if not lost:
            self._advance(ViewerPosition.of(now), snapshot)
            return
        if now is not known:
            self.request_read()
        self._advance(ViewerPosition(version=now.snapshot_version), snapshot)

    async def _read(self, version: int) -> ChatSnapshot:
        try:
            found = await chats.load_changes_since(self._conn, self.chat_id, version)
        except msgspec.DecodeError as error:
            # One row that cannot be read must not stop those who read all others.
            raise InvariantBroken(f"Chat {self.chat_id} cannot be read: {error}") from error
        if found is None:
            raise NotFound("There is no such chat.")
        return ChatSnapshot(
            chat=found.chat,
            since=version,
            messages=found.messages,
            queue=found.queue,
            cut=found.cut,
        )

    def _advance(self, seen: ViewerPosition, snapshot: ChatSnapshot) -> None:
        """A read that a commit of our own has overtaken tells nothing."""
        if events := diff(seen, snapshot):
            group = build_group(seen.version, snapshot.chat, events)
            self.groups.append(group, sum(map(len, group.events)))
            self._show(snapshot.chat)
            self._wake()

    def _show(self, chat: Chat) -> None:
        self.chat = chat
        # A read may end after the last viewer has gone. Nobody would ever end what it began, and
        # there may be another feed of this chat by now.
        if self.ears:
            self._live.on_row(chat, self.on_parts)

    def _wake(self) -> None:
        for ear in tuple(self.ears):
            ear.wake()
