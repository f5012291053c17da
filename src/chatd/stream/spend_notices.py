"""Tell users with open chat-list streams that they have spent most of their limit.

A warning is a row, written once in a period by one replica. All replicas hear of it; those with a
stream of the user read the row and send it.
"""

from typing import Final
from uuid import UUID

from chatd.aio import BackgroundTasks
from chatd.domain.chat_views.events import encode_value
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.spend import SpendWarningEvent
from chatd.domain.ids import UserId
from chatd.store.conn import Conn
from chatd.store.model import spend
from chatd.store.model.spend import DefaultLimit
from chatd.store.notifications import ConfigChanges
from chatd.stream.chat_list import ChatListFeeds

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
