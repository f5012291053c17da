"""Connections of Socket Mode: events of Slack come in over a WebSocket that chatd opens.

One process of the deployment holds the connection of each workspace of Slack, by a lease in its
row; another takes over when the lease ends. Slack is told that an event was received only when it
is stored: what a process that died had not stored, Slack sends again.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Literal
from uuid import UUID

import aiohttp
import msgspec
from msgspec import Struct

from chatd.aio import InterruptibleSleep
from chatd.domain.backoff import doubled_s, spread
from chatd.domain.deployment.slack import SlackConnection, SlackPayload, read_payload, read_slack
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env
from chatd.domain.text import clip
from chatd.guarded_dial import guarded_session
from chatd.sealed_secrets import KeyRing
from chatd.services.slack.slack_api import SlackApi, SlackCallFailed, SlackRequests
from chatd.store.database.conn import Conn
from chatd.store.deployment import slack, slack_work
from chatd.store.deployment.slack import SLACK_APP_TOKEN, SLACK_BOT_TOKEN, OpenSlack

SOCKET_LEASE_S: Final = 15.0
SOCKET_RENEWAL_S: Final = 5.0
IDLE_RENEWAL_S: Final = 60.0
"""While no connection is enabled."""
STORE_TIMEOUT_S: Final = 2.5
"""Slack sends an event again if it is not told within three seconds."""
HELLO_TIMEOUT_S: Final = 20.0
PING_INTERVAL_S: Final = 15.0
"""Without an answer to a ping for half of it the connection is closed and opened again."""
MAX_ENVELOPE_BYTES: Final = 1024 * 1024
FIRST_RECONNECT_S: Final = 1.0
MAX_RECONNECT_S: Final = 60.0
MIN_CONNECTION_S: Final = 10.0
"""A connection that Slack renews sooner is opened again after a delay."""
REFUSED_RECONNECT_S: Final = 300.0
"""After a token was refused, unless the connection is changed."""

SocketEnd = Literal["refresh", "closed", "disabled"]


class _Envelope(Struct, frozen=True, kw_only=True):
    type: str = ""
    envelope_id: str = ""
    reason: str = ""
    payload: object = None


def open_api(requests: SlackRequests, ring: KeyRing, found: OpenSlack) -> SlackApi:
    """Raises SecretUnreadable."""
    one = found.connection.id
    bot_token = ring.open(found.sealed_bot_token, SLACK_BOT_TOKEN.context(one))
    return requests.api(bot_token, ring.open(found.sealed_app_token, SLACK_APP_TOKEN.context(one)))


async def refuse_twin(conn: Conn, connection_id: UUID) -> None:
    """Slack sends each event to one connection of an app only, so an app has one connection.
    Raises SlackCallFailed."""
    name = await slack.find_twin(conn, connection_id)
    if name is not None:
        text = f"The connection {name} has this app of Slack already. Delete one of them."
        raise SlackCallFailed("refused", text)


class SlackSockets:
    """`run` works until it is cancelled. `wake` lets the worker of events look now."""

    def __init__(
        self, conn: Conn, env: Env, ring: KeyRing, requests: SlackRequests, wake: Callable[[], None]
    ) -> None:
        self._conn = conn
        self._env = env
        self._ring = ring
        self._requests = requests
        self._wake = wake
        self._holder = env.new_id()
        self._pause = InterruptibleSleep(env.clock)
        self._tasks: dict[UUID, tuple[OpenSlack, asyncio.Task[None]]] = {}

    def on_change(self) -> None:
        """A connection was added or changed on this replica."""
        self._pause.wake()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    interval_s = SOCKET_RENEWAL_S if await self._renew(group) else IDLE_RENEWAL_S
                    await self._pause.sleep(interval_s, "slack_sockets")
        finally:
            for connection_id in self._tasks:
                with contextlib.suppress(ChatdError):
                    await slack.release(self._conn, connection_id, self._holder)
            self._tasks.clear()

    async def _renew(self, group: asyncio.TaskGroup) -> bool:
        """Hold what this process may hold. Whether any connection is enabled."""
        try:
            enabled = {one.connection.id: one for one in await slack.list_open(self._conn)}
            held = {
                one: enabled[one]
                for one in enabled
                if await slack.hold(self._conn, one, self._holder, SOCKET_LEASE_S)
            }
        except ChatdError as error:
            # The lease may end: then another process connects too, and each event is stored once.
            self._env.emit("slack_unread", error_kind=error.code)
            return True
        stale = [
            one
            for one, (known, task) in self._tasks.items()
            if task.done() or one not in held or held[one].updated_at != known.updated_at
        ]
        await self._end(stale)
        for one, found in held.items():
            if one not in self._tasks:
                task = group.create_task(self._hold(found), name=f"slack {one}")
                self._tasks[one] = (found, task)
        return bool(enabled)

    async def _end(self, connection_ids: list[UUID]) -> None:
        tasks = [self._tasks.pop(one)[1] for one in connection_ids]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold(self, found: OpenSlack) -> None:
        """Connect, and again after each end."""
        failures, connection_id = 0, found.connection.id
        while True:
            wait_s, began_s = None, self._env.clock.monotonic()
            try:
                end = await self._connect(found)
                has_lasted = self._env.clock.monotonic() - began_s >= MIN_CONNECTION_S
                failures = failures + 1 if not has_lasted else 0 if end == "refresh" else 1
                if end == "disabled":
                    text = "Socket Mode is turned off for the app: turn it on in its settings."
                    await slack.set_problem(self._conn, connection_id, text)
                    wait_s = REFUSED_RECONNECT_S
            except SlackCallFailed as error:
                failures += 1
                self._env.emit("slack_failed", connection_id=connection_id, reason=error.reason)
                wait_s = error.wait_s
                if error.reason in ("refused", "rejected"):
                    wait_s = REFUSED_RECONNECT_S
                    await self._note(connection_id, error.message)
            except ChatdError as error:
                failures += 1
                self._env.emit("slack_unread", error_kind=error.code)
            except Exception as error:  # noqa: BLE001 - one connection must not end the others
                failures += 1
                self._env.emit("slack_work_failed", error=error, error_kind="bug")
            if failures:
                own_s = doubled_s(failures, first_s=FIRST_RECONNECT_S, max_s=MAX_RECONNECT_S)
                delay_s = spread(max(own_s, wait_s or 0.0), self._env.jitter())
                await self._env.clock.sleep(delay_s, "slack_reconnect")

    async def _note(self, connection_id: UUID, problem: str) -> None:
        with contextlib.suppress(ChatdError):
            await slack.set_problem(self._conn, connection_id, problem)

    async def _connect(self, found: OpenSlack) -> SocketEnd:
        """Until the connection ends. Raises SlackCallFailed, Unavailable."""
        api = open_api(self._requests, self._ring, found)
        connection = await self._identify(api, found.connection)
        url = await api.open_socket()
        schemes = ("wss://", "ws://") if self._requests.allow_private else ("wss://",)
        if not url.startswith(schemes):
            raise SlackCallFailed("unavailable", "Slack named an address without TLS.")
        try:
            async with (
                guarded_session(allow_private=self._requests.allow_private) as session,
                asyncio.timeout(HELLO_TIMEOUT_S) as limit,
                session.ws_connect(
                    url, heartbeat=PING_INTERVAL_S, max_msg_size=MAX_ENVELOPE_BYTES
                ) as socket,
            ):
                return await self._receive(socket, connection, limit)
        except TimeoutError:
            raise SlackCallFailed("unavailable", "Slack did not say hello in time.") from None
        except (aiohttp.ClientError, OSError) as error:
            # Not its words: they may have the address, which is a secret.
            text = f"Slack cannot be reached: {type(error).__name__}"
            raise SlackCallFailed("unavailable", text) from None

    async def _identify(self, api: SlackApi, connection: SlackConnection) -> SlackConnection:
        """The connection with what Slack says of its bot token now."""
        bot = await api.check()
        known = (connection.team_id, connection.team_name, connection.bot_user_id)
        if known != (bot.team_id, bot.team, bot.user_id):
            await slack.set_team(
                self._conn,
                connection.id,
                team_id=bot.team_id,
                team_name=clip(bot.team, 200),
                bot_user_id=bot.user_id,
            )
        await refuse_twin(self._conn, connection.id)
        return msgspec.structs.replace(
            connection, team_id=bot.team_id, team_name=bot.team, bot_user_id=bot.user_id
        )

    async def _receive(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        connection: SlackConnection,
        limit: asyncio.Timeout,
    ) -> SocketEnd:
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                try:
                    envelope = read_slack(message.data, _Envelope)
                except (msgspec.DecodeError, UnicodeError, RecursionError):
                    continue
                if envelope.type == "hello":
                    limit.reschedule(None)
                    await self._set_connected(connection.id, is_connected=True)
                    await slack.set_problem(self._conn, connection.id, None)
                elif envelope.type == "disconnect":
                    return "disabled" if envelope.reason == "link_disabled" else "refresh"
                elif envelope.envelope_id and await self._store(connection, envelope):
                    await socket.send_json({"envelope_id": envelope.envelope_id})
            return "closed"
        finally:
            await self._set_connected(connection.id, is_connected=False)

    async def _set_connected(self, connection_id: UUID, *, is_connected: bool) -> None:
        with contextlib.suppress(ChatdError):
            await slack.set_connected(
                self._conn, connection_id, self._holder, is_connected=is_connected
            )

    async def _store(self, connection: SlackConnection, envelope: _Envelope) -> bool:
        """Whether Slack may be told that it was received."""
        if envelope.type not in ("events_api", "interactive"):
            return True
        try:
            payload = msgspec.convert(envelope.payload, SlackPayload)
        except msgspec.ValidationError:
            return True  # nothing that chatd reads has this form
        event = read_payload(payload, connection)
        if isinstance(event, str):
            return True
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                stored = await slack_work.store_event(self._conn, connection.id, event)
        except (ChatdError, TimeoutError) as error:
            kind = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("slack_unread", error_kind=kind)
            return False
        if stored == "full":
            self._env.emit("slack_events_full", connection_id=connection.id)
            return False
        self._wake()
        return True
