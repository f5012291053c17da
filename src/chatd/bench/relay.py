"""The least that can stand between a client and a model: `python -m chatd.bench.relay ADDRESS`.

Passes a stream on and does nothing else: no history, no loop, no accounts. What it costs, any
server must cost.
"""

import sys
from typing import Final

import aiohttp
import uvloop
from aiohttp import web

from chatd.bench.children import until_input_ends

_JSON: Final = {"content-type": "application/json"}
_STREAM: Final = {"content-type": "text/event-stream"}


async def main(address: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers=_STREAM)
            asked = await request.read()
            async with session.post(address, data=asked, headers=_JSON) as answer:
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
            return response

        runner = web.AppRunner(web.Application())
        runner.app.router.add_post("/{path:.*}", pass_on)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        await until_input_ends(runner.addresses[0][1])
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(uvloop.run(main(sys.argv[1])))
