"""HTTP routes for commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from chatd.agent.epochs import EpochFence
from chatd.agent.processes.table import MAX_OUTPUT_WAIT_S, ProcessTable
from chatd.agent.server.dispatcher import AgentCaller, AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply

PROCESS_API_PREFIX = "/api/v0/processes"


class ProcessRoutes:
    def __init__(
        self,
        processes: ProcessTable,
        fence: EpochFence,
        before_effect: Callable[[AgentCaller, Sequence[str]], Awaitable[None]],
    ) -> None:
        self._processes = processes
        self._fence = fence
        self._before_effect = before_effect

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("POST", f"{PROCESS_API_PREFIX}/start", self._start),
            AgentRoute("GET", f"{PROCESS_API_PREFIX}/list", self._list),
            AgentRoute("GET", f"{PROCESS_API_PREFIX}/{{}}/output", self._output, is_long_poll=True),
            AgentRoute("POST", f"{PROCESS_API_PREFIX}/{{}}/signal", self._signal),
        ]

    async def _start(self, request: AgentRouteRequest) -> AgentHttpReply:
        caller = request.caller
        fields = request.json()
        command = fields.text("command")
        workdir = fields.text("workdir", "")
        env = fields.text_map("env")
        background = fields.flag("background")
        fields.reject_unknown()
        self._fence.check_owner(caller.chat_id, caller.owner)
        await self._before_effect(caller, [workdir])
        self._fence.check_owner(caller.chat_id, caller.owner)  # may have changed meanwhile
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

    async def _list(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        return json_reply({"processes": self._processes.list(request.caller.chat_id or None)})

    async def _output(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        wait_s = query.seconds("wait_s")
        if query.flag("wait"):
            wait_s = MAX_OUTPUT_WAIT_S
        after = query.count("after")
        any_output = query.flag("news")
        query.reject_unknown()
        output = await self._processes.output(
            request.parameter,
            chat_id=request.caller.chat_id or None,
            wait_s=wait_s,
            after=after,
            any_output=any_output,
        )
        return json_reply(output)

    async def _signal(self, request: AgentRouteRequest) -> AgentHttpReply:
        caller = request.caller
        fields = request.json()
        name = fields.text("signal")
        fields.reject_unknown()
        self._fence.check_owner(caller.chat_id, caller.owner)
        await self._processes.signal(request.parameter, name, caller.chat_id or None)
        return json_reply({"ok": True})
