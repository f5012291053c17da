"""One action of an agent at a desktop and in a browser, with all that belongs to it: the tools, a
workspace in its sandbox, an X server, Chromium. The model is left out.

A click is on a window that paints something for each one. The desktop is recorded meanwhile, as a
subagent's is.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from bench.environment import fresh_database, scratch_dir
from bench.proc_stats import percentile
from bench.report import ReportRow, at_most, text_row, without_target
from bench.workspaces import DEMO_TEMPLATE_ID, ToolCaller, open_tool_caller
from chatd.agent.browser.browser_server import find_browser
from chatd.agent.desktop.desktop_server import X_SERVER
from chatd.agent.desktop.recorder import RECORDER
from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat
from chatd.domain.computer_use import Screen
from chatd.domain.ports import Tool, ToolContext
from chatd.domain.workspace.agent_api import DesktopPicture
from chatd.domain.workspace.entities import DEFAULT_SCREEN
from chatd.tools.browser import browser
from chatd.tools.computer import computer
from chatd.tools.tool import WorkspaceAccess
from chatd.workspaces.agents.agent_client import AgentClient

MAX_ACTION_MS: Final = 150.0
ROUNDS, QUICK_ROUNDS = 40, 12
_WARM: Final = 3
"""The first calls connect, and programs paint for the first time."""
WINDOW_PROGRAM: Final = "xterm"
_WINDOW: Final = (
    f"exec {WINDOW_PROGRAM} -geometry 100x30+100+100 -e sh -c"
    " 'printf \"\\033[?1000h\"; touch ready; exec cat -v'"
)
_PAGE: Final = """<!doctype html><title>Bench</title>
<button onclick="out.append(document.createElement('li'))">Add</button>
<button onclick="out.lastChild.textContent = 'item ' + out.childElementCount">Name</button>
<ul id=out><li>first</li></ul>"""

Stages = dict[str, list[float]]


class _TimedAgent:
    """Notes how long each request takes, and what the agent tells of a screenshot."""

    def __init__(self, agent: AgentClient, stages: Stages) -> None:
        self._agent = agent
        self._stages = stages

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def timed(*args: Any, **fields: Any) -> Any:
            began = time.perf_counter()
            found = await getattr(self._agent, name)(*args, **fields)
            took = (time.perf_counter() - began) * 1000
            if isinstance(found, DesktopPicture):
                for stage, ms in found.took_ms.items():
                    self._stages[stage].append(ms)
                self._stages["transfer"].append(took - sum(found.took_ms.values()))
            else:
                self._stages[_STAGES.get(name, name)].append(took)
            return found

        return timed


_STAGES: Final = {"desktop": "state", "act": "input"}


class _TimedAccess:
    """Satisfies `ports.WorkspaceAccess`."""

    def __init__(self, access: WorkspaceAccess) -> None:
        self._access = access
        self.stages: Stages = defaultdict(list)

    async def connect(self, context: ToolContext) -> AgentClient:
        began = time.perf_counter()
        agent = await self._access.connect(context)
        self.stages["connect"].append((time.perf_counter() - began) * 1000)
        return cast(AgentClient, _TimedAgent(agent, self.stages))


async def measure_desktop(*, quick: bool) -> list[ReportRow]:
    missing = [name for name in (X_SERVER, WINDOW_PROGRAM) if shutil.which(name) is None]
    if find_browser() is None:
        missing.append("chromium")
    if missing:
        return [text_row("desktop", "-", note=f"skipped: needs {', '.join(missing)}")]
    rounds = QUICK_ROUNDS if quick else ROUNDS
    async with fresh_database() as database:
        with scratch_dir() as home:
            async with open_tool_caller(database, home / "data") as caller:
                chat = await caller.create_chat()
                await caller.call(chat, "create_workspace", template_id=DEMO_TEMPLATE_ID)
                clicks = await _desktop_rows(caller, chat, rounds)
                return [*clicks, *await _browser_rows(caller, chat, rounds)]


async def _desktop_rows(caller: ToolCaller, chat: Chat, rounds: int) -> list[ReportRow]:
    access = _TimedAccess(caller.services)
    tool = computer(access, Screen(*DEFAULT_SCREEN), SystemClock())
    await _run(caller, chat, tool, action="screenshot")
    await caller.call(chat, "execute", command=_WINDOW, run_in_background=True)
    await caller.call(chat, "execute", command="until [ -e ready ]; do sleep 0.05; done")
    agent = await caller.services.connect(caller.new_call(chat))
    refusal = await agent.start_recording("bench")
    rows: list[ReportRow] = []
    for name, idle in (("click and screenshot", ""), ("screenshot alone", "screenshot")):
        took: list[float] = []
        for number in range(rounds + _WARM):
            if number == _WARM:
                access.stages.clear()
            point = [200 + number * 7 % 400, 200 + number * 5 % 200]
            fields = {"action": idle} if idle else {"action": "left_click", "coordinate": point}
            took.append(await _run(caller, chat, tool, **fields))
        note = f"p95 {percentile(took[_WARM:], 0.95):.0f} ms; {_shares(access.stages)}"
        rows.append(_row(f"desktop: {name}, p50", took[_WARM:], note))
    await agent.stop_recording("bench")
    recorded = "recorded meanwhile" if not refusal else f"not recorded: no {RECORDER}"
    return [msgspec.structs.replace(row, note=f"{row.note}; {recorded}") for row in rows]


async def _browser_rows(caller: ToolCaller, chat: Chat, rounds: int) -> list[ReportRow]:
    access = _TimedAccess(caller.services)
    tool = browser(access)
    command = f"cat > page.html <<'END'\n{_PAGE}\nEND\npwd"
    place = (await caller.call(chat, "execute", command=command))["output"].strip()
    calls: dict[str, dict[str, object]] = {
        "open": {"url": f"{place}/page.html"},
        "click": {},
        "read": {},
        "screenshot": {},
    }
    took: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + _WARM):
        calls["click"] = {"ref": f"e{number * 2 + 1}"}  # a new page has new numbers
        for action, fields in calls.items():
            took[action].append(await _run(caller, chat, tool, action=action, **fields))
    return [
        _row(f"browser: {action}, p50", times[_WARM:], f"p95 {percentile(times, 0.95):.0f} ms")
        for action, times in took.items()
    ]


async def _run(caller: ToolCaller, chat: Chat, tool: Tool, **args: object) -> float:
    began = time.perf_counter()
    output = await tool.run(caller.new_call(chat), Raw(msgspec.json.encode(args)))
    took = (time.perf_counter() - began) * 1000
    assert not output.is_error, output.text
    return took


def _row(name: str, times: list[float], note: str) -> ReportRow:
    if name.endswith("screenshot alone, p50"):
        return without_target(name, median(times), unit=" ms", note=note)
    return at_most(name, median(times), MAX_ACTION_MS, unit=" ms", note=note)


def _shares(stages: Stages) -> str:
    """Medians, in the order of an action."""
    order = ("connect", "state", "input", "settle", "capture", "encode", "transfer")
    found = [f"{name} {median(stages[name]):.0f}" for name in order if stages.get(name)]
    return ", ".join(found)
