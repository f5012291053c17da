"""Notices: what chatd tells people in a chat, and that nothing else takes them for messages."""

from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.commands import FinishInterrupt
from chatd.domain.chat.messages import (
    Draft,
    Message,
    decode_parts,
    encode_parts,
    ends_early,
    has_notice,
    is_stop,
    notice_draft,
    public_message,
)
from chatd.domain.chat.parts import NoticePart, Part, UnknownPart
from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import commit_step, finish_interrupt
from chatd.domain.chat_views.transfer import message_markdown
from chatd.domain.decisions import Action, Finish, Generate, TurnRules, next_action
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.config import replacement_notice
from chatd.domain.model.failures import RemovedModel
from chatd.domain.model.protocol import ModelConfig
from chatd.domain.prompt.builder import PromptTarget, build_prompt, is_paused
from chatd.domain.prompt.compaction import is_compactable, rows_for_prompt
from chatd.domain.prompt.titles import list_turns, needs_title
from chatd.store.search import message_text
from tests.support.factories import WORKER, call, chat, draft, message, result, text
from tests.support.seeds import seed_state, step

NOTICE = NoticePart(code="model_replaced", text="Model A was removed; B answers now.")


def notice(row_id: int, code: str = "model_replaced", **detail: str) -> Message:
    part = NoticePart(code=code, text="Something happened.", detail=detail)
    return message(row_id, "system", part, visibility="user")


HI = message(1, "user", text("hi"))
YES = message(2, "assistant", text("yes"), finish_reason="stop")
CALLED = message(2, "assistant", call("c"), finish_reason="tool-calls")
DONE = message(3, "tool", result("c"))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([HI, notice(2)], Generate(), id="the message is not answered"),
        pytest.param([HI, YES, notice(3)], Finish(reason="complete"), id="the answer ended it"),
        pytest.param([HI, notice(2), CALLED, DONE, notice(4)], Generate(), id="after results"),
        pytest.param(
            [HI, CALLED, notice(3), DONE, notice(5)], Generate(), id="between call and result"
        ),
        pytest.param(
            [HI, *(notice(n) for n in range(2, 9))], Generate(), id="notices are no steps"
        ),
    ],
)
def test_the_next_action_does_not_depend_on_notices(rows: list[Message], expected: Action) -> None:
    rules = TurnRules(max_steps=2)
    assert next_action(rows, chat(), rules) == expected
    assert next_action([row for row in rows if not row.is_notice], chat(), rules) == expected


def test_the_model_is_never_sent_a_notice() -> None:
    rows = [HI, notice(2), CALLED, notice(3), DONE, notice(4)]
    plain = [row for row in rows if not row.is_notice]
    target = PromptTarget(provider="p")
    assert rows_for_prompt(rows) == plain
    assert build_prompt(rows, target) == build_prompt(plain, target)


def test_a_notice_after_a_pause_does_not_end_it() -> None:
    paused = message(2, "assistant", text("so far"), finish_reason="pause")
    assert is_paused([HI, paused, notice(3)])


def test_a_chat_with_notices_only_cannot_be_compacted_and_still_needs_its_title() -> None:
    assert not is_compactable([HI, notice(2)])
    assert needs_title([notice(0), HI, notice(2)], "New Chat", "hi")
    assert [turn.answer for turn in list_turns([HI, YES, notice(3)])] == ["yes"]


def test_search_does_not_find_notices() -> None:
    assert message_text(notice(2)) == ""


def test_a_step_may_add_notices_but_not_only_notices() -> None:
    row = seed_state(State.R0).chat
    told = notice_draft("model_replaced", "B answers now.")
    answer = Draft(role="assistant", content=(call("c"),))
    change = commit_step(row, step(row, told, answer, told))
    assert [added.draft.role for added in change.messages] == ["system", "assistant", "system"]
    assert change.after.model_config_id == row.model_config_id
    with pytest.raises(InvariantBroken):
        commit_step(row, step(row, told))


