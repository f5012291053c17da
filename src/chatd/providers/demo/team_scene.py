"""The scene that leads subagents: starts all of them in one step, waits for all, tells the reports.

As in the other scenes, the calls that the turn has completed decide the next step.
"""

from typing import Final

from chatd.providers.demo.scripts import TEXTS, CallTool, CompletedCall, DemoScene, DemoTurn
from chatd.providers.demo.scripts import parse_object as parse

_NEEDED: Final = ("spawn_agent", "wait_agent")
_MAX_WAITS: Final = 3


def lead_team(turn: DemoTurn) -> DemoScene:
    if missing := [f"`{name}`" for name in _NEEDED if name not in turn.tools]:
        return (TEXTS.no_tools.format(tools=", ".join(missing)),)
    started = [call for task in TEXTS.team for call in turn.find_calls(task.call)[-1:]]
    if len(started) < len(TEXTS.team):
        calls = (task.call for task in TEXTS.team)
        return ("I'll give this to two subagents, which work at the same time.", *calls)
    if failed := [call for call in started if call.failed]:
        return (f"I could not start a subagent: {failed[-1].output}{TEXTS.given_up}",)
    waits = [wait for call in started if (wait := _next_wait(turn, call)) is not None]
    if waits:
        return ("They are at work. I'll wait for their reports.", *waits)
    return (TEXTS.reviewed.format(reports="\n\n".join(_report(turn, call) for call in started)),)


def _wait(spawned: CompletedCall) -> CallTool:
    return CallTool("wait_agent", {"chat_id": parse(spawned.text).get("chat_id")})


def _next_wait(turn: DemoTurn, spawned: CompletedCall) -> CallTool | None:
    """None once the subagent has reported, or does not in a long time."""
    waits = turn.find_calls(_wait(spawned))
    is_over = waits and not parse(waits[-1].text).get("timed_out")
    return None if is_over or len(waits) >= _MAX_WAITS else _wait(spawned)


def _report(turn: DemoTurn, spawned: CompletedCall) -> str:
    found = parse(turn.find_calls(_wait(spawned))[-1].text)
    said = found.get("report") or found.get("last_error") or found.get("error") or "still at work"
    quoted = "\n".join(f"> {line}" for line in str(said).strip().splitlines())
    return f"**{parse(spawned.text).get('title')}**\n\n{quoted}"
