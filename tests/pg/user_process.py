"""A process that uses the embedded database, controlled by lines on its standard input.

It prints `ready {dsn}` or `failed {why}`, then answers `ensure` with `up` or `failed {why}`. At the
end of its input it closes the server and prints `left`. As root it can switch to another user
after the imports, so that this user need not be able to read the checkout.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from chatd.pg.config import EmbeddedConfig, PgError
from chatd.pg.server import PostgresServer, open_server


class UserOptions(msgspec.Struct, frozen=True, kw_only=True):
    config: EmbeddedConfig
    env: dict[str, str]
    uid: int | None = None


def reply(kind: str, text: str = "") -> None:
    sys.stdout.write(f"{kind} {msgspec.json.encode(text).decode()}\n")
    sys.stdout.flush()


def switch_user(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


async def open_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def serve(server: PostgresServer) -> None:
    commands = await open_input()
    while (line := await commands.readline()) != b"":
        assert line == b"ensure\n"
        try:
            await server.ensure_running()
        except PgError as error:
            reply("failed", str(error))
        else:
            reply("up")


async def main(options: UserOptions) -> None:
    try:
        server = await open_server(options.config, options.env)
    except PgError as error:
        reply("failed", str(error))
        return
    try:
        reply("ready", server.dsn)
        await serve(server)
    finally:
        await server.close()
        reply("left")


def decode_path(kind: type, value: object) -> Path:
    assert kind is Path
    assert isinstance(value, str)
    return Path(value)


if __name__ == "__main__":
    # A shell that runs the tests in the background ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = msgspec.json.decode(sys.argv[1], type=UserOptions, dec_hook=decode_path)
    if options.uid is not None:
        asyncio.run(asyncio.to_thread(str))  # Threads are imported on first use.
        switch_user(options.uid)
    asyncio.run(main(options))
