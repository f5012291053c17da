"""Follow a turn until it is over, through the death of its worker and an absence of the database.

It only reads: the end of the connection changes nothing in the chat.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Final

from chatd.api.deps import ApiDeps
from chatd.api.openai.conversations import PAGE_SIZE, BegunTurn, client_tool_names
from chatd.api.openai.protocol import not_found
from chatd.api.openai.turns import Turn, TurnReader, asks
from chatd.api.operations import audit_read
from chatd.api.request import ApiCaller
from chatd.api.streams import StreamAccess
from chatd.client.frames import read_event
from chatd.client.state import ReceivedChat, ShownChat, reduce, start
from chatd.domain.chat.messages import PublicMessage, public_message
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.events import Cursor, HistoryReset, requested_calls
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId, MessageId
from chatd.store.chat import message_pages
from chatd.store.chat.message_pages import MessageRange
from chatd.stream.fanout import Lagged

MAX_TURN_MESSAGES: Final = 5_000
"""Of a longer turn only its beginning is read."""
REOPEN_DELAY_S: Final = 1.0
MAX_REOPENINGS: Final = 300
"""Without anything new between them; then the client is told that the database is away."""


class LiveTurns:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    async def read(self, caller: ApiCaller, begun: BegunTurn, *, asks_here: bool) -> Turn:
        """The turn as it is now, without what is not committed. Raises Refused (404)."""
        chat, messages = await self._load(caller, begun)
        await audit_read(self._deps, caller, chat)
        return _reader(begun, asks_here=asks_here).read(_shown(chat, messages))

    async def follow(
        self, caller: ApiCaller, access: StreamAccess, begun: BegunTurn, *, asks_here: bool
    ) -> AsyncGenerator[Turn]:
        """The turn as it grows; the last one is over. Raises NotFound, Unavailable."""
        reader, failures, is_new = _reader(begun, asks_here=asks_here), 0, begun.is_new
        while True:
            try:
                states = self._follow(caller, access, begun, reader, is_new=is_new)
                async with aclosing(states):
                    async for turn in states:
                        failures = 0
                        yield turn
                        if turn.is_over:
                            return
            except (Unavailable, Lagged):
                failures += 1
                if failures > MAX_REOPENINGS:
                    raise
                await self._deps.env.clock.sleep(REOPEN_DELAY_S, "openai_reopen")
            is_new = False

    async def _follow(
        self,
        caller: ApiCaller,
        access: StreamAccess,
        begun: BegunTurn,
        reader: TurnReader,
        *,
        is_new: bool,
    ) -> AsyncGenerator[Turn]:
        """Ends early if the feed begins anew: then the chat is read again."""
        deps, chat_id = self._deps, begun.chat.id
        received, cursor = start(chat_id), None
        if not is_new:
            chat, messages = await self._load(caller, begun)
            shown = _shown(chat, messages)
            received, cursor = ReceivedChat(shown=shown), Cursor.of(chat)
            turn = reader.read(shown)
            yield turn
            if turn.is_over:
                return
        async with AsyncExitStack() as held:
            read = held.enter_context(access.read(chat_id))
            viewer = await deps.retry(
                lambda: held.enter_async_context(
                    deps.feeds.open_viewer(caller.actor, chat_id, cursor)
                )
            )
            read.lost = viewer.revoke
            if (row := deps.feeds.known(chat_id)) is not None:
                access.on_read(read, row)
                await audit_read(deps, caller, row)
            while True:
                for data in (await viewer.next()).events:
                    event = read_event(data)
                    if isinstance(event, HistoryReset):
                        return
                    if event is not None:
                        received = reduce(received, event)
                if received.shown.is_loaded:
                    yield reader.read(received.shown)

    async def _load(
        self, caller: ApiCaller, begun: BegunTurn
    ) -> tuple[Chat, tuple[PublicMessage, ...]]:
        """The messages from that of the turn on, up to the next turn."""
        found: list[PublicMessage] = []
        tools, after = client_tool_names(begun.chat), MessageId(begun.id.anchor - 1)
        while True:
            which = MessageRange(after=after, limit=PAGE_SIZE)
            page = await self._deps.read(
                message_pages.load_page, caller.actor, begun.chat.id, which
            )
            if page is None or (not found and not page.messages):
                raise not_found("There is no such response.")
            if not found and page.messages[0].id != begun.id.anchor:
                raise not_found("There is no such response.")
            seen = (public_message(begun.chat.id, row) for row in page.messages)
            found += [one for one in seen if one is not None]
            is_past = any(asks(one, tools) for one in found if one.id > begun.id.anchor)
            if not page.has_more or is_past or len(found) > MAX_TURN_MESSAGES:
                return page.chat, tuple(found)
            after = page.messages[-1].id


def _reader(begun: BegunTurn, *, asks_here: bool) -> TurnReader:
    return TurnReader(begun.id, client_tool_names(begun.chat), asks_here=asks_here)


def _shown(chat: Chat, messages: tuple[PublicMessage, ...]) -> ShownChat:
    return ShownChat(
        chat_id=ChatId(chat.id),
        is_loaded=True,
        version=chat.snapshot_version,
        cursor=str(Cursor.of(chat)),
        status=chat.public_status,
        messages=messages,
        has_older=True,
        retry=chat.retry_state,
        error=chat.last_error if chat.public_status == "error" else None,
        requested_calls=requested_calls(chat) if chat.public_status == "requires_action" else (),
    )
