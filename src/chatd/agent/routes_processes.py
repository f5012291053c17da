"""The agent's routes for commands. What becomes of them is `processes`' business."""

from __future__ import annotations

from chatd.agent.answering import Request, Route
from chatd.agent.fence import Fence
from chatd.agent.processes import MAX_WAIT_S, Processes
from chatd.agent.replies import Reply, json_reply

API = "/api/v0/processes"


class ProcessRoutes:
    def __init__(self, processes: Processes, fence: Fence) -> None:
        self._processes = processes
        self._fence = fence

    def routes(self) -> list[Route]:
        return [
            Route("POST", f"{API}/start", self._start),
            Route("GET", f"{API}/list", self._list),
            Route("GET", f"{API}/{{}}/output", self._output, waits=True),
            Route("POST", f"{API}/{{}}/signal", self._signal),
        ]

    async def _start(self, request: Request) -> Reply:
        caller = request.caller
        fields = request.json()
        command = fields.text("command")
        workdir = fields.text("workdir", "")
        env = fields.texts("env")
        background = fields.flag("background")
        fields.done()
        await self._fence.check(caller.chat_id, caller.epoch)
        started = await self._processes.start(
            command,
            chat_id=caller.chat_id or None,
            key=caller.key,
            workdir=workdir or None,
            env=env,
            background=background,
            ancestors=caller.ancestors,
        )
        return json_reply(started)

    async def _list(self, request: Request) -> Reply:
        request.query().done()
        return json_reply({"processes": self._processes.list(request.caller.chat_id or None)})

    async def _output(self, request: Request) -> Reply:
        query = request.query()
        wait_s = query.seconds("wait_s")
        if query.flag("wait"):
            wait_s = MAX_WAIT_S
        after = query.count("after")
        news = query.flag("news")
        query.done()
        output = await self._processes.output(
            request.parameter,
            chat_id=request.caller.chat_id or None,
            wait_s=wait_s,
            after=after,
            news=news,
        )
        return json_reply(output)

    async def _signal(self, request: Request) -> Reply:
        caller = request.caller
        fields = request.json()
        name = fields.text("signal")
        fields.done()
        await self._fence.check(caller.chat_id, caller.epoch)
        await self._processes.signal(request.parameter, name, caller.chat_id or None)
        return json_reply({"ok": True})
