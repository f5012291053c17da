"""The tools that look after commands which run on: their output, a list of them, signals."""

import asyncio
from typing import Final, Literal

from chatd.domain.hands import AgentConn, AgentLost, AgentRefused, Hands, Output
from chatd.domain.ports import ToolContext
from chatd.domain.tool_output import ToolOutput
from chatd.tools.arguments import Arguments
from chatd.tools.commands import Told, capped, finished
from chatd.tools.execute import RESCUE_S
from chatd.tools.tool import WorkspaceTool, answer, spec

DEFAULT_WAIT_S: Final = 10.0
MAX_WAIT_S: Final = 3600.0
WHICH: Final = "the id that execute gave, or one of process_list."
RUNS_ON: Final = "Still running. Wait for more with process_output."


def process_tools(hands: Hands) -> tuple[WorkspaceTool, ...]:
    return (_process_output(hands), _process_list(hands), _process_signal(hands))


def _process_output(hands: Hands) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        process = args.text("process_id", why=WHICH)
        seconds = min(args.seconds("wait_timeout", DEFAULT_WAIT_S), MAX_WAIT_S)
        conn = await hands.reach(context)
        try:
            output = await _waited(conn, process.strip(), seconds)
        except AgentRefused as error:
            return answer({"success": False, "error": error.message})
        if not output.running:
            return answer(finished(output, None))
        told = Told(
            success=True,
            output=capped(output.output),
            running=True,
            truncated=output.truncated,
            note=RUNS_ON,
        )
        return answer(told)

    return WorkspaceTool(
        effect="read",
        act=act,
        timeout_s=MAX_WAIT_S + RESCUE_S + 60,
        spec=spec(
            "process_output",
            "Wait for a command that runs in the background, and read what it has printed.",
            process_id={"type": "string", "description": "Its id.", "needed": True},
            wait_timeout={
                "type": "string",
                "description": 'How long to wait for its end, such as "30s"; "0s" does not wait.'
                " Default 10s, at most 1h.",
            },
            model_intent={
                "type": "string",
                "description": "What this is for, in a few words for a person who watches.",
            },
        ),
    )


async def _waited(conn: AgentConn, process: str, seconds: float) -> Output:
    try:
        return await conn.output(process, wait_s=seconds)
    except AgentLost:
        if not seconds:
            raise
        # The line broke while we waited; how it stands now can still be asked.
        try:
            async with asyncio.timeout(RESCUE_S):
                return await conn.output(process)
        except TimeoutError:
            raise AgentLost("The workspace does not answer.") from None


def _process_list(hands: Hands) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        del args
        conn = await hands.reach(context)
        return answer({"processes": await conn.processes()})

    return WorkspaceTool(
        effect="read",
        act=act,
        spec=spec(
            "process_list",
            "The commands that this chat has started in the workspace: those that run first, then"
            " the newest. At most ten.",
        ),
    )


def _process_signal(hands: Hands) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        process = args.text("process_id", why=WHICH).strip()
        signal = _signal(args)
        conn = await hands.reach(context)
        try:
            await conn.signal(process, signal)
        except AgentRefused as error:
            return answer({"success": False, "error": error.message})
        text = f"{signal} was sent to {process}. process_output tells whether it has ended."
        return answer({"success": True, "message": text})

    return WorkspaceTool(
        act=act,
        spec=spec(
            "process_signal",
            "End a command that runs in the background, with all that it has started.",
            process_id={"type": "string", "description": "Its id.", "needed": True},
            signal={
                "type": "string",
                "enum": ["terminate", "kill"],
                "description": "terminate asks it to end, kill ends it.",
                "needed": True,
            },
        ),
    )


def _signal(args: Arguments) -> Literal["terminate", "kill"]:
    match args.text("signal", why='"terminate" or "kill".'):
        case "terminate":
            return "terminate"
        case "kill":
            return "kill"
        case other:
            raise args.wrong("signal", f'must be "terminate" or "kill", not {other!r}.')
