"""A minimal relay between client and model: `python -m bench.relay ADDRESS`.

It forwards a stream and does nothing else: its cost is the least cost of any server.
"""

import sys
from typing import Final

import aiohttp
import uvloop
from aiohttp import web

from bench.child_processes import serve_until_input_ends

_JSON: Final = {"content-type": "application/json"}
_STREAM: Final = {"content-type": "text/event-stream"}


async def main(address: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers=_STREAM)
            body = await request.read()
            async with session.post(address, data=body, headers=_JSON) as upstream:
                await response.prepare(request)
                rest = b""
                async for piece in upstream.content.iter_any():
                    # Whole lines: HTTP framing inside a line would hide a token from the count.
                    lines, end, rest = (rest + piece).rpartition(b"\n")
                    if end:
                        await response.write(lines + end)
                if rest:
                    await response.write(rest)
            return response

        runner = web.AppRunner(web.Application())
        runner.app.router.add_post("/{path:.*}", forward)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        await serve_until_input_ends(runner.addresses[0][1])
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(uvloop.run(main(sys.argv[1])))
