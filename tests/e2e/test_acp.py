"""`chatd acp` as an editor uses it: the protocol's own package starts it and talks to it."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import acp
import msgspec
import pytest
from acp import schema
from acp.client.connection import ClientSideConnection
from msgspec.structs import replace

from chatd.domain.ids import ChatId
from chatd.settings.schema import Settings
from tests.support.chaos.servers import TOKEN as SERVER_TOKEN
from tests.support.chaos.servers import Installation
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate
from tests.support.terminal import TOKEN, Json, TerminalServer, serve_terminal
from tests.terminal.test_killed_server import free_port
from tests.terminal.test_killed_server import server as serve_process

CHATD: Final = str(Path(sys.executable).with_name("chatd"))
CALL: Final = {
    "index": 0,
    "type": "function",
    "function": {"name": "list_agents", "arguments": "{}"},
}
QUESTION: Final = (
    '{"questions":[{"question":"Which colour?","header":"Colour","options":'
    '[{"label":"Red"},{"label":"Blue"}]}]}'
)


class Editor:
    """What `acp.Client` needs here. `choice` is what its user chooses; None cancels."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[tuple[schema.ToolCallUpdate, list[schema.PermissionOption]]] = []
        self.forms: list[Any] = []
        self.choice: str | None = "deny"
        self._changed = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_more: Any) -> None:
        self.updates.append(update)
        self._changed.set()

    async def request_permission(
        self,
        session_id: str,
        tool_call: schema.ToolCallUpdate,
        options: list[schema.PermissionOption],
        **_more: Any,
    ) -> schema.RequestPermissionResponse:
        self.asked.append((tool_call, options))
        outcome = (
            schema.DeniedOutcome(outcome="cancelled")
            if self.choice is None
            else schema.AllowedOutcome(outcome="selected", option_id=self.choice)
        )
        return schema.RequestPermissionResponse(outcome=outcome)

    async def create_elicitation(
        self, message: str, mode: Any, **_more: Any
    ) -> schema.AcceptElicitationResponse:
        self.forms.append(mode)
        return schema.AcceptElicitationResponse(action="accept", content={"choice_1": "Blue"})

    def on_connect(self, conn: object) -> None:
        """Nothing to do."""

    def text(self, kind: str = "agent_message_chunk") -> str:
        found = [one for one in self.updates if one.session_update == kind]
        return "".join(one.content.text for one in found)

    def statuses(self) -> list[tuple[str, str]]:
        """Of tool calls, as they were told."""
        kinds = ("tool_call", "tool_call_update")
        return [
            (str(one.tool_call_id), str(one.status))
            for one in self.updates
            if one.session_update in kinds
        ]

    async def until(self, text: str) -> None:
        async with asyncio.timeout(40):
            while text not in self.text():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def editor_on(
    url: str, token: str, tmp_path: Path, *, forms: bool = False
) -> AsyncGenerator[tuple[Editor, ClientSideConnection]]:
    editor = Editor()
    env = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # noqa: TID251
        "CHATD_URL": url,
        "CHATD_TOKEN": token,
    }
    # It asks its editor for no files and no terminals.
    started = acp.spawn_agent_process(
        cast("Any", editor), CHATD, "acp", "--remote", env=env, use_unstable_protocol=True
    )
    async with started as (agent, _process):
        elicitation = schema.ElicitationCapabilities(form=schema.ElicitationFormCapabilities())
        capabilities = schema.ClientCapabilities(elicitation=elicitation if forms else None)
        told = await agent.initialize(
            protocol_version=acp.PROTOCOL_VERSION, client_capabilities=capabilities
        )
        assert told.protocol_version == acp.PROTOCOL_VERSION
        assert told.agent_capabilities is not None
        assert told.agent_capabilities.load_session
        yield editor, agent


@pytest.fixture
async def server(dsn: str, tmp_path: Path) -> AsyncGenerator[TerminalServer]:
    def change(settings: Settings) -> Settings:
        demo, scripted = settings.models
        return replace(
            settings, models=(replace(demo, default=False), replace(scripted, default=True))
        )

    async with serve_terminal(dsn, tmp_path / "data", change) as server:
        yield server


def says(text: str) -> list[Any]:
    return [acp.text_block(text)]


def script_call(
    server: TerminalServer, number: int, name: str = "list_agents", arguments: str = "{}"
) -> None:
    made = {**CALL, "id": f"call_{number}", "function": {"name": name, "arguments": arguments}}
    server.vendor.script(
        chunk(role="assistant", content="I look."),
        chunk(tool_calls=[made]),
        chunk(finish="tool_calls"),
        DONE,
    )


async def test_a_prompt_goes_on_in_the_chat_whose_creation_was_not_confirmed(
    server: TerminalServer, tmp_path: Path
) -> None:
    async with editor_on(server.address.url, TOKEN, tmp_path) as (editor, agent):
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        # The first prompt arrived, and its reply was lost.
        server.will_answer("The first answer.")
        body = {"content": [{"type": "text", "text": "one"}], "labels": {"acp/session": session}}
        lost = server.http.post(
            "/api/v1/chats", json=body, headers={"Idempotency-Key": f"acp:{session}"}
        )
        async with lost as reply:
            chat = msgspec.json.decode(await reply.read(), type=Json)
        await server.until_status(msgspec.convert(chat["id"], ChatId), "waiting")
        server.will_answer("The second answer.")
        done = await agent.prompt(prompt=says("two"), session_id=session)
        assert done.stop_reason == "end_turn"
        assert "The second answer." in editor.text()
    chats = msgspec.convert((await server.call("GET", "/chats"))["items"], list[Json])
    assert [one["id"] for one in chats] == [chat["id"]]


