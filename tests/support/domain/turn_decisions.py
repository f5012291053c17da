"""The transitions of users and workers in a turn, each as a decision on the current row."""

from collections.abc import Callable

from chatd.domain.chat import user_transitions, worker_transitions
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import RecordRetry, ReleaseChat, SendMessage, WhenBusy
from chatd.domain.chat.messages import Draft
from chatd.domain.chat.row import Chat, Fence, RetryState
from chatd.domain.ids import WorkerId
from tests.support.factories import draft, prompt, text
from tests.support.seeds import FAILED, failing, step

Decision = Callable[[Chat], Change | None]


def sends(words: str, when_busy: WhenBusy = "queue", free: WorkerId | None = None) -> Decision:
    """A user sends; `free` acquires the chat if it has to run."""
    command = SendMessage(prompt=prompt(words), when_busy=when_busy)
    return lambda chat: user_transitions.send_message(chat, command, free)


def interrupts() -> Decision:
    return lambda chat: user_transitions.interrupt(chat, None)


def commits(*messages: Draft) -> Decision:
    """The worker commits a step and continues the turn."""
    return lambda chat: worker_transitions.commit_step(chat, step(chat, *messages))


def says(words: str) -> Decision:
    return commits(draft("assistant", text(words)))


def finishes(words: str) -> Decision:
    return lambda chat: worker_transitions.finish_turn(
        chat, step(chat, draft("assistant", text(words)))
    )


def finishes_interrupt(words: str) -> Decision:
    """The worker commits the partial answer."""
    return lambda chat: worker_transitions.finish_interrupt(
        chat, step(chat, draft("assistant", text(words)))
    )


def fails() -> Decision:
    """The worker fails the turn without any message."""
    return lambda chat: worker_transitions.fail_turn(chat, failing(step(chat), FAILED))


def retries() -> Decision:
    state = RetryState(attempt=1, delay_ms=1, error="overloaded")
    return lambda chat: worker_transitions.record_retry(
        chat, RecordRetry(fence=Fence.of(chat), state=state)
    )


def releases() -> Decision:
    def decide(chat: Chat) -> Change:
        assert chat.worker_id is not None
        return worker_transitions.release(
            chat, ReleaseChat(worker_id=chat.worker_id, epoch=chat.epoch)
        )

    return decide


def acquires(worker: WorkerId) -> Decision:
    return lambda chat: worker_transitions.acquire(chat, worker)
