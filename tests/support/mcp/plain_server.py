"""A small MCP server on standard streams, standard library only, to copy into a workspace.

`bump` adds a line to the file `bumps`; `wait` does so and then waits for the file `go`.
"""

import json
import os
import sys
import time
from typing import Any

TOOLS = [
    {"name": "bump", "description": "Counts.", "inputSchema": {"type": "object"}},
    {"name": "wait", "description": "Counts and waits.", "inputSchema": {"type": "object"}},
    {"name": "large", "description": "Much text.", "inputSchema": {"type": "object"}},
]


def call(name: str) -> str:
    if name == "large":
        return "x" * 100_000
    with open("bumps", "a") as file:
        file.write(f"{name}\n")
    while name == "wait" and not os.path.exists("go"):
        time.sleep(0.02)
    with open("bumps") as file:
        return f"{len(file.readlines())} bumps, {os.environ.get('LABEL')}"


def answer(message: dict[str, Any]) -> dict[str, Any]:
    method = message["method"]
    if method == "initialize":
        info = {"name": "plain", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    return {"content": [{"type": "text", "text": call(message["params"]["name"])}]}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            reply = {"jsonrpc": "2.0", "id": request["id"], "result": answer(request)}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
