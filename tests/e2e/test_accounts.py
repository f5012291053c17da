"""The first sign-in with the link that `chatd serve` prints, and `chatd admin` on the database."""

import asyncio
import os
import pty
import re
import shlex
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, CookieJar

pytestmark = pytest.mark.timeout(150)

CHATD = Path(sys.executable).with_name("chatd")
ENV = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", "CHATD_WORKSPACES_ENABLED": "false"}
LINK = re.compile(r"(http://\S+)/sign-in#(\S+)")
PASSWORD = "correct horse battery"


@asynccontextmanager
async def serve_in_terminal(*arguments: object) -> AsyncGenerator[str]:
    """What it has printed when it is ready. Its log must not contain the link."""
    terminal, inner = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        CHATD, "serve", *map(str, arguments), env=ENV, stdout=inner, stderr=PIPE
    )
    os.close(inner)
    try:
        printed = ""
        while "Ctrl-C stops." not in printed:
            printed += (await asyncio.to_thread(os.read, terminal, 4096)).decode()
        yield printed
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        logged = await process.stderr.read()
        found = LINK.search(printed)
        assert found is not None
        assert found[2].encode() not in logged
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(terminal)


async def chatd_admin(*arguments: object, given: str = "") -> str:
    process = await asyncio.create_subprocess_exec(
        CHATD, "admin", *map(str, arguments), env=ENV, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate(given.encode())
    assert process.returncode == 0, err.decode()
    return out.decode()


def browser_at(url: str) -> ClientSession:
    """Keeps the cookies of an address too."""
    return ClientSession(url, cookie_jar=CookieJar(unsafe=True))


async def sign_in(http: ClientSession, secret: str) -> int:
    async with http.post("/api/v1/auth/link", json={"secret": secret}) as reply:
        return reply.status


async def username(http: ClientSession) -> str | None:
    async with http.get("/api/v1/auth/me") as reply:
        return None if reply.status == 401 else (await reply.json())["user"]["username"]


@pytest.mark.promise("P16")
async def test_the_printed_link_signs_the_first_administrator_in_once(
    dsn: str, tmp_path: Path
) -> None:
    """Slow: starts the server twice, and six commands beside it."""
    at = ("--data-dir", tmp_path, "--database-url", dsn)
    secrets: list[str] = []
    async with asyncio.timeout(140):
        for _ in range(2):
            async with serve_in_terminal("--port", 0, "--no-browser", *at) as printed:
                found = LINK.search(printed)
                assert found is not None, printed
                url, secret = found.groups()
                async with browser_at(url) as http, browser_at(url) as other:
                    assert (await http.get("/sign-in")).status == 200
                    assert await username(http) is None
                    assert await sign_in(http, secret) == 200
                    assert await username(http) == "admin"
                    assert [await sign_in(other, old) for old in (secret, *secrets)] == (
                        [401] * (1 + len(secrets))
                    )
                    await check_administration(at, url, other, printed)
                secrets.append(secret)
    assert len(set(secrets)) == 2


async def check_administration(
    at: tuple[object, ...], url: str, http: ClientSession, printed: str
) -> None:
    """Beside the running server: a link by the command that it printed, a user, a password."""
    hint = re.search(r"another: .*chatd'? admin (.+)\)\r?$", printed, re.MULTILINE)
    assert hint is not None, printed
    words = hint[1].replace("$CHATD_DATABASE_URL", str(at[-1]))
    found = LINK.search(await chatd_admin(*shlex.split(words)))
    assert found is not None
    assert found[1] == url, "the port that a flag gave the server"
    assert await sign_in(http, found[2]) == 200
    name = f"ada-{os.urandom(4).hex()}"
    await chatd_admin("create-user", name, "--role", "viewer", "--password", *at, given=PASSWORD)
    new = "another passphrase"
    assert name in await chatd_admin("reset-password", name, *at, given=f"{new}\n")
    for password, status in ((PASSWORD, 401), (new, 200)):
        body = {"username": name, "password": password}
        async with http.post("/api/v1/auth/login", json=body) as reply:
            assert reply.status == status


async def test_wrong_names_and_roles_are_explained(dsn: str, tmp_path: Path) -> None:
    at = ("--data-dir", tmp_path, "--database-url", dsn)
    for arguments, said in (
        (("sign-in-link", "--user", "ghost"), "there is no user 'ghost'"),
        (("create-user", "ada", "--role", "king"), "there is no role 'king'"),
        (("create-user", "a b"), "username: must have"),
        (("reset-password", "admin"), "password: must have 12"),
    ):
        process = await asyncio.create_subprocess_exec(
            *(CHATD, "admin", *map(str, (*arguments, *at))),
            env=ENV,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        out, err = await process.communicate()
        assert (process.returncode != 0, out) == (True, b"")
        assert said in err.decode()
