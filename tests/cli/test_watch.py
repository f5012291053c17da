"""Commands that need the state of a chat from a server that does not let it be followed."""

import pytest

from chatd.cli.chats.run_follow import NotFollowed, load_chat
from chatd.client.exchange import ServerAddress
from chatd.client.server import open_api
from tests.support.providers.server import FakeServer
from tests.support.shown_chats import CHAT


async def test_a_chat_that_cannot_be_followed_is_said_and_given_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As behind a proxy that passes no WebSockets on: every request for one fails."""
    async with FakeServer.running() as fake:
        async with open_api(ServerAddress(url=fake.url, token="t")) as api:
            with pytest.raises(NotFollowed, match="does not pass WebSockets on"):
                await load_chat(api, CHAT, timeout_s=0.3)
        assert {one.path for one in fake.requests} == {"/api/v1/ws"}
        fake.faults.clear()
    told = capsys.readouterr().err
    assert told.count("The connection was lost") == 1
