"""What a subagent of a run waits for is told while the run goes on."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.support.command_line import CHATD, finish, read_until
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.providers.server import Gate, RecordedRequest, Reply
from tests.support.terminal import TOKEN, serve_terminal

pytestmark = pytest.mark.timeout(240)


class Team:
    """A model that starts one subagent and waits for it; the subagent reads a skill. The last
    answer of the first one is held at the gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    def answer(self, request: RecordedRequest) -> Reply:
        body = request.body.decode()
        rounds = body.count('"tool_calls"')
        is_child = "lead the team" not in body
        if is_child:
            return _calls("read_skill", {"name": "notes"}) if rounds == 0 else _says("read")
        if rounds == 0:
            return _calls("spawn_agent", {"type": "general", "prompt": "read the skill"})
        if rounds == 1:
            told = msgspec.json.decode(body)["messages"][-1]["content"]
            text = told if isinstance(told, str) else told[0]["text"]
            chat_id = msgspec.json.decode(text)["chat_id"]
            return _calls("wait_agent", {"chat_id": chat_id})
        return _says("The team is done.", self.gate)


def _calls(tool: str, args: object) -> Reply:
    function = {"name": tool, "arguments": msgspec.json.encode(args).decode()}
    call = {"index": 0, "id": f"call-{tool}", "type": "function", "function": function}
    return Reply(steps=(chunk(tool_calls=[call]), chunk(finish="tool_calls"), DONE))


def _says(text: str, held: Gate | None = None) -> Reply:
    return Reply(steps=(chunk(content=text), chunk(finish="stop"), DONE), held=held)


async def test_a_run_tells_what_its_subagent_waits_for(dsn: str, tmp_path: Path) -> None:
    team = Team()
    async with serve_terminal(dsn, tmp_path) as server:
        vars(server.vendor)["answer"] = team.answer
        skill = {"name": "notes", "description": "Notes.", "body": "Write notes."}
        await server.call("POST", "/skills", skill)
        rules = [{"tool": "read_skill", "action": "ask"}]
        await server.call("PUT", "/settings/me/tool-policy", {"rules": rules})
        process = await asyncio.create_subprocess_exec(
            *(CHATD, "run", "-m", "scripted", "lead the team"),
            env={"HOME": str(tmp_path), "CHATD_URL": server.address.url, "CHATD_TOKEN": TOKEN},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        lines = await read_until(process, "chatd chats approve", errors=True)
        team.gate.open()
        code, out, err = await finish(process)
    assert lines[-2] == "A subagent waits: Approve: read_skill"
    assert (code, out) == (0, "The team is done.\n"), err
