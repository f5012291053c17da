"""The chat list of each user as a stream: one event per changed chat, own or shared with the user.

There is no replay. A stream begins with `ready`: the client then lists its chats, and again at
every later `ready`, which means that changes may have been missed. Changes written by this replica
need no query once it is known how the user sees the chat; after hints of other replicas the chats
are read, many in one statement, and likewise how users see them. A poll finds changes that no hint
announced. `share_watch` knows which chats of others a user reads.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.aio import BackgroundTasks, Backoff
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.chat_views.events import encode_value
from chatd.domain.chat_views.public_chat import (
    SHARE_HINT_KIND,
    ChatListEvent,
    ChatListReady,
    ChatListRemoved,
    ProjectsChanged,
    PublicChat,
    ReaderView,
    chat_list_change,
    is_listed,
    public_chat,
)
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.spend import SpendWarningEvent
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ChatId, ProjectId, UserId
from chatd.domain.ports import Clock, Env
from chatd.store import projects
from chatd.store.account import shares
from chatd.store.chat import chats, updates
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.conn import Conn
from chatd.store.database.notifications import ConfigChanges
from chatd.store.model import spend
from chatd.store.model.spend import DefaultLimit
from chatd.stream.chat_feed import FEEDS
from chatd.stream.fanout import Broadcast, Frame, Subscription
from chatd.stream.journal_writer import TAILED_HINT_KIND
from chatd.stream.share_watch import ShareListener, ShareWatch

READY_FRAME: Final = encode_value(ChatListReady())
PROJECTS_FRAME: Final = encode_value(ProjectsChanged())
WORKSPACE_HINT_KIND: Final = "workspace"
"""The kind of a change beside the row's public fields: the chat's instructions, or whether its
workspace is ready. Such a change is sent although the public row is equal."""
READ_HINT_KIND: Final = "read"
"""The kind of a moved read mark, which is not in the row: it is read again."""
VIEW_HINT_KINDS: Final = (READ_HINT_KIND, SHARE_HINT_KIND)
READ_ERRORS: Final = (ChatdError, msgspec.DecodeError)
"""A row that cannot be decoded must not end the task that reads all rows."""


class ChatListConfig(Struct, frozen=True, kw_only=True):
    """`max_remembered_chats`: per user, the chats of which the last event is remembered."""

    coalesce_s: float = 0.05
    max_per_read: int = 500
    max_remembered_chats: int = 1000
    poll_s: float = 10
    backoff: Backoff = Backoff(first_delay_s=0.1, max_delay_s=2.0)


DEFAULT_CHAT_LIST_CONFIG: Final = ChatListConfig()


class ChatListSubscription(Subscription[bytes]):
    """One client connection. Created by `ChatListFeeds.watch`."""

    def __init__(
        self, broadcast: Broadcast[bytes], clock: Clock, is_complete: asyncio.Event
    ) -> None:
        """`is_complete`: from then on no change is missed."""
        super().__init__(broadcast, clock)
        self._is_complete = is_complete
        self._sent_ready = False

    async def frames(self) -> AsyncIterator[Frame]:
        """Ends only by raising Lagged or by cancellation."""
        while True:
            yield await self.next()

    async def next(self) -> Frame:
        if not self._sent_ready:
            await self._is_complete.wait()
            self._sent_ready = True
            return Frame(events=(READY_FRAME,))
        while (event := self.pull()) is None:
            await self.read_new()
        return Frame(events=(event,))


class _UserList:
    """The state for one user with open chat-list streams. `is_complete`: it is known what is shared
    with the user."""

    def __init__(self, username: str) -> None:
        self.username = username
        self.is_complete = asyncio.Event()
        self.broadcast: Broadcast[bytes] = Broadcast()
        self.subscriptions: set[ChatListSubscription] = set()
        self.last_sent: dict[ChatId, tuple[Chat, PublicChat]] = {}
        self.views: dict[ChatId, ReaderView] = {}

    def known_view(self, user_id: UserId, chat: Chat) -> ReaderView | None:
        """How the user sees the chat, as far as it is known. A new root chat that runs is not
        shared, unless by its project, and not read yet; a copy is read."""
        if (view := self.views.get(chat.id)) is not None:
            return view
        is_new = chat.snapshot_version == 1 and chat.status == "running" and not chat.project_id
        if is_new and chat.owner_id == user_id and chat.parent_chat_id is None:
            return ReaderView(is_owner=True, owner_username=self.username)
        return None

    def forget(self, concerns: Callable[[Chat], bool], *, views_only: bool = False) -> None:
        """What was sent of these chats. `views_only`: how the user sees them is read again."""
        for chat_id in [key for key, (chat, _) in self.last_sent.items() if concerns(chat)]:
            self.views.pop(chat_id, None)
            if not views_only:
                del self.last_sent[chat_id]

    def send(self, event: bytes) -> None:
        self.broadcast.append(event, len(event))
        for subscription in tuple(self.subscriptions):
            subscription.wake()


class ChatListFeeds:
    """`run` must be running. The `on_` callbacks do not block."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        config: ChatListConfig = DEFAULT_CHAT_LIST_CONFIG,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._conn = conn
        self._env = env
        self._config = config
        self._draw = draw
        self._users: dict[UserId, _UserList] = {}
        listener = ShareListener(
            loaded=self._on_loaded,
            gained=self._on_gained,
            lost=self._on_lost,
            changed=self._on_readers_changed,
            switched=self.mark_all_dirty,
        )
        self._shares = ShareWatch(conn, env, listener, draw=draw)
        self._unread: dict[ChatId, str | None] = {}
        self._has_unread = asyncio.Event()
        self._has_users = asyncio.Event()

    @contextmanager
    def watch(self, owner: UserId, username: str) -> Generator[ChatListSubscription]:
        user_list = self._users.get(owner)
        if user_list is None:
            user_list = self._users[owner] = _UserList(username)
            self._shares.add_user(owner)
        subscription = ChatListSubscription(
            user_list.broadcast, self._env.clock, user_list.is_complete
        )
        user_list.subscriptions.add(subscription)
        self._has_users.set()
        try:
            yield subscription
        finally:
            user_list.subscriptions.discard(subscription)
            if not user_list.subscriptions:
                self._users.pop(owner, None)
                self._shares.remove_user(owner)

    def watching_users(self) -> Sequence[UserId]:
        return tuple(self._users)

    def is_watched(self, owner: UserId) -> bool:
        return owner in self._users

    def send_to(self, owner: UserId, event: bytes) -> None:
        """An event that is not about a chat, to the user's streams on this replica."""
        if (user_list := self._users.get(owner)) is not None:
            user_list.send(event)

    # Callbacks

    def on_applied(self, applied: AppliedChange) -> None:
        self.on_metadata_changed(applied.chat)

    def on_metadata_changed(self, chat: Chat, kind: str | None = None) -> None:
        """This replica has just written or read the row."""
        for user_id, user_list in self._interested(chat.owner_id, chat.root_chat_id):
            view = user_list.known_view(user_id, chat)
            if view is None or kind in VIEW_HINT_KINDS:
                self._request_read(chat.id, kind)
            else:
                self._send(user_list, chat, kind, view)

    def _interested(self, owner: UserId, root: ChatId) -> Iterator[tuple[UserId, _UserList]]:
        """The owner and the readers who watch their lists here."""
        for user_id in (owner, *self._shares.readers(root)):
            if (user_list := self._users.get(user_id)) is not None:
                yield user_id, user_list

    def _send(self, user_list: _UserList, chat: Chat, kind: str | None, view: ReaderView) -> None:
        if not is_listed(chat) and chat.id not in user_list.last_sent:
            return
        public = public_chat(chat, view)
        last = user_list.last_sent.pop(chat.id, None)
        if last is not None:
            is_known = last[1] == public and kind != WORKSPACE_HINT_KIND
            is_older = last[0].snapshot_version > chat.snapshot_version
            if is_known or (is_older and last[0].follows(chat)):
                user_list.last_sent[chat.id] = last
                if is_known:
                    user_list.views[chat.id] = view
                return
            if is_older and last[0].may_follow(chat):
                # Late, or all that the database has left: the next row that is read is sent.
                self._request_read(chat.id, kind)
                return
        # Ordered by the last event; the oldest is forgotten.
        user_list.last_sent[chat.id] = (chat, public)
        user_list.views[chat.id] = view
        if len(user_list.last_sent) > self._config.max_remembered_chats:
            oldest = next(iter(user_list.last_sent))
            del user_list.last_sent[oldest]
            user_list.views.pop(oldest, None)
        change = chat_list_change(chat, kind, is_owner=view.is_owner)
        user_list.send(encode_value(ChatListEvent(kind=change, chat=public)))

    def on_hint(self, hint: Hint) -> None:
        if hint.kind == TAILED_HINT_KIND:
            return
        for _, user_list in self._interested(hint.owner_id, hint.root_id):
            last = user_list.last_sent.get(hint.chat_id)
            is_known = last and last[0].contains(hint.snapshot_version, hint.change_id)
            if hint.kind is not None or not is_known:
                self._request_read(hint.chat_id, hint.kind)
                return

    def on_config_change(self, change: ConfigChange | None) -> None:
        """A chat is shared or no longer, or a user has another name."""
        self._shares.on_config_change(change)
        if change is not None and change.kind == "user":
            for user_list in self._users.values():
                user_list.forget(lambda chat: str(chat.owner_id) == change.id, views_only=True)

    def _on_loaded(self, user: UserId) -> None:
        self._users[user].is_complete.set()

    def _on_gained(self, user: UserId, root: ChatId) -> None:
        """Before the first `ready` the client has no list yet."""
        if self._users[user].is_complete.is_set():
            self._request_read(root, SHARE_HINT_KIND)

    def _on_lost(self, user: UserId, root: ChatId) -> None:
        user_list = self._users[user]
        user_list.forget(lambda chat: chat.root_chat_id == root)
        user_list.send(encode_value(ChatListRemoved(chat_id=root)))

    def _on_readers_changed(self, root: ChatId) -> None:
        """The owner and the other readers see whether the chat is shared."""
        for user_list in self._users.values():
            user_list.forget(lambda chat: chat.root_chat_id == root, views_only=True)
        self._request_read(root, SHARE_HINT_KIND)

    def _request_read(self, chat_id: ChatId, kind: str | None) -> None:
        """A request with a kind is not replaced by one without."""
        self._unread[chat_id] = kind or self._unread.get(chat_id)
        self._has_unread.set()

    def mark_all_dirty(self) -> None:
        """Changes may have been missed, or lost by the database: clients must list again."""
        for user_list in self._users.values():
            user_list.last_sent.clear()
            user_list.views.clear()
            user_list.send(READY_FRAME)

    # Background tasks

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_unread(), name="chat_list_read")
            group.create_task(self._poll_periodically(), name="chat_list_poll")
            group.create_task(self._shares.run(), name="chat_list_shares")

    async def _read_unread(self) -> None:
        failures = 0
        while True:
            while not self._unread:
                self._has_unread.clear()
                await self._has_unread.wait()
            batch = dict(islice(self._unread.items(), self._config.max_per_read))
            for chat_id in batch:
                del self._unread[chat_id]
            try:
                rows = await self._read_rows(batch)
                views = await updates.list_views(self._conn, self._missing_views(rows, batch))
            except Unavailable as error:
                failures += 1
                self._env.emit("chat_list_read_failed", error_kind=error.code, failures=failures)
                self._unread = batch | self._unread
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "chat_list_retry")
                continue
            except READ_ERRORS as error:
                # A retry would fail in the same way.
                self._env.emit("chat_list_unreadable", error=error)
                continue
            failures = 0
            for row in rows:
                self._on_read(row, batch.get(row.id), views)
            await self._env.clock.sleep(self._config.coalesce_s, "chat_list_read")

    async def _read_rows(self, batch: Mapping[ChatId, str | None]) -> list[Chat]:
        """Of a chat whose readers changed also the subagents."""
        rows = await chats.get_many(self._conn, FEEDS, list(batch))
        shared = [row.id for row in rows if batch[row.id] == SHARE_HINT_KIND]
        if shared:
            known = {row.id for row in rows}
            children = await chats.list_children(self._conn, FEEDS, shared)
            rows += [child for child in children if child.id not in known]
        return rows

    def _missing_views(
        self, rows: Sequence[Chat], batch: Mapping[ChatId, str | None]
    ) -> list[tuple[UserId, ChatId]]:
        return [
            (user_id, row.id)
            for row in rows
            for user_id, user_list in self._interested(row.owner_id, row.root_chat_id)
            if batch.get(row.id) in VIEW_HINT_KINDS or user_list.known_view(user_id, row) is None
        ]

    def _on_read(
        self, row: Chat, kind: str | None, views: Mapping[tuple[UserId, ChatId], ReaderView]
    ) -> None:
        """Users of whom the view was neither read nor known have begun to watch since, and list the
        chat. Another read may have brought a later read mark."""
        for user_id, user_list in self._interested(row.owner_id, row.root_chat_id):
            known = user_list.known_view(user_id, row)
            view = views.get((user_id, row.id)) or known
            if view is None:
                continue
            if known is not None:
                read_up_to = max(known.read_up_to, view.read_up_to)
                view = msgspec.structs.replace(view, read_up_to=read_up_to)
            self._send(user_list, row, kind, view)

    async def _poll_periodically(self) -> None:
        while True:
            if not self._users:
                self._has_users.clear()
                await self._has_users.wait()
            await self._env.clock.sleep(self._config.poll_s, "chat_list_poll")
            try:
                # Look further back than the last poll, which may have been slow or have failed.
                users, max_age_s = list(self._users), 3 * self._config.poll_s
                rows = await chats.list_recently_active(self._conn, users, max_age_s=max_age_s)
                shared = await shares.list_recently_active(self._conn, users, max_age_s=max_age_s)
            except READ_ERRORS as error:
                self._env.emit("chat_list_poll_failed", error=error)
                continue
            for user_id, row in shared:
                self._shares.add_root(user_id, row.id)
            for row in (*rows, *(row for _, row in shared)):
                self.on_metadata_changed(row)


