"""Checks the subagents in a database: each started once, none lost, every report the right one."""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.ids import ChatId
from tests.support.change_log import first_text
from tests.support.stored import Stored


def check_families(everything: Mapping[ChatId, Stored], *, may_be_lost: bool) -> None:
    """`may_be_lost`: the database has lost its last commits."""
    tasks = Counter(
        (found.chat.parent_chat_id, first_text(found.messages[0]))
        for found in everything.values()
        if found.chat.parent_chat_id is not None
    )
    twice = [task for task, count in tasks.items() if count > 1]
    assert not twice or may_be_lost, f"started twice: {twice}"
    for chat_id, found in everything.items():
        for part, result in _results(found):
            child_id = ChatId(msgspec.convert(result["chat_id"], ChatId, strict=False))
            child = everything.get(child_id)
            if child is None:
                assert may_be_lost, f"lost: subagent {child_id} of {chat_id}"
                continue
            assert child.chat.parent_chat_id == chat_id, f"{child_id} has another parent"
            name = first_text(child.messages[0]).split()[0]
            report = result.get("report")
            assert report in (None, f"answer to {name}"), f"{part.tool_call_id}: {report}"


def _results(found: Stored) -> Iterator[tuple[ToolResultPart, dict[str, object]]]:
    """The results of spawns and waits that name a subagent."""
    for message in found.messages:
        for part in message.content:
            if not isinstance(part, ToolResultPart) or not part.result or part.is_error:
                continue
            if part.tool_name in ("spawn_agent", "wait_agent"):
                yield part, msgspec.json.decode(bytes(part.result), type=dict[str, object])
