"""One chat kept current on this replica, shared by its viewers.

A local commit of the next version needs no query. Any other notice leads to one read of changes,
with at most one more read after it, however many hints arrive. Groups are encoded once; each viewer
has its own position in the broadcast. Owns the content and the order of groups; `feed_registry`
decides when a feed reads.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import SystemActor
from chatd.domain.chat.row import UNKNOWN_CHANGE, Chat, Episode
from chatd.domain.chat_views.diff import ChatSnapshot, ViewerPosition, diff, needs_full_read
from chatd.domain.chat_views.events import (
    START,
    Cursor,
    DurableEvent,
    HistoryReset,
    PreviewReset,
    encode_event,
)
from chatd.domain.errors import InvariantBroken, NotFound
from chatd.domain.ids import ChatId
from chatd.store.chat import chats
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.conn import Conn
from chatd.stream.fanout import Broadcast, VersionedSharedRead
from chatd.stream.journal_tail import LivePartSource, is_live


class EventGroup(Struct, frozen=True, kw_only=True):
    """The encoded events from `after` to `reached`. `episode` names the live parts that may be sent
    after the group; with `restarts_episode` from the first part on. `ended` are all live parts of
    the episode that the group ends, which a viewer is sent before it."""

    after: Cursor
    reached: Cursor
    events: tuple[bytes, ...]
    episode: Episode | None
    restarts_episode: bool
    reset: bool
    ended: Sequence[bytes] = ()


def build_group(
    after: Cursor, chat: Chat, events: Sequence[DurableEvent], ended: Sequence[bytes] = ()
) -> EventGroup:
    return EventGroup(
        ended=ended,
        after=after,
        reached=Cursor.of(chat),
        events=tuple(map(encode_event, events)),
        episode=Episode.of(chat) if is_live(chat) else None,
        restarts_episode=any(isinstance(event, PreviewReset) for event in events),
        reset=isinstance(events[0], HistoryReset),
    )


FEEDS: Final = SystemActor(reason="feeds read for all their viewers, each of which is checked")


class FeedViewer(Protocol):
    def wake(self) -> None: ...

    def on_parts(self) -> None: ...


class ChatFeed:
    """`schedule(feed)` schedules `catch_up`. Joining viewers read inside `join_slots`. `created`:
    this replica has just created the chat, so that its first viewer needs no read."""

    def __init__(
        self,
        chat_id: ChatId,
        conn: Conn,
        live: LivePartSource,
        schedule: Callable[["ChatFeed"], None],
        join_slots: AbstractAsyncContextManager[object],
        *,
        created: ChatSnapshot | None = None,
    ) -> None:
        self.chat_id = chat_id
        self.chat: Chat | None = None
        self.groups: Broadcast[EventGroup] = Broadcast()
        self.viewers: set[FeedViewer] = set()
        self.is_gone = False
        self._conn = conn
        self._live = live
        self._schedule = schedule
        self._join_slots = join_slots
        self._created = created
        self._shared_joins = VersionedSharedRead(self._read_join)
        self._hinted_version = 0
        self._must_read = False
        self._hinted_before_first_row = False

    # Joining

    async def join(self, cursor: Cursor) -> EventGroup:
        """The group from this cursor to the newest version; a reset if the database has lost the
        viewer's version. The viewer must take its position in the broadcast first, so that later
        groups follow that position. Viewers that join from the same cursor at once share the read
        and the encoding."""
        created, self._created = self._created, None
        if created is not None and cursor == START and self.chat is None:
            self._on_join_read(None, created.chat)
            return build_group(cursor, created.chat, diff(None, created))
        return await self._shared_joins.get(cursor)

    async def _read_join(self, cursor: Cursor) -> EventGroup:
        async with self._join_slots:
            known = self.chat
            snapshot = await self._read_complete(cursor)
            if known is None and self._is_behind(snapshot.chat):
                # Another viewer joined meanwhile with a newer row, at which the broadcast began:
                # no group leads from this snapshot to that row.
                known = self.chat
                snapshot = await self._read_complete(cursor)
        self._on_join_read(known, snapshot.chat)
        position = ViewerPosition(version=cursor.version) if cursor.version else None
        return build_group(cursor, snapshot.chat, diff(position, snapshot))

    async def _read_complete(self, cursor: Cursor) -> ChatSnapshot:
        snapshot = await self._read(cursor.version)
        is_complete = not needs_full_read(cursor.version, snapshot)
        if is_complete and await self._is_past_of(snapshot.chat, cursor):
            return snapshot
        return await self._read(0)

    async def _is_past_of(self, chat: Chat, cursor: Cursor) -> bool:
        """A cursor that the row's last change ids do not reach is looked up in the messages that
        its change wrote. Without any it cannot be verified."""
        if chat.remembers(cursor.version) or cursor.change_id == UNKNOWN_CHANGE:
            return cursor.is_past_of(chat)
        return await chats.has_change(self._conn, chat.id, cursor.version, cursor.change_id)

    def _is_behind(self, found: Chat) -> bool:
        return self.chat is not None and found.snapshot_version < self.chat.snapshot_version

    def _on_join_read(self, known: Chat | None, found: Chat) -> None:
        if self.chat is None:
            self._show(found)
            if self._hinted_before_first_row:
                self.request_read()
        elif found.snapshot_version > self.chat.snapshot_version:
            self.on_hint(Cursor.of(found))
        elif known is not None and not found.follows(known):
            self.request_read()

    # Callbacks

    def on_applied(self, applied: AppliedChange) -> None:
        """This replica wrote the row."""
        chat, was = applied.chat, self.chat
        if chat.deleted_at is not None:
            self.on_deleted()
            return
        if was is None:
            self._hinted_before_first_row = True
            return
        if chat.snapshot_version <= was.snapshot_version:
            self.on_hint(Cursor.of(chat))
            return
        next_one = chat.snapshot_version == was.snapshot_version + 1 and chat.follows(was)
        queue_known = chat.queue_version <= was.snapshot_version or chat.queue_len == 0
        restores = applied.change is not None and applied.change.restore is not None
        if applied.replayed or restores or not next_one or not queue_known:
            self.on_hint(Cursor.of(chat))
            return
        snapshot = ChatSnapshot(
            chat=chat,
            since=was.snapshot_version,
            messages=applied.messages,
            deleted=applied.deleted_ids,
            queue=() if chat.queue_len == 0 else None,
        )
        try:
            self._advance(was, ViewerPosition.of(was), snapshot)
        except (InvariantBroken, UnicodeEncodeError):
            # Encoding must not fail the writer. A read of the stored rows gives the same change.
            self.request_read()

    def on_hint(self, hinted: Cursor) -> None:
        if self.chat is None:
            self._hinted_before_first_row = True
        elif hinted.version > self.chat.snapshot_version:
            self._hinted_version = max(self._hinted_version, hinted.version)
            self._schedule(self)
        elif not hinted.is_past_of(self.chat):
            # Another past under a number that this feed has passed.
            self.request_read()

    def request_read(self) -> None:
        """The row may have changed in an unknown way: read it."""
        self._must_read = True
        self._schedule(self)

    def on_deleted(self) -> None:
        self.is_gone = True
        self._wake()

    def on_parts(self) -> None:
        for viewer in tuple(self.viewers):
            viewer.on_parts()

    # Reading

    async def catch_up(self) -> None:
        """Read and publish the changes. Raises Unavailable and keeps the request for a read."""
        known = self.chat
        if known is None or not (self._must_read or self._hinted_version > known.snapshot_version):
            return
        self._must_read = False
        try:
            await self._catch_up_from(known)
        except NotFound:
            self.on_deleted()
        except BaseException:
            self._must_read = True
            raise

    async def _catch_up_from(self, known: Chat) -> None:
        snapshot = await self._read(known.snapshot_version)
        # The feed had `known` before this read. A row that does not descend from it means that
        # the database lost commits which viewers have.
        found = snapshot.chat
        lost = not found.may_follow(known) or not await self._is_past_of(found, Cursor.of(known))
        if lost or needs_full_read(known.snapshot_version, snapshot):
            snapshot = await self._read(0)
        now = self.chat or known
        if not lost:
            self._advance(now, ViewerPosition.of(now), snapshot)
            return
        if now is not known:
            self.request_read()
        self._advance(now, ViewerPosition(version=now.snapshot_version), snapshot)

    async def _read(self, version: int) -> ChatSnapshot:
        try:
            found = await chats.load_changes_since(self._conn, FEEDS, self.chat_id, version)
        except msgspec.DecodeError as error:
            # A row that cannot be decoded must not end the task that serves all feeds.
            raise InvariantBroken(f"Chat {self.chat_id} cannot be read: {error}") from error
        if found is None:
            raise NotFound("There is no such chat.")
        return ChatSnapshot(
            chat=found.chat,
            since=version,
            messages=found.messages,
            queue=found.queue,
            has_older=found.truncated,
        )

    def _advance(self, was: Chat, position: ViewerPosition, snapshot: ChatSnapshot) -> None:
        """Publish a group, unless a later commit of this replica has already been published."""
        if events := diff(position, snapshot):
            group = build_group(
                Cursor.of(was), snapshot.chat, events, self._ended_parts(was, snapshot)
            )
            self.groups.append(group, sum(map(len, group.events)))
            self._show(snapshot.chat)
            self._wake()

    def _ended_parts(self, was: Chat, snapshot: ChatSnapshot) -> Sequence[bytes]:
        """Only an answer or results that are stored end an episode whole. A failed or replaced
        attempt is dropped."""
        if not self.viewers or not is_live(was) or snapshot.since == 0:
            return ()
        new = (row for row in snapshot.messages if row.revision > was.snapshot_version)
        stored = [row for row in new if row.role in ("assistant", "tool") and not row.deleted]
        stored.sort(key=lambda row: row.id)
        return self._live.ended_parts(was, stored) if stored else ()

    def _show(self, chat: Chat) -> None:
        self.chat = chat
        # A read may end after the last viewer has left. Tailing started then would never stop,
        # and another feed of this chat may exist by now.
        if self.viewers:
            self._live.on_row(chat, self.on_parts)

    def _wake(self) -> None:
        for viewer in tuple(self.viewers):
            viewer.wake()
