"""Instruction updates: what the model is told when its instructions change, and where."""

import pytest

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import InstructionPart
from chatd.domain.prompt.builder import PendingUpdate, next_update
from chatd.domain.prompt.instructions import Instructions
from tests.support.factories import chat, message, text

HI = message(1, "user", text("hi"))
ATTACHED = Instructions(workspace="attached", files="use tabs")


def told(row_id: int, role: str = "user", **sections: str) -> Message:
    parts = (InstructionPart(section=name, text=words) for name, words in sections.items())
    return message(row_id, "system" if role == "system" else "user", *parts, visibility="model")


FIRST = told(2, "system", workspace="attached", files="use tabs")
YES = message(3, "assistant", text("yes"))
SUMMARY = message(9, "user", text("summary"), visibility="model", compressed=True)


@pytest.mark.parametrize(
    ("rows", "given", "expected"),
    [
        pytest.param([HI], Instructions(), None, id="nothing to say"),
        pytest.param(
            [HI],
            ATTACHED,
            ("system", {"workspace": "attached", "files": "use tabs"}),
            id="the first update is part of the system prompt",
        ),
        pytest.param(
            [HI, YES],
            Instructions(workspace="attached"),
            ("user", {"workspace": "attached"}),
            id="after an answer the system prompt stays as it was",
        ),
        pytest.param([HI, FIRST, YES], ATTACHED, None, id="nothing changed"),
        pytest.param(
            [HI, FIRST, YES],
            Instructions(workspace="stopped", files="use tabs"),
            ("user", {"workspace": "stopped"}),
            id="only the changed section",
        ),
        pytest.param(
            [HI, FIRST, YES],
            Instructions(workspace="attached", files=""),
            ("user", {"files": ""}),
            id="a section that is withdrawn",
        ),
        pytest.param([HI, FIRST, YES], Instructions(), None, id="what is not known stands"),
        pytest.param(
            [HI, FIRST, YES, told(4, workspace="stopped")],
            ATTACHED,
            ("user", {"workspace": "attached"}),
            id="back to the first text",
        ),
        pytest.param(
            [HI, FIRST, YES, told(4, workspace="stopped"), SUMMARY],
            Instructions(workspace="stopped", files="use tabs"),
            ("user", {"workspace": "stopped"}),
            id="a summary hides it: told again",
        ),
        pytest.param([HI, FIRST, YES, SUMMARY], ATTACHED, None, id="a summary hides no system row"),
        pytest.param(
            [HI],
            Instructions(deployment="be kind", workspace="attached"),
            ("system", {"deployment": "be kind", "workspace": "attached"}),
            id="the prompt of the deployment begins a chat",
        ),
        pytest.param(
            [HI, FIRST, YES],
            Instructions(deployment="be kind", workspace="attached"),
            None,
            id="the prompt of the deployment is not told later",
        ),
    ],
)
def test_a_notice_tells_what_changed(
    rows: list[Message], given: Instructions, expected: tuple[str, dict[str, str]] | None
) -> None:
    notice = next_update(rows, given)
    if notice is None:
        assert expected is None
        return
    parts = [part for part in notice.content if isinstance(part, InstructionPart)]
    assert (notice.role, {part.section: part.text for part in parts}) == expected
    assert notice.visibility == "model"


def test_a_notice_that_was_told_is_not_repeated() -> None:
    draft = next_update([HI], ATTACHED)
    assert draft is not None
    row = PendingUpdate.of(draft, chat(next_message_id=2)).row
    assert next_update([HI, row], ATTACHED) is None