class ProjectNotices:
    """Tells users with open chat-list streams that one of their projects has changed."""

    def __init__(
        self,
        conn: Conn,
        chat_lists: ChatListFeeds,
        changes: ConfigChanges,
        background_tasks: BackgroundTasks,
    ) -> None:
        self._conn = conn
        self._chat_lists = chat_lists
        self._background_tasks = background_tasks
        changes.subscribe(self._on_change)

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind not in ("project", "project_access"):
            return
        try:
            changed = UUID(change.id)
        except ValueError:  # Every database user can write to the channel.
            return
        if change.kind == "project_access":
            self._chat_lists.send_to(UserId(changed), PROJECTS_FRAME)
        elif self._chat_lists.watching_users():
            self._background_tasks.submit("project_notice", lambda: self._send(ProjectId(changed)))

    async def _send(self, project_id: ProjectId) -> None:
        watching = self._chat_lists.watching_users()
        for user in await projects.list_members_among(self._conn, project_id, watching):
            self._chat_lists.send_to(user, PROJECTS_FRAME)


# Tell users with open chat-list streams that they have spent most of their limit.
#
# A warning is a row, written once in a period by one replica. All replicas hear of it; those with a
# stream of the user read the row and send it.

MAX_NOTICES_REMEMBERED: Final = 10_000


