"""The tool that runs a command in the workspace.

The agent owns the process, not this call: whatever happens to the call, the command goes on, and
the answer says how to find it.
"""

import asyncio
from typing import Final

import msgspec

from chatd.domain.call_key import call_key
from chatd.domain.hands import AgentConn, AgentLost, AgentRefused, Hands, Output
from chatd.domain.ports import Clock, ToolContext
from chatd.domain.tool_output import ToolOutput
from chatd.tools.arguments import Arguments
from chatd.tools.commands import ENVIRONMENT, Told, advice, finished, still_running, wanted
from chatd.tools.tool import WorkspaceTool, answer, spec

DEFAULT_S: Final = 10.0
MAX_S: Final = 3600.0
FIRST_LOOK_S: Final = 1.0
"""Until the first output is shown while a command runs."""
LOOK_S: Final = 3.0
RESCUE_S: Final = 30.0


def execute(hands: Hands, clock: Clock) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        command = args.text("command", why="the shell command to run.")
        want = wanted(command, background=args.flag("run_in_background"))
        seconds = min(args.seconds("timeout", DEFAULT_S), MAX_S)
        workdir = (args.optional_text("workdir") or "").strip() or None
        conn = await hands.reach(context)
        try:
            started = await conn.start_process(
                want.command,
                key=call_key(context),
                workdir=workdir,
                env={**ENVIRONMENT, "CHATD_CHAT_ID": str(context.chat.id)},
                background=want.background,
            )
        except AgentRefused as error:
            return answer(Told(success=False, exit_code=-1, error=error.message))
        if want.background:
            told = Told(
                success=True,
                backgrounded=True,
                running=True,
                background_process_id=started.id,
                note="Read its output with process_output, end it with process_signal.",
            )
            return answer(told)
        run = _Foreground(conn, clock, context, started.id)
        return answer(await run.follow(seconds, advice(want.command)))

    return WorkspaceTool(
        act=act,
        timeout_s=MAX_S + RESCUE_S + 60,
        spec=spec(
            "execute",
            "Run a command with sh -c in the workspace. It has no terminal and no input. A command"
            " that takes longer than its timeout is not killed: it goes on in the background, and"
            " process_output waits for it. Start servers and watchers with run_in_background.",
            command={"type": "string", "description": "The command.", "needed": True},
            timeout={
                "type": "string",
                "description": 'How long to wait for it, such as "30s" or "5m". Default 10s, at'
                " most 1h.",
            },
            workdir={
                "type": "string",
                "description": "Directory to run it in. Default: the workspace's own.",
            },
            run_in_background={
                "type": "boolean",
                "description": "Start it and do not wait. Default false.",
            },
            model_intent={
                "type": "string",
                "description": "What this is for, in a few words for a person who watches, such as"
                ' "running the tests".',
            },
        ),
    )


class _Foreground:
    """One command that is waited for."""

    def __init__(self, conn: AgentConn, clock: Clock, context: ToolContext, process: str) -> None:
        self._conn = conn
        self._clock = clock
        self._context = context
        self._process = process
        self._began = clock.monotonic()
        self._seen: Output | None = None

    async def follow(self, seconds: float, note: str) -> Told:
        try:
            output = await self._wait(seconds)
        except asyncio.CancelledError:
            # Whoever stopped the turn learns what is left of it, and at once.
            return still_running(self._seen, self._process, "stopped before it ended", self._ms())
        except (AgentLost, AgentRefused) as error:
            return await self._rescued(error.message, note)
        if output.running:
            error = f"timed out after {seconds:g}s"
            return still_running(await self._whole(output), self._process, error, self._ms())
        return finished(output, self._ms(), note)

    async def _wait(self, seconds: float) -> Output:
        """Until it has ended or the time is up, showing on the way what it prints."""
        until, look, cursor = self._began + seconds, FIRST_LOOK_S, 0
        while True:
            left = max(0.0, until - self._clock.monotonic())
            output = await self._conn.output(self._process, wait_s=min(left, look), after=cursor)
            if not output.running:
                return output if cursor == 0 else await self._whole(output)
            if output.output:
                self._context.show(output.output)
            self._seen = output if cursor == 0 else await self._whole(output)
            if self._clock.monotonic() >= until:
                return self._seen
            look, cursor = LOOK_S, output.cursor

    async def _whole(self, part: Output) -> Output:
        if part is self._seen:
            return part
        return await self._conn.output(self._process)

    async def _rescued(self, reason: str, note: str) -> Told:
        """The line broke, not the command: ask once more how it stands."""
        try:
            async with asyncio.timeout(RESCUE_S):
                output = await self._conn.output(self._process)
        except (AgentLost, AgentRefused, TimeoutError):
            told = still_running(self._seen, self._process, reason, self._ms())
            return msgspec.structs.replace(
                told,
                note="It is not known whether the command still runs. Ask with process_output.",
            )
        if output.running:
            return still_running(output, self._process, reason, self._ms())
        return finished(output, self._ms(), note)

    def _ms(self) -> int:
        return round((self._clock.monotonic() - self._began) * 1000)
