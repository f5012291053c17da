"""What the agent answers: a status, a body, and perhaps lines that follow it.

Knows no sockets; how a reply is put on the wire is `connection`'s business.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from chatd.agent.errors import AgentError


@dataclass(frozen=True)
class Reply:
    """`lines` follow the body, for as long as they come and the client stays."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    lines: AsyncGenerator[bytes, None] | None = None


def json_reply(value: object, status: int = 200) -> Reply:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Reply(status, text.encode("utf-8", "replace"))


def error_reply(error: AgentError) -> Reply:
    return json_reply(error.body(), error.status)