class SpendNotices:
    """`default` is the limit of the settings."""

    def __init__(
        self,
        conn: Conn,
        default: DefaultLimit,
        chat_lists: ChatListFeeds,
        changes: ConfigChanges,
        background_tasks: BackgroundTasks,
    ) -> None:
        self._conn = conn
        self._default = default
        self._chat_lists = chat_lists
        self._background_tasks = background_tasks
        self._sent: dict[UserId, tuple[object, int]] = {}
        changes.subscribe(self._on_change)

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind != "spend_warning":
            return
        try:
            user_id = UserId(UUID(change.id))
        except ValueError:  # Every database user can write to the channel.
            return
        if self._chat_lists.is_watched(user_id):
            self._background_tasks.submit("spend_notice", lambda: self._send(user_id))

    async def _send(self, user_id: UserId) -> None:
        """The newest warning, if it was not sent yet."""
        found = await spend.read_spending(self._conn, user_id, self._default)
        warnings = await spend.list_warnings(self._conn, user_id, found.period_start)
        if not warnings:
            return
        newest = warnings[-1]
        mark = (found.period_start, newest.percent)
        if self._sent.get(user_id) == mark:
            return
        if len(self._sent) >= MAX_NOTICES_REMEMBERED:
            self._sent.clear()
        self._sent[user_id] = mark
        event = SpendWarningEvent(
            percent=newest.percent,
            spent_micros=newest.spent_micros,
            limit_micros=newest.limit_micros,
            resets_at=found.resets_at,
        )
        self._chat_lists.send_to(user_id, encode_value(event))
