"""What a person does in a chat's workspace, by its agent.

The agent is asked for the server and not for the chat: a person needs no proof that a worker owns
the chat. That a command is the chat's own is checked here before.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from chatd.domain.chat.row import Chat
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    DiffScope,
    ProcessInfo,
    ProcessSignal,
)
from chatd.workspaces.agents.client import API_PREFIX, HttpAgentClient, RequestSender
from chatd.workspaces.agents.files import OUTDATED_TEXT
from chatd.workspaces.agents.session import AgentRequest
from chatd.workspaces.agents.wire import ChatIdentity

END_WAIT_S: Final = 2.0
"""After a signal: most commands end at once, and the reply says so."""
REVERT_TIMEOUT_S: Final = 60.0


class AgentEffects:
    """Satisfies `WorkspaceEffects` for one chat."""

    def __init__(self, sender: RequestSender, clock: Clock, chat: Chat) -> None:
        self._sender = sender
        self._chat = chat
        self._server = HttpAgentClient(sender, clock)
        self._own = HttpAgentClient(sender, clock, ChatIdentity(chat_id=chat.id))

    async def processes(self) -> Sequence[ProcessInfo]:
        return await self._own.processes()

    async def signal(self, process_id: str, signal: ProcessSignal) -> ProcessInfo:
        known = {process.id: process for process in await self._own.processes()}
        if process_id not in known:
            raise AgentRefused(f"This chat has no process {process_id}.", status=404)
        await self._server.signal(process_id, signal)
        after = await self._own.output(process_id, wait_s=END_WAIT_S)
        return replace(known[process_id], running=after.running, exit_code=after.exit_code)

    async def revert(self, scope: DiffScope, repo_root: str, paths: Sequence[str]) -> None:
        turn = self._chat.turn_message_id
        body = {
            "chat_id": str(self._chat.id),
            "scope": scope,
            "turn": "" if turn is None else str(turn),
            "repo_root": repo_root,
            **dict(zip(("path", "old_path"), paths, strict=False)),
        }
        request = AgentRequest(
            method="POST",
            target=f"{API_PREFIX}/git/revert",
            body=msgspec.json.encode(body),
            timeout_s=REVERT_TIMEOUT_S,
        )
        try:
            await self._sender.send(request)
        except AgentRefused as error:
            if error.code == "no_route":
                raise AgentRefused(OUTDATED_TEXT, status=404, code="agent_outdated") from None
            raise
