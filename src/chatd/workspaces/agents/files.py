"""The files of a workspace, read from its agent for a person."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

from msgspec import Struct

from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.files import MAX_PIECE_BYTES, FilePiece, WorkspaceDirectory
from chatd.workspaces.agents.client import API_PREFIX, OUTDATED_TEXT, RequestSender
from chatd.workspaces.agents.session import AgentRequest
from chatd.workspaces.agents.wire import decode_reply

MAX_FACTS_BYTES: Final = 64 << 10
BROWSE_TIMEOUT_S: Final = 30.0
"""Longer than the agent waits for its disk."""


class _Facts(Struct, frozen=True, kw_only=True):
    path: str
    size: int
    version: str
    modified_at: datetime | None = None


class AgentFiles:
    """Satisfies `WorkspaceFiles`."""

    def __init__(self, sender: RequestSender) -> None:
        self._sender = sender

    async def list_directory(self, path: str) -> WorkspaceDirectory:
        raw = await self._get("/files/list", {"path": path})
        return decode_reply(raw, WorkspaceDirectory)

    async def read_piece(self, path: str, *, offset: int, limit: int) -> FilePiece:
        """The reply is a line of facts, and the bytes."""
        most = min(limit, MAX_PIECE_BYTES)
        query = {"path": path, "offset": offset, "limit": most}
        raw = await self._get("/files/read", query, max_bytes=MAX_FACTS_BYTES + most)
        line, newline, content = raw.partition(b"\n")
        if not newline or len(content) > most:
            raise AgentUnreachable("The workspace agent sent a reply that cannot be read.")
        facts = decode_reply(line, _Facts)
        return FilePiece(
            path=facts.path,
            size=max(facts.size, 0),
            version=facts.version,
            modified_at=facts.modified_at,
            content=content,
        )

    async def _get(
        self, path: str, query: Mapping[str, object], *, max_bytes: int = 4 << 20
    ) -> bytes:
        request = AgentRequest(
            method="GET",
            target=f"{API_PREFIX}{path}?{urlencode(query, quote_via=quote)}",
            timeout_s=BROWSE_TIMEOUT_S,
            max_body_bytes=max_bytes,
        )
        try:
            return await self._sender.send(request)
        except AgentRefused as error:
            if error.code == "no_route":
                raise AgentRefused(OUTDATED_TEXT, status=404, code="agent_outdated") from None
            raise
