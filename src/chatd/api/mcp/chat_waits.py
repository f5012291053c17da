"""Wait until a chat needs somebody: it waits for a message, has failed, or asks for an action.

A wait only reads. It follows the chat's feed, which hears of the work of all replicas, so that the
death of the chat's worker only makes it longer. The end of a wait changes nothing in the chat.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from chatd.aio import first_of
from chatd.api.deps import ApiDeps
from chatd.api.mcp.results import last_words, spoken_text
from chatd.api.mcp.tool_schemas import BUSY
from chatd.api.mcp.toolset import Progress, ToolCall
from chatd.api.operations import audit_read
from chatd.client.frames import read_event
from chatd.client.state import ShownChat, reduce, start
from chatd.domain.errors import ChatdError, NotFound, Unavailable
from chatd.domain.ids import ChatId
from chatd.stream.fanout import Lagged
from chatd.stream.feed_registry import Viewer

REPORT_INTERVAL_S: Final = 1.0
"""Between two reports of progress, if there is something new."""
REPORT_ANYWAY_S: Final = 5.0
"""Between two reports without anything new: some clients give up a call that reports nothing."""
REOPEN_DELAY_S: Final = 1.0


class ChatWaits:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    async def wait(self, call: ToolCall, chat_id: ChatId, timeout_s: float) -> ShownChat:
        """The chat at the end of the wait. Raises NotFound, and Unavailable if the database was
        away until the end."""
        clock = self._deps.env.clock
        late_s = clock.now().timestamp() - call.started_ms / 1000 if call.is_resumed else 0.0
        until = clock.monotonic() + max(0.0, timeout_s - max(0.0, late_s))
        reports = WaitReports(call, timeout_s, clock.monotonic() - max(0.0, late_s))
        while True:
            try:
                return await self._follow(call, chat_id, until, reports)
            except (Unavailable, Lagged):
                if clock.monotonic() + REOPEN_DELAY_S >= until:
                    raise
            await clock.sleep(REOPEN_DELAY_S, "mcp_wait_reopen")

    async def _follow(
        self, call: ToolCall, chat_id: ChatId, until: float, reports: "WaitReports"
    ) -> ShownChat:
        deps, actor = self._deps, call.caller.actor
        watch = ChatWatch(chat_id)
        assert call.access is not None  # the tool streams
        async with AsyncExitStack() as held:
            read = held.enter_context(call.access.read(chat_id))
            read.lost = watch.lose
            viewer = await deps.retry(
                lambda: held.enter_async_context(deps.feeds.open_viewer(actor, chat_id, None))
            )
            if (chat := deps.feeds.known(chat_id)) is not None:
                call.access.on_read(read, chat)
                await audit_read(deps, call.caller, chat)
            async with asyncio.TaskGroup() as group:
                following = group.create_task(watch.follow(viewer))
                await self._until_ended(watch, until, reports)
                following.cancel()
        return watch.result()

    async def _until_ended(self, watch: "ChatWatch", until: float, reports: "WaitReports") -> None:
        clock = self._deps.env.clock
        # The first state is always awaited: the join has read it.
        await watch.loaded.wait()
        while not watch.ended.is_set() and (left_s := until - clock.monotonic()) > 0:
            await reports.report(watch.shown, clock.monotonic())
            pause = clock.sleep(min(left_s, REPORT_INTERVAL_S), "mcp_wait")
            await first_of(watch.ended.wait(), pause)


class ChatWatch:
    """The state of a chat, kept current. `ended` is set once the chat is no longer busy, or cannot
    be read."""

    def __init__(self, chat_id: ChatId) -> None:
        self._received = start(chat_id)
        self._error: ChatdError | None = None
        self.loaded = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def shown(self) -> ShownChat:
        return self._received.shown

    async def follow(self, viewer: Viewer) -> None:
        try:
            while True:
                for data in (await viewer.next()).events:
                    if (event := read_event(data)) is not None:
                        self._received = reduce(self._received, event)
                if self.shown.is_loaded:
                    self._update()
        except ChatdError as error:
            self._fail(error)

    def _update(self) -> None:
        self.loaded.set()
        if self.shown.status in BUSY:
            self.ended.clear()
        else:
            self.ended.set()

    def lose(self) -> None:
        """The caller may no longer read the chat."""
        self._fail(NotFound("There is no such chat."))

    def _fail(self, error: ChatdError) -> None:
        self._error = error
        self.loaded.set()
        self.ended.set()

    def result(self) -> ShownChat:
        if self._error is not None:
            raise self._error
        return self.shown


class WaitReports:
    """Tells the client the status and the last words of the answer, not too often."""

    def __init__(self, call: ToolCall, total_s: float, began: float) -> None:
        self._call = call
        self._total_s = total_s
        self._began = began
        self._last = ""
        self._next_at = began

    async def report(self, shown: ShownChat, now: float) -> None:
        text = _describe(shown)
        if text == self._last and now < self._next_at:
            return
        self._last, self._next_at = text, now + REPORT_ANYWAY_S
        done = min(round(now - self._began, 3), self._total_s)
        await self._call.report(Progress(done=done, total=self._total_s, message=text))


def _describe(shown: ShownChat) -> str:
    said = "" if shown.live is None else last_words(spoken_text(shown.live.parts))
    if shown.retry is not None:
        return f"{shown.status}, the model is called again"
    return f"{shown.status}: {said}" if said else shown.status
