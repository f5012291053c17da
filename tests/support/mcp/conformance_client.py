"""chatd's MCP client as a program for the conformance scenarios: it lists the tools of the server
whose URL is the last argument, and calls each of them."""

import asyncio
import sys

import msgspec

from chatd.clock import SystemClock
from chatd.mcp.http_transport import DialPolicy
from tests.support.mcp.rig import configured, mcp_rig

LOCAL = DialPolicy(private_hosts=frozenset({"localhost", "127.0.0.1"}))
SAMPLES = {"number": 2, "integer": 2, "string": "text", "boolean": True}


async def main(url: str) -> int:
    async with mcp_rig(configured(url), policy=LOCAL, clock=SystemClock()) as rig:
        tools = await rig.tools()
        if rig.seen("mcp_server_failed"):
            sys.stderr.write(f"{rig.events}\n")
            return 1
        for name, tool in tools.items():
            schema = msgspec.json.decode(tool.spec.input_schema)
            args = {key: SAMPLES[each["type"]] for key, each in schema["properties"].items()}
            output = await rig.call(name, **args)
            sys.stderr.write(f"{name}: {output.text}\n")
            if output.is_error:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
