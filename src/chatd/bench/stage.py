"""Everything that a row is measured with: provider, relay, database and a server, as processes.

Owns starting them, in a temporary directory, and that nothing of them is left.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from chatd.bench import proc
from chatd.bench.children import Program, Server, chatd, program
from chatd.bench.ground import Ground, fresh, lent, scratch_dir
from chatd.bench.sides import TOKEN, Chatd, Plain


class Stage(Struct, frozen=True, kw_only=True):
    home: Path
    ground: Ground
    provider: Program
    relay: Program
    server: Server

    def direct(self) -> Plain:
        return Plain(self.provider.port)

    def relayed(self) -> Plain:
        return Plain(self.relay.port)

    def ours(self) -> Chatd:
        return Chatd(self.server.port)

    async def cpu_s(self) -> float:
        """Of the server and of PostgreSQL, all processes of both."""
        return await asyncio.to_thread(proc.cpu_s, self.server.pid, *self.ground.processes)

    async def relay_cpu_s(self) -> float:
        return await asyncio.to_thread(proc.cpu_s, self.relay.pid)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def another(self, dsn: str | None = None) -> AsyncGenerator[Server]:
        """One more replica on the same database, or on the way to it that `dsn` names."""
        at = ("--data-dir", str(self.home / "data"), "--database-url", dsn or self.ground.dsn)
        async with chatd(self.home, environment(self.provider), *at) as server:
            yield server


def environment(provider: Program, *, slots: int = 1000) -> dict[str, str]:
    """The settings of a server that talks to the fake provider."""
    url = f"http://127.0.0.1:{provider.port}/v1"
    fake = {"name": "fake", "kind": "openai-compat", "base_url": url}
    model = {"name": "bench", "provider": "fake", "model": "bench", "default": True}
    return {
        "CHATD_PROVIDERS": msgspec.json.encode([fake]).decode(),
        "CHATD_MODELS": msgspec.json.encode([model]).decode(),
        "CHATD_ADMIN_TOKEN": TOKEN,
        "CHATD_LOG_LEVEL": "error",
        "CHATD_WORKER_SLOTS": str(slots),
    }


@asynccontextmanager
async def set_up(database_url: str | None) -> AsyncGenerator[Stage]:
    async with AsyncExitStack() as stack:
        home = stack.enter_context(scratch_dir())
        ground = await stack.enter_async_context(
            fresh() if database_url is None else lent(database_url)
        )
        provider = await stack.enter_async_context(program("chatd.bench.provider"))
        address = f"http://127.0.0.1:{provider.port}/v1/chat/completions"
        relay = await stack.enter_async_context(program("chatd.bench.relay", address))
        at = ("--data-dir", str(home / "data"), "--database-url", ground.dsn)
        server = await stack.enter_async_context(chatd(home, environment(provider), *at))
        yield Stage(home=home, ground=ground, provider=provider, relay=relay, server=server)
