"""The browser tool: which chats have it, what it costs in every prompt, and what it refuses."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.row import Chat, Fence
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ToolCallId
from chatd.domain.ports import ToolContext
from chatd.domain.workspace.entities import TemplateSpec
from chatd.tools.browser import BROWSER_RECHECK_S, BrowserTools, browser
from chatd.workspaces.agents.agent_client import AgentClient
from tests.support.clock import FakeClock
from tests.support.factories import WORKER, chat
from tests.support.stream_replica import env_with
from tests.support.workspaces import workspace_id

MAX_SCHEMA_BYTES = 1600
"""About 400 tokens, of every prompt of a chat that has the tool."""


class NoWorkspace:
    """Satisfies `WorkspaceAccess`: a call that reaches it has passed the checks of the tool."""

    async def connect(self, context: ToolContext) -> AgentClient:
        raise AssertionError(context.call_id)


class Specs:
    """Satisfies `LoadSpec`, and counts how often it was asked."""

    def __init__(self) -> None:
        self.spec: TemplateSpec | None = TemplateSpec(browser=True)
        self.asked = 0
        self.is_away = False

    async def load(self, chat: Chat) -> TemplateSpec | None:
        del chat
        self.asked += 1
        if self.is_away:
            raise Unavailable("away")
        return self.spec


async def test_chats_have_the_tool_if_their_workspace_has_a_browser() -> None:
    clock, specs = FakeClock(), Specs()
    family = BrowserTools(NoWorkspace(), specs.load, env_with(clock))
    bare, bound = chat(), chat(workspace_id=workspace_id(1))
    assert await family.tools(bare) == ()
    assert specs.asked == 0
    for _ in range(3):
        assert [tool.spec.name for tool in await family.tools(bound)] == ["browser"]
    assert specs.asked == 1
    specs.spec = TemplateSpec()
    clock.advance(BROWSER_RECHECK_S + 1)
    specs.is_away = True
    assert len(await family.tools(bound)) == 1
    specs.is_away = False
    assert await family.tools(bound) == ()
    moved = chat(workspace_id=workspace_id(2))
    assert await family.tools(moved) == ()
    assert specs.asked == 4


def test_the_tool_is_short() -> None:
    spec = browser(NoWorkspace()).spec
    size = len(spec.description) + len(msgspec.json.encode(spec.input_schema))
    assert size < MAX_SCHEMA_BYTES


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({}, "action is required"),
        ({"action": "jump"}, "action must be"),
        ({"action": "open"}, "url is required: the action open needs it."),
        ({"action": "type", "text": "x"}, "ref is required: the action type needs it."),
        ({"action": "key", "text": " "}, "text is required: the action key needs it."),
        ({"action": "read", "offset": 0}, "offset must be"),
        ({"action": "wait", "seconds": "soon"}, "seconds must be a duration"),
    ],
)
async def test_wrong_arguments_are_refused_before_the_workspace_is_asked(
    args: dict[str, object], told: str
) -> None:
    row = chat(status="running", worker_id=WORKER, epoch=1)
    context = ToolContext(
        chat=row, call_id=ToolCallId("c"), fence=Fence.of(row), show=lambda text: None
    )
    output = await browser(NoWorkspace()).run(context, Raw(msgspec.json.encode(args)))
    assert output.is_error
    assert told in output.text
