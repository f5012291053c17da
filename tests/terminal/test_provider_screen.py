"""/connect: a provider is connected in the terminal, by who may."""

from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Input

from chatd.terminal.screens.provider_screen import ProviderScreen
from tests.support.providers.openai_chat import FakeCompatible, stream
from tests.support.providers.server import RecordedRequest, Reply
from tests.support.terminal import (
    SMALL,
    run_terminal,
    screen_text,
    serve_terminal,
    until_shown,
)

KEY = "sk-never-shown"


class KeyedServer(FakeCompatible):
    """Lists two models, and refuses other keys."""

    def refuse(self, request: RecordedRequest) -> Reply | None:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return Reply(status=401, steps=(b'{"error": {"message": "wrong key"}}',))
        if request.method == "GET":
            listed = b'{"data": [{"id": "Qwen/Qwen3"}, {"id": "small"}]}'
            return Reply(headers={"content-type": "application/json"}, steps=(listed,))
        return super().refuse(request)


def write(pilot: Pilot[None], text: str) -> None:
    """At once: a key takes a tenth of a second here."""
    pilot.app.screen.query_one(Input).value = text


async def test_a_provider_is_connected_from_its_address_to_its_models(
    dsn: str, tmp_path: Path
) -> None:
    """A server of its own, and a wrong key first."""
    async with (
        serve_terminal(dsn, tmp_path) as server,
        KeyedServer.running() as vendor,
        run_terminal(server, size=SMALL) as pilot,
    ):
        await pilot.press(*"/connect", "enter")
        await until_shown(pilot, "Whose models?")
        await pilot.press("5")
        await until_shown(pilot, "Its address, such as")
        write(pilot, f"{vendor.url}/v1")
        await pilot.press("enter")
        await until_shown(pilot, "Its name here")
        await pilot.press("enter")
        await until_shown(pilot, "API key (empty if it needs none)")
        write(pilot, "sk-wrong")
        await until_shown(pilot, "••••••••")
        assert "sk-wrong" not in screen_text(pilot)
        await pilot.press("enter")
        shown = await until_shown(pilot, "Nothing was stored")
        assert "The provider refuses the key" in shown
        await pilot.press("enter")
        await until_shown(pilot, "Whose models?")
        await pilot.press("5")
        await until_shown(pilot, "Its address, such as")
        write(pilot, f"{vendor.url}/v1")
        await pilot.press("enter")
        await until_shown(pilot, "Its name here")
        await pilot.press("enter")
        await until_shown(pilot, "API key")
        vendor.script(stream("text"))
        write(pilot, KEY)
        await pilot.press("enter")
        shown = await until_shown(pilot, "Models of local")
        assert "[x] Qwen/Qwen3" in shown
        await pilot.press("2", "escape")
        await until_shown(pilot, "The model of chats that name none")
        await pilot.press("3")
        shown = await until_shown(pilot, "small is there: the default")
        assert "qwen-qwen3 is there" in shown
        assert KEY not in shown
        await pilot.press("escape")
        await until_shown(pilot, "small")
    assert vendor.requests[-1].headers["authorization"] == f"Bearer {KEY}"


async def test_a_user_is_told_who_connects_providers_and_may_bring_a_key_where_that_is_allowed(
    dsn: str, tmp_path: Path
) -> None:
    """A server of its own, with a user who is no administrator."""
    async with serve_terminal(dsn, tmp_path) as server:
        member = await server.call("POST", "/users", {"username": "ada", "is_service": True})
        token = await server.call("POST", f"/users/{member['id']}/tokens", {"name": "laptop"})
        async with run_terminal(server, size=SMALL, token=str(token["token"])) as pilot:
            pilot.app.push_screen(ProviderScreen())
            await until_shown(pilot, "Only an administrator connects providers here")
            body = {"name": "house", "kind": "openai", "user_keys": True}
            await server.call("POST", "/providers", body)
            await pilot.press("enter")
            await until_shown(pilot, "A key of your own")
            await pilot.press("1")
            await until_shown(pilot, "Your API key for house")
            write(pilot, KEY)
            await pilot.press("enter")
            shown = await until_shown(pilot, "is stored; it was not tested")
            assert KEY not in shown
