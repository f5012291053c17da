"""`chatd login`, `whoami` and `logout` as a user runs them, at a real server."""

import asyncio
import os
import pty
import stat
from asyncio.subprocess import PIPE
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession

from chatd.domain.description import USER_ID
from tests.support.chaos.servers import AUTH, TOKEN, Installation, server
from tests.support.mcp.servers import CHATD
from tests.support.providers.certificate import self_signed
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import FakeServer

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)

PASSWORD = "correct horse battery"
Json = dict[str, object]


class Person:
    """Runs commands with a home of their own, whose settings name a data directory without a
    server: as root they would otherwise find the one of the machine."""

    def __init__(self, home: Path, url: str) -> None:
        self.env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        self.profiles = home / ".config" / "chatd" / "profiles.toml"
        self.profiles.parent.mkdir(parents=True)
        (self.profiles.parent / "chatd.toml").write_text(f'data_dir = "{home / "data"}"\n')
        self.url = url

    async def run(self, *arguments: object, given: str = "") -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(CHATD, *map(str, arguments)), env=self.env, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate(given.encode())
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def type_in(self, *arguments: object, answers: dict[str, str]) -> str:
        """On a terminal: each answer is typed after its question. Returns what the screen shows."""
        terminal, inner = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(CHATD, *map(str, arguments)),
            env=self.env,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        shown = ""
        try:
            for question, answer in answers.items():
                while question not in shown:
                    shown += (await asyncio.to_thread(os.read, terminal, 4096)).decode()
                os.write(terminal, f"{answer}\n".encode())
            while True:
                try:
                    shown += (await asyncio.to_thread(os.read, terminal, 4096)).decode()
                except OSError:
                    break
        finally:
            if process.returncode is None and not await _ended(process):
                process.kill()
            await process.wait()
            os.close(terminal)
        return shown


async def _ended(process: asyncio.subprocess.Process) -> bool:
    try:
        async with asyncio.timeout(30):
            await process.wait()
    except TimeoutError:
        return False
    return True


async def tokens(http: ClientSession, token: str) -> list[str]:
    """The names of the caller's tokens; empty if the token is not accepted."""
    headers = {"Authorization": f"Bearer {token}"}
    async with http.get("/api/v1/auth/tokens", headers=headers) as reply:
        if reply.status == 401:
            return []
        return [one["name"] for one in (await reply.json())["items"]]


@pytest.mark.promise("P13")
async def test_a_person_signs_in_looks_and_signs_out(dsn: str, tmp_path: Path) -> None:
    async with FakeCompatible.running() as model:
        installation = Installation(dsn=dsn, model_url=model.url, data_dir=tmp_path / "data")
        async with server(installation) as at, ClientSession(at.url) as http:
            body = {"username": "ada", "role": "member", "password": PASSWORD}
            async with http.post("/api/v1/users", json=body, headers=AUTH) as reply:
                assert reply.status == 201
            ada = Person(tmp_path / "ada", at.url)
            await check_password(ada)
            saved = await check_terminal(ada)
            await check_log_out(ada, http, saved)
            await check_token(Person(tmp_path / "bob", at.url), tmp_path)


async def check_password(ada: Person) -> None:
    login = ("login", f"{ada.url}/api/v1/", "--username", "ada", "--profile", "work")
    code, out, err = await ada.run(*login, given="wrong\n")
    assert (code, out) == (3, "")
    assert "wrong" in err
    assert "--token-file" not in err
    assert not ada.profiles.exists()
    code, out, err = await ada.run(*login, given=f"{PASSWORD}\n")
    assert (code, out, err) == (0, f"Signed in as ada at {ada.url}, as the profile work.\n", "")
    assert stat.S_IMODE(ada.profiles.stat().st_mode) == 0o600
    assert PASSWORD not in ada.profiles.read_text()
    assert (await ada.run("whoami"))[1] == f"ada (member) at {ada.url} (work)\n"
    shown = msgspec.json.decode((await ada.run("whoami", "--json"))[1], type=Json)
    assert (shown["url"], shown["profile"]) == (ada.url, "work")
    assert msgspec.convert(shown["user"], Json)["username"] == "ada"


async def check_terminal(ada: Person) -> str:
    """Returns the token of the first sign-in, which the second one replaces."""
    first = ada.profiles.read_text().partition('\ntoken = "')[2].partition('"')[0]
    answers = {"Username: ": "ada", "Password of ada: ": PASSWORD}
    shown = await ada.type_in("login", ada.url, "--profile", "work", answers=answers)
    assert "Signed in as ada" in shown
    assert PASSWORD not in shown
    return first


