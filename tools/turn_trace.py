"""Trace one message and one `execute` call through a running server: which files they pass.

`python -m tools.turn_trace` starts a server in this process with the demo model and prints both
walks; `--write` puts them into docs/walks.md. A walk lists the files of `src/chatd` in the order
of their first call. A file counts if its code runs in the task of the traced request, or in a task
which that task started; periodic tasks of the server do not count. The workspace agent is another
process: the walk of `execute` ends where the server sends the request to it.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Generator
from contextvars import ContextVar
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Final

import aiohttp

from chatd.api.application import ApiApplication
from chatd.api.request import Receive, Scope, Send
from chatd.app import process
from chatd.app.composition import LifecycleCallbacks, ReadyInfo
from chatd.clock import SystemClock
from chatd.settings.loader import load_settings

ROOT: Final = Path(__file__).parent.parent
WALKS: Final = ROOT / "docs" / "walks.md"
SOURCE: Final = f"{ROOT / 'src' / 'chatd'}/"
TURN_TIMEOUT_S: Final = 120.0
TOKEN: Final = "t" * 40

_walk: ContextVar["Walk | None"] = ContextVar("walk", default=None)


class Walk:
    """The files that one request passes, each with the function that was called first."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    @property
    def stretches(self) -> list[list[str]]:
        """Neighbouring files of one package."""
        return [
            list(files) for _, files in groupby(self.files, key=lambda file: file.split("/")[0])
        ]

    def lines(self) -> list[str]:
        changes = len(self.stretches) - 1
        lines = [f"{len(self.files)} files, {changes} changes of package", ""]
        for files in self.stretches:
            package = files[0].split("/")[0] if "/" in files[0] else "(top)"
            steps = [f"{file.removeprefix(f'{package}/')}: {self.files[file]}" for file in files]
            lines += [
                f"{package if not number else '':<11} {step}" for number, step in enumerate(steps)
            ]
        return lines


class Tracer:
    """Records the calls of traced requests; `execute` has a walk of its own."""

    def __init__(self) -> None:
        self.message = Walk()
        self.execute = Walk()
        self.current = self.message

    def on_call(self, frame: FrameType, event: str, _argument: object) -> None:
        walk = _walk.get() if event == "call" else None
        if walk is None or not frame.f_code.co_filename.startswith(SOURCE):
            return
        path = frame.f_code.co_filename.removeprefix(SOURCE)
        if path == "tools/execute.py":
            _walk.set(self.execute)
            walk = self.execute
        walk.files.setdefault(path, frame.f_code.co_qualname.split(".<locals>")[0])

    @contextlib.contextmanager
    def tracing(self) -> Generator[None]:
        """Trace every message that is posted inside."""
        original, tracer = ApiApplication.__call__, self

        async def traced(self: ApiApplication, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "POST":
                _walk.set(tracer.current)
            await original(self, scope, receive, send)

        ApiApplication.__call__ = traced
        sys.setprofile(self.on_call)
        try:
            yield
        finally:
            sys.setprofile(None)
            ApiApplication.__call__ = original


async def trace(data_dir: Path) -> Tracer:
    tracer = Tracer()
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    environment = {"CHATD_ADMIN_TOKEN": TOKEN}
    settings = load_settings(None, environment, {"server.port": "0"}, data_dir=data_dir)
    callbacks = LifecycleCallbacks(ready=ready.set_result)
    async with asyncio.TaskGroup() as group:
        serving = process.serve(
            settings, environment, clock=SystemClock(), stop=stop, callbacks=callbacks
        )
        group.create_task(serving)
        info: ReadyInfo = await ready
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(f"{info.url}/api/v1/", headers=headers) as client:
            # The first turn is not traced: it also generates the chat's title.
            chat_id = await send(client, "chats", "hi")
            with tracer.tracing():
                await send(client, f"chats/{chat_id}/messages", "What can you do?", chat_id)
                tracer.current = Walk()
                await send(client, f"chats/{chat_id}/messages", "fix the failing test", chat_id)
        stop.set()
    return tracer


async def send(
    client: aiohttp.ClientSession, path: str, text: str, chat_id: str | None = None
) -> str:
    """Send a message, wait until its turn ends, and return the chat's id."""
    body = {"content": [{"type": "text", "text": text}]}
    async with client.post(path, json=body) as reply:
        reply.raise_for_status()
        chat_id = chat_id or str((await reply.json())["id"])
    async with asyncio.timeout(TURN_TIMEOUT_S):
        status = "running"
        while status != "waiting":
            await asyncio.sleep(0.05)
            async with client.get(f"chats/{chat_id}") as reply:
                status = (await reply.json())["status"]
            if status == "error":
                sys.exit("The traced turn failed.")
    return chat_id


def main() -> None:
    parser = argparse.ArgumentParser(description="Trace a message and an execute call.")
    parser.add_argument("--write", action="store_true", help="write docs/walks.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(
        prefix="chatd-trace-", ignore_cleanup_errors=True
    ) as directory:
        Path(directory).chmod(0o755)  # as root, the database runs under another account
        try:
            tracer = asyncio.run(trace(Path(directory)))
        finally:
            stop_supervisor(Path(directory) / "ws-supervisor" / "lock")
    for title, walk in (("message", tracer.message), ("execute", tracer.execute)):
        if options.write:
            write_walk(title, walk)
        sys.stdout.write("\n".join([f"{title}:", *walk.lines(), "", ""]))


def stop_supervisor(lock: Path) -> None:
    """Workspaces outlive the server: their supervisor writes its process id to the lock file."""
    if lock.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(lock.read_text()), signal.SIGTERM)


def write_walk(title: str, walk: Walk) -> None:
    start = f"<!-- walk of {title}: made by tools/turn_trace.py -->\n"
    end = f"<!-- end of walk of {title} -->"
    before, rest = WALKS.read_text().split(start)
    body = "\n".join(["```", *walk.lines(), "```"])
    WALKS.write_text(f"{before}{start}{body}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
