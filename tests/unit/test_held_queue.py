"""An interrupt that holds the queue, and what resumes it."""

import pytest

from chatd.domain.chat.commands import SendMessage, WhenBusy
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import (
    archive,
    delete_queued,
    interrupt_and_hold,
    promote_queued,
    resume_queue,
    send_message,
    unarchive,
)
from chatd.domain.chat.worker_transitions import expire_interrupt, finish_interrupt
from chatd.domain.chat_views.public_chat import public_chat
from chatd.domain.errors import TransitionNotAllowed
from tests.support.domain.history_lines import apply_changes
from tests.support.factories import draft, prompt, text
from tests.support.outcomes import present
from tests.support.seeds import Seed, Seeded, seed_chat, step

PARTIAL = draft("assistant", text("Once upon"))


def held() -> Seeded:
    """A chat with two queued messages that is being interrupted with its queue held."""
    return seed_chat(Seed(state=State.I1, plain=2, held=True))


def test_the_queue_waits_after_the_partial_answer_is_saved() -> None:
    seeded = held()
    assert public_chat(seeded.chat).queue_held
    rows = apply_changes(seeded, finish_interrupt(seeded.chat, step(seeded.chat, PARTIAL)))
    assert (rows.chat.state, rows.chat.queue_held, rows.chat.queue_len) == (State.E1, False, 2)
    assert rows.messages[-1].content == PARTIAL.content
    public = public_chat(rows.chat)
    assert (public.status, public.queue_held) == ("error", True)
    assert present(public.last_error).kind == "queue_held"


@pytest.mark.parametrize("state", [State.P1, State.A1])
def test_a_chat_without_a_step_in_progress_stops_at_once(state: State) -> None:
    seeded = seed_chat(Seed(state=state, begun=state is not State.P1))
    change = present(interrupt_and_hold(seeded.chat, None))
    assert (change.after.state, change.after.pending_calls) == (State.E1, ())
    assert present(change.after.last_error).kind == "queue_held"


def test_resuming_starts_the_head_of_the_queue() -> None:
    seeded = held()
    stopped = apply_changes(seeded, expire_interrupt(seeded.chat)).chat
    change = present(resume_queue(stopped, None))
    assert (change.after.state, change.promote, change.after.last_error) == (State.P1, 1, None)
    assert not public_chat(change.after).queue_held


def test_an_interrupt_in_progress_cannot_be_resumed() -> None:
    chat = held().chat
    with pytest.raises(TransitionNotAllowed):
        resume_queue(chat, None)


@pytest.mark.parametrize("when_busy", ["queue", "steer", "interrupt"])
def test_a_message_sent_meanwhile_releases_the_queue(when_busy: WhenBusy) -> None:
    chat = held().chat
    sent = send_message(chat, SendMessage(prompt=prompt("go"), when_busy=when_busy), None)
    assert (sent.after.state, sent.after.queue_held, sent.after.queue_len) == (State.I1, False, 3)


def test_a_message_promoted_meanwhile_releases_the_queue() -> None:
    seeded = held()
    change = promote_queued(seeded.chat, seeded.queue, seeded.queue[-1].id, None)
    assert (change.after.state, change.after.queue_held) == (State.I1, False)


def test_a_held_queue_that_is_emptied_leaves_a_waiting_chat() -> None:
    seeded = seed_chat(Seed(state=State.I1, held=True))
    change = present(delete_queued(seeded.chat, seeded.queue, seeded.queue[0].id))
    rows = apply_changes(seeded, change)
    assert expire_interrupt(rows.chat).after.state is State.W


def test_holding_twice_is_holding_once() -> None:
    chat = held().chat
    assert interrupt_and_hold(chat, None) is None
    plain = seed_chat(Seed(state=State.I1)).chat
    assert present(interrupt_and_hold(plain, None)).after.queue_held


def test_archiving_ends_the_hold() -> None:
    shelved = archive(held().chat).after
    assert (shelved.state, shelved.queue_held) == (State.XW1, False)
    assert unarchive(shelved).after.state is State.E1