async def check_log_out(ada: Person, http: ClientSession, first: str) -> None:
    token = ada.profiles.read_text().partition('\ntoken = "')[2].partition('"')[0]
    assert first != token
    assert await tokens(http, first) == [], "signing in again revokes the token before"
    (name,) = await tokens(http, token)
    assert name.startswith("chatd on ")
    code, out, _ = await ada.run("logout")
    assert (code, out) == (0, f"Signed out of {ada.url}; the profile work is removed.\n")
    assert await tokens(http, token) == []
    assert token not in ada.profiles.read_text()
    code, out, err = await ada.run("whoami")
    assert (code, out) == (2, "")
    assert "chatd login URL" in err
    assert (await ada.run("logout"))[2] == "chatd: you are not signed in\n"


async def check_token(bob: Person, tmp_path: Path) -> None:
    """By a token in a file and on standard input; a server that has gone."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    for arguments, given in ((("--token-file", file), ""), (("--token-file", "-"), TOKEN)):
        code, out, err = await bob.run("login", bob.url, *arguments, given=given)
        assert (code, err) == (0, "")
        assert "Signed in as admin" in out
    assert TOKEN not in bob.profiles.read_text(), "it has a token of its own"
    assert TOKEN not in (await bob.run("login", bob.url, given="chatd_not_a_token"))[2]


async def test_a_server_that_has_gone_keeps_the_sign_in_until_it_is_forgotten(
    dsn: str, tmp_path: Path
) -> None:
    async with FakeCompatible.running() as model:
        installation = Installation(dsn=dsn, model_url=model.url, data_dir=tmp_path / "data")
        async with server(installation) as at:
            ada = Person(tmp_path / "ada", at.url)
            assert (await ada.run("login", at.url, given=TOKEN))[0] == 0
        code, _, err = await ada.run("logout")
        assert code == 1
        assert "--forget" in err
        assert "token" in ada.profiles.read_text()
        assert (await ada.run("logout", "--forget"))[0] == 0
        assert "chatd_" not in ada.profiles.read_text()


async def test_a_server_below_a_path_with_an_authority_of_its_own_is_reached(
    tmp_path: Path,
) -> None:
    async with FakeServer.running(self_signed(tmp_path)) as fake:
        ada = Person(tmp_path / "ada", fake.url)
        at = ("--url", f"{fake.url}/chats-of-us/api/v1")
        ada.env["CHATD_TOKEN"] = "the-token"
        code, _, err = await ada.run("whoami", *at)
        assert code == 1
        assert "SSL_CERT_FILE" in err
        assert fake.requests == []
        fake.reply(200, {"user": {"id": USER_ID, "username": "ada", "role": "member"}})
        ada.env["SSL_CERT_FILE"] = str(tmp_path / "server.pem")
        code, out, err = await ada.run("whoami", *at)
        assert (code, out, err) == (0, f"ada (member) at {fake.url}/chats-of-us\n", "")
        assert [one.path for one in fake.requests] == ["/chats-of-us/api/v1/auth/me"]


async def test_a_server_cannot_write_to_the_terminal_of_a_person(tmp_path: Path) -> None:
    """Neither by an error nor by the name of a user."""
    owned = "\x1b]0;owned\x07\x1b[2J"
    async with FakeServer.running() as fake:
        ada = Person(tmp_path, fake.url)
        ada.env |= {"CHATD_TOKEN": "the-token", "CHATD_URL": fake.url, "TERM": "xterm"}
        for command in ("whoami", "chat"):
            fake.reply(403, {"code": "refused", "message": f"{owned}told by the server"})
            shown = await ada.type_in(command, answers={"told by the server": ""})
            assert "\x1b" not in shown.partition("told by the server")[0]
        user = {"id": USER_ID, "username": f"{owned}ada", "role": f"{owned}member"}
        fake.reply(200, {"user": user, "scopes": [f"{owned}chats"]})
        shown = await ada.type_in("whoami", answers={})
        assert "may only: " in shown
        assert "\x1b" not in shown


async def test_a_password_for_a_server_elsewhere_is_asked_for_https(tmp_path: Path) -> None:
    """Before anything is sent."""
    ada = Person(tmp_path, "http://chat.example.com")
    login = ("login", ada.url, "--username", "ada")
    code, out, err = await ada.run(*login, given=PASSWORD)
    assert (code, out) == (1, "")
    assert "https" in err
    assert PASSWORD not in err