def test_people_see_a_notice_and_a_replica_that_does_not_know_it_keeps_it() -> None:
    row = notice(2, "step_limit", steps="1200")
    shown = public_message(chat().id, row)
    assert shown is not None
    assert (shown.role, shown.content) == ("system", row.content)
    stored = encode_parts(row.content)
    assert decode_parts(stored) == row.content
    newer = stored.replace('"notice"', '"notice2"')
    unknown = decode_parts(newer)
    assert isinstance(unknown[0], UnknownPart)
    assert encode_parts(unknown) == newer


def test_a_text_that_utf8_cannot_hold_is_repaired() -> None:
    draft = notice_draft("step_limit", "a\ud800", {"model": "b\udfff"})
    (part,) = decode_parts(encode_parts(draft.content))
    assert part == NoticePart(code="step_limit", text="a\ufffd", detail={"model": "b\ufffd"})


def test_an_export_has_notices_as_quotes() -> None:
    row = msgspec.structs.replace(notice(2), content=(NOTICE,))
    assert message_markdown(row) == (
        f"> Model A was removed; B answers now. ({row.created_at:%Y-%m-%d %H:%M} UTC)\n\n"
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([HI], False, id="none"),
        pytest.param([HI, notice(2, model="a"), YES], True, id="earlier in the turn"),
        pytest.param([HI, notice(2, model="b")], False, id="of another change"),
        pytest.param([HI, notice(2, "other", model="a")], False, id="another code"),
        pytest.param([HI, notice(2, model="a"), message(3, "user", text("x"))], False, id="before"),
    ],
)
def test_a_notice_is_said_once_in_a_turn(rows: list[Message], *, expected: bool) -> None:
    assert has_notice(rows, "model_replaced", {"model": "a"}) is expected


@pytest.mark.parametrize(
    ("role", "part", "expected"),
    [
        ("system", NoticePart(code="step_limit", text="x"), True),
        ("system", NOTICE, False),
        ("assistant", text("step_limit"), False),
    ],
)
def test_notices_that_tell_why_a_turn_ended_early(role: str, part: Part, *, expected: bool) -> None:
    row = message(1, "system" if role == "system" else "assistant", part)
    assert ends_early(row) is expected


OLD, NEW = ModelConfigId(UUID(int=1)), ModelConfigId(UUID(int=2))
TOLD = {"removed_model_config_id": str(OLD), "model_config_id": str(NEW)}
SUMMARY = message(4, "user", text("A summary."), visibility="model", compressed=True)


def answered(row_id: int, model: ModelConfigId) -> Message:
    return message(row_id, "assistant", text("yes"), model_config_id=model)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        pytest.param([HI], True, id="first"),
        pytest.param([HI, notice(2, **TOLD), answered(3, NEW)], False, id="said before"),
        pytest.param([HI, notice(2, **TOLD), answered(3, OLD)], True, id="it has answered since"),
        pytest.param([HI, answered(3, NEW)], True, id="the other one was chosen before"),
        pytest.param([SUMMARY, answered(5, NEW)], False, id="said before the summary"),
        pytest.param([answered(3, NEW), SUMMARY, HI], False, id="before it, with kept answers"),
        pytest.param([SUMMARY, answered(5, OLD)], True, id="it has answered since the summary"),
        pytest.param([answered(3, OLD), SUMMARY, HI], True, id="removed after the summary"),
    ],
)
def test_that_a_model_was_replaced_is_said_once(rows: list[Message], *, says: bool) -> None:
    removed = RemovedModel(id=OLD, name="old")
    now = ModelConfig(id=NEW, name="new", provider="p", model="m")
    assert (replacement_notice(rows, removed, now) is not None) is says


@pytest.mark.parametrize(
    ("last", "added", "told"),
    [
        (4, (), True),  # user, answer with a call, result; then nothing
        (2, (), False),  # nothing was done
        (4, (draft("assistant", text("so f")),), False),  # the partial answer shows it
    ],
)
def test_an_interrupt_between_two_steps_is_told(
    last: int, added: tuple[Draft, ...], *, told: bool
) -> None:
    row = chat(status="interrupting", worker_id=WORKER, next_message_id=last + 1, turn_message_id=2)
    step = FinishInterrupt(fence=Fence.of(row), messages=added, keep_owner=False)
    change = finish_interrupt(row, step)
    assert [is_stop(one.draft) for one in change.messages] == (
        [True] if told else [False] * len(added)
    )
    assert change.after.state == "W"