async def test_an_editor_prompts_permits_cancels_and_loads(
    server: TerminalServer, tmp_path: Path
) -> None:
    """Slow: starts the command twice."""
    async with editor_on(server.address.url, TOKEN, tmp_path) as (editor, agent):
        made = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        assert made.modes is not None
        assert [mode.id for mode in made.modes.available_modes] == ["default", "plan"]

        script_call(server, 1)
        server.will_answer("There are none.")
        done = await agent.prompt(prompt=says("which agents?"), session_id=made.session_id)
        assert done.stop_reason == "end_turn"
        assert editor.text() == "I look.There are none."
        assert editor.text("user_message_chunk") == ""
        assert editor.statuses()[-1] == ("call_1", "completed")

        rules = [{"tool": "list_agents", "action": "ask"}]
        await server.call("PUT", "/settings/me/tool-policy", {"rules": rules})
        script_call(server, 2)
        server.will_answer("Then not.")
        done = await agent.prompt(prompt=says("again"), session_id=made.session_id)
        assert done.stop_reason == "end_turn"
        ((call, options),) = editor.asked
        assert call.tool_call_id == "call_2"
        assert {option.option_id for option in options} == {"approve", "always", "deny"}
        assert editor.statuses()[-1] == ("call_2", "failed")
        assert editor.text().endswith("Then not.")

        gate = Gate()
        server.will_answer("A long answer that nobody wants.", held=gate)
        waiting = asyncio.create_task(  # noqa: TID251
            agent.prompt(prompt=says("tell me"), session_id=made.session_id)
        )
        await editor.until("A long answer")
        await agent.cancel(session_id=made.session_id)
        assert (await waiting).stop_reason == "cancelled"
        gate.open()
        await agent.set_session_mode(session_id=made.session_id, mode_id="plan")
        (listed,) = (await agent.list_sessions(cwd=str(tmp_path))).sessions
        assert (listed.session_id, listed.cwd) == (made.session_id, str(tmp_path))
        with pytest.raises(acp.RequestError):
            await agent.prompt(prompt=says("x"), session_id="no-session")
        before = editor.text()

    async with editor_on(server.address.url, TOKEN, tmp_path) as (editor, agent):
        loaded = await agent.load_session(
            cwd=str(tmp_path), session_id=made.session_id, mcp_servers=[]
        )
        assert loaded is not None
        assert loaded.modes is not None
        assert loaded.modes.current_mode_id == "plan"
        assert editor.text() == before
        assert editor.text("user_message_chunk") == "which agents?againtell me"
        server.will_answer("On we go.")
        await agent.prompt(prompt=says("go on"), session_id=made.session_id)
        assert editor.text() == before + "On we go."
        with pytest.raises(acp.RequestError):
            await agent.load_session(cwd=str(tmp_path), session_id="7", mcp_servers=[])


@pytest.mark.parametrize("forms", [True, False])
async def test_questions_become_forms_or_options(
    server: TerminalServer, tmp_path: Path, *, forms: bool
) -> None:
    async with editor_on(server.address.url, TOKEN, tmp_path, forms=forms) as (editor, agent):
        made = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        script_call(server, 1, "ask_user_question", QUESTION)
        server.will_answer("Blue it is.")
        editor.choice = "choice:Blue"
        done = await agent.prompt(prompt=says("paint it"), session_id=made.session_id)
        assert (done.stop_reason, editor.text()) == ("end_turn", "I look.Blue it is.")
        assert (len(editor.forms), len(editor.asked)) == ((1, 0) if forms else (0, 1))
        answer = str(server.vendor.accepted[-1].messages[-1])
        assert "Blue" in answer


async def test_a_wrong_token_is_told_as_the_protocol_says(
    server: TerminalServer, tmp_path: Path
) -> None:
    async with editor_on(server.address.url, "no-token", tmp_path) as (_, agent):
        with pytest.raises(acp.RequestError) as refused:
            await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        assert refused.value.code == -32000


BEGINNING, REST = "The lamp was lit ", "before the storm came."


@pytest.mark.promise("P6")
@pytest.mark.timeout(150)
async def test_a_prompt_goes_on_after_the_server_was_killed(dsn: str, tmp_path: Path) -> None:
    """Slow: starts two servers in sequence."""
    gate, port = Gate(), free_port()
    async with FakeCompatible.running() as vendor, AsyncExitStack() as held:
        installation = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path / "data")
        vendor.script(chunk(role="assistant", content=BEGINNING), gate)
        vendor.script(chunk(role="assistant", content=BEGINNING + REST), chunk(finish="stop"), DONE)
        url = f"http://127.0.0.1:{port}"
        async with serve_process(installation, port) as first:
            opened = editor_on(url, SERVER_TOKEN, tmp_path)
            editor, agent = await held.enter_async_context(opened)
            made = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
            waiting = asyncio.create_task(  # noqa: TID251
                agent.prompt(prompt=says("tell me of the lamp"), session_id=made.session_id)
            )
            await editor.until(BEGINNING.strip())
            first.kill()
            await first.wait()
        async with serve_process(installation, port), asyncio.timeout(60):
            assert (await waiting).stop_reason == "end_turn"
            assert editor.text() == BEGINNING + REST
    gate.open()
