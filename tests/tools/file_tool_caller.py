"""Calls the tools that put files into a chat: a real agent, real rows, an owned chat."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.states import State
from chatd.domain.files import FileLimits
from chatd.domain.ids import ToolCallId
from chatd.domain.ports import ToolContext
from chatd.store.database.pool import Pool
from chatd.store.file_stores import DatabaseFileStore, FileStores
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.files import attach_file, file_tools
from chatd.tools.plans import propose_plan
from chatd.workspaces.agents.agent_client import AgentClient
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stream_replica import env_with
from tests.workspaces.agent_process import Workbench, new_chat_id


class FileToolCaller:
    """Satisfies `WorkspaceAccess`. `mode` is the chat's."""

    def __init__(self, bench: Workbench, pool: Pool, chat: Chat, limits: FileLimits) -> None:
        self.bench = bench
        self.pool = pool
        self.chat = chat
        self.connections = 0
        self._calls = 0
        stores = FileStores(current=DatabaseFileStore(pool))
        files = self.files = ChatFileWriter(pool, stores, limits, env_with(SystemClock()))
        tools = (*file_tools(self), propose_plan(self, files), attach_file(self, files))
        self.tools = {tool.spec.name: tool for tool in tools}

    async def connect(self, context: ToolContext) -> AgentClient:
        self.connections += 1
        return self.bench.on_behalf(context.chat.id)

    def context(self, call: str | None = None) -> ToolContext:
        self._calls += 1
        call_id = ToolCallId(call or f"call-{self._calls}")
        return ToolContext(chat=self.chat, call_id=call_id, fence=Fence.of(self.chat))

    async def call(self, name: str, call: str | None = None, /, **args: object) -> ToolOutput:
        async with asyncio.timeout(50):
            raw = Raw(msgspec.json.encode(args))
            return await self.tools[name].run(self.context(call), raw)

    async def result_of(
        self, name: str, call: str | None = None, /, **args: object
    ) -> dict[str, Any]:
        output = await self.call(name, call, **args)
        assert not output.is_error, output.text
        return msgspec.json.decode(output.text, type=dict[str, Any])

    async def error_of(self, name: str, call: str | None = None, /, **args: object) -> str:
        output = await self.call(name, call, **args)
        assert output.is_error, output.text
        return output.text

    async def file_names(self) -> list[str]:
        """The files that the chat has."""
        rows = await self.pool.fetch(
            """SELECT f.name FROM chat_files l JOIN files f ON f.id = l.file_id
               WHERE l.chat_id = $1 ORDER BY f.created_at, f.id""",
            self.chat.id,
        )
        return [row["name"] for row in rows]

    async def content_of(self, file_id: str) -> bytes:
        rows = await self.pool.fetch(
            "SELECT data FROM file_chunks WHERE file_id = $1 ORDER BY number", file_id
        )
        return b"".join(row["data"] for row in rows)


@asynccontextmanager
async def open_file_tools(
    bench: Workbench, pool: Pool, *, mode: str | None = None, limits: FileLimits | None = None
) -> AsyncGenerator[FileToolCaller]:
    chat = await insert_seed(pool, Seed(state=State.R0, calls="local", chat_id=new_chat_id()))
    yield FileToolCaller(bench, pool, replace(chat, mode=mode), limits or FileLimits())
