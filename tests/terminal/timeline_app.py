"""A terminal with nothing but a timeline, whose states the test gives."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, Literal
from uuid import UUID

from aiohttp import ClientSession
from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.pilot import Pilot

from chatd.client.connection import Connection, FollowedChat
from chatd.client.drafts import PendingSend
from chatd.client.outbox import Outbox
from chatd.client.resources import Me, User
from chatd.client.server import ServerAddress, ServerApi
from chatd.client.state import ShownChat
from chatd.domain.ids import UserId
from chatd.terminal.messages import EditMessage, OpenChat, OpenScreen, ShowNotice
from chatd.terminal.session import Session, SessionApp
from chatd.terminal.themes import THEMES
from chatd.terminal.timeline.timeline import Timeline
from tests.support.clock import FakeClock

USER: Final = UserId(UUID(int=7))


class TimelineApp(SessionApp):
    """`posted` are the messages that the timeline sent to the main screen."""

    CSS = "Timeline { height: 1fr; }"

    def __init__(self, session: Session, theme: Literal["dark", "light"]) -> None:
        super().__init__(session)
        self.posted: list[Message] = []
        for each in THEMES.values():
            self.register_theme(each)
        self.theme = f"chatd-{theme}"

    def compose(self) -> ComposeResult:
        yield Timeline()

    @property
    def timeline(self) -> Timeline:
        return self.query_one(Timeline)

    def show(self, chat: ShownChat, pending: tuple[PendingSend, ...] = ()) -> None:
        self.timeline.show(FollowedChat(shown=chat, pending=pending))

    @on(OpenChat)
    @on(OpenScreen)
    @on(EditMessage)
    @on(ShowNotice)
    def keep(self, message: Message) -> None:
        self.posted.append(message)


@asynccontextmanager
async def run_timeline(
    *, size: tuple[int, int] = (80, 24), theme: Literal["dark", "light"] = "dark"
) -> AsyncGenerator[tuple[TimelineApp, Pilot[None]]]:
    """Nothing answers at its server: what is shown is what the test gives."""
    clock = FakeClock()
    server = ServerAddress(url="http://127.0.0.1:1", token="-")
    async with ClientSession() as http:
        api = ServerApi(server, http, clock=clock, patience_s=0.0)
        connection = Connection(api)
        session = Session(
            server=server,
            api=api,
            connection=connection,
            outbox=Outbox(api, connection),
            me=Me(user=User(id=USER)),
            clock=clock,
        )
        app = TimelineApp(session, theme)
        async with app.run_test(size=size) as pilot:
            yield app, pilot


def screen_lines(app: TimelineApp) -> list[str]:
    """The characters of the screen."""
    strips = app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]
