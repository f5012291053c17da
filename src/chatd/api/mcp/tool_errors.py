"""Errors of tools are results: the client's model reads what happened and what to call next."""

import logging
from collections.abc import Mapping
from typing import Final

from chatd.api.errors import error_reply
from chatd.api.mcp.toolset import ToolCall, ToolReply, ToolSet
from chatd.domain.errors import ChatdError
from chatd.log_event import LogEvent

log = logging.getLogger(__name__)

_REMEDIES: Final[Mapping[str, str]] = {
    "not_found": "list_chats lists the chats that you can use.",
    "chat_busy": "Wait with wait_for_chat, or send it with when_busy=queue.",
    "queue_full": "Wait with wait_for_chat until the chat has worked off its queue.",
    "idempotency_key_reused": "Use a new key for a new message.",
    "chat_archived": "Start another chat with start_chat.",
    "internal": "Nothing is known to have changed; look with read_chat before you repeat the call.",
}


async def run_tool(tools: ToolSet, name: str, call: ToolCall) -> ToolReply:
    try:
        return await tools.call(name, call)
    except ChatdError as error:
        return tool_error(error)


def tool_error(error: ChatdError) -> ToolReply:
    found = error_reply(error)
    if found.status == 500:
        log.error(LogEvent(event="request_failed", explanation="a bug"), exc_info=error)
    remedy = _REMEDIES.get(found.body.code, "")
    fields = "".join(f" {one.field}: {one.detail}." for one in found.body.validations[1:])
    text = f"{found.body.message}{fields} {remedy}".strip()
    return ToolReply(
        content=[{"type": "text", "text": f"{found.body.code}: {text}"}],
        is_error=True,
        retryable=found.status == 503,
    )
