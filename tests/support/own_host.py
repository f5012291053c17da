"""Run in a network namespace where the loopback has public addresses: prints what each guarded way
to connect says of a listener there."""

import asyncio
import sys
from contextlib import suppress

from chatd.domain.addresses import is_public
from chatd.domain.errors import ChatdError
from chatd.guarded_dial import is_any_address, open_guarded_connection
from chatd.mcp.oauth_http import OauthHttp


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


async def main(address: str, *private_hosts: str) -> None:
    served = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        with suppress(ConnectionError):  # a refused connection is aborted
            if await reader.readline():
                served += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer, address, 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        host = f"[{address}]" if ":" in address else address
        try:
            reply = await OauthHttp(frozenset(private_hosts)).get(f"http://{host}:{port}/")
            say(f"oauth: {reply.status}")
        except ChatdError as error:
            say(f"oauth: {error.message}")
        try:
            _, writer = await open_guarded_connection(
                address,
                port,
                is_allowed=is_any_address if address in private_hosts else is_public,
                allow_own_host=address in private_hosts,
            )
            writer.close()
            say("dial: open")
        except ChatdError as error:
            say(f"dial: {error.message}")
    say(f"served: {served}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
