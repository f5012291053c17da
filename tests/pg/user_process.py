"""A process that uses the embedded database, driven by lines on its standard input.

It says `ready {dsn}` or `failed {why}`, then answers `ensure` with `up` or `failed {why}`. At the
end of its input it leaves and says `left`. Run as root it can become another user first; by then
everything is imported, so that user need not be able to read the checkout.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from chatd.pg.config import Config
from chatd.pg.errors import PgError
from chatd.pg.server import Server, start


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    config: Config
    env: dict[str, str]
    uid: int | None = None


def say(word: str, text: str = "") -> None:
    sys.stdout.write(f"{word} {msgspec.json.encode(text).decode()}\n")
    sys.stdout.flush()


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


async def orders_from_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def obey(server: Server) -> None:
    orders = await orders_from_input()
    while (line := await orders.readline()) != b"":
        assert line == b"ensure\n"
        try:
            await server.ensure()
        except PgError as error:
            say("failed", str(error))
        else:
            say("up")


async def main(orders: Orders) -> None:
    try:
        server = await start(orders.config, orders.env)
    except PgError as error:
        say("failed", str(error))
        return
    try:
        say("ready", server.dsn)
        await obey(server)
    finally:
        await server.close()
        say("left")


def decode_path(kind: type, value: object) -> Path:
    assert kind is Path
    assert isinstance(value, str)
    return Path(value)


if __name__ == "__main__":
    # Whoever runs the tests in the background may have had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = msgspec.json.decode(sys.argv[1], type=Orders, dec_hook=decode_path)
    if given.uid is not None:
        asyncio.run(asyncio.to_thread(str))  # Threads are imported on first use.
        become(given.uid)
    asyncio.run(main(given))
