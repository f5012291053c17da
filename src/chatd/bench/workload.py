"""What is committed: chats at work, and the steps a worker would write to them.

Sizes are those of ordinary chats: an answer or a tool's output of 2 KB, one usage row for each
model call.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from msgspec import Raw

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import CommitStep, CreateChat
from chatd.domain.chat.messages import Draft, TokenUsage, UsageEntry, UserInput
from chatd.domain.chat.parts import Part, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.transitions import ReservedSlots
from chatd.domain.chat.worker_transitions import commit_step
from chatd.domain.ids import ChangeId, ChatId, ModelConfigId, ToolCallId, UserId, WorkerId
from chatd.store.chat.transactor import AppliedChange, Operation, Transactor

WORKER: Final = WorkerId(UUID(int=7))
OWNER: Final = UserId(UUID(int=8))
MODEL: Final = ModelConfigId(UUID(int=9))

_WORDS: Final = ("error", "while", "reading", "a", "file", "that", "the", "build", "needs", "at")
_USAGE: Final = TokenUsage(
    input_tokens=1834, output_tokens=512, total_tokens=2346, cache_read_tokens=10_240
)
_CALL: Final = ToolCallId("toolu_01A09q90qw90lq917835lq9")

Write = Callable[[Chat], CommitStep]
"""The next step of a chat, under its present fence."""


def prose(size: int = 2048) -> str:
    """Compresses about as well as prose does, and is the same in every run."""
    chosen = random.Random(size)
    words: list[str] = []
    while size > 0:
        words.append(chosen.choice(_WORDS) + f"{chosen.randrange(1000)}")
        size -= len(words[-1]) + 1
    return " ".join(words)


_TEXT: Final = TextPart(text=prose())
_ASKS: Final = (
    TextPart(text="Let me look."),
    ToolCallPart(tool_call_id=_CALL, tool_name="execute", args=Raw(b'{"command":"make"}')),
)
_RESULT: Final = ToolResultPart(
    tool_call_id=_CALL,
    tool_name="execute",
    result=Raw(f'{{"output":"{prose()}"}}'.encode()),
)


def prompt(words: str = "Why does the build fail?") -> UserInput:
    return UserInput(content=(TextPart(text=words),), created_by=OWNER)


def new_id() -> UUID:
    return UUID(int=random.getrandbits(128))


def new_change_id() -> ChangeId:
    return ChangeId(random.getrandbits(62))


def answer(chat: Chat) -> CommitStep:
    return CommitStep(fence=Fence.of(chat), messages=(_said(chat, _TEXT),), usage=(_paid(chat),))


def ask(chat: Chat) -> CommitStep:
    return CommitStep(fence=Fence.of(chat), messages=(_said(chat, *_ASKS),), usage=(_paid(chat),))


def result(chat: Chat) -> CommitStep:
    draft = Draft(role="tool", content=(_RESULT,), runtime_ms=640)
    return CommitStep(fence=Fence.of(chat), messages=(draft,))


def _said(chat: Chat, *content: Part) -> Draft:
    return Draft(
        role="assistant",
        content=content,
        model_config_id=chat.model_config_id,
        usage=_USAGE,
        cost_micros=21_700,
        runtime_ms=8_400,
        provider_response_id="msg_01XFDUDYJgAACzvnptvVoYEL",
    )


def _paid(chat: Chat) -> UsageEntry:
    return UsageEntry(
        kind="turn",
        provider="anthropic",
        model="claude-sonnet",
        usage=_USAGE,
        model_config_id=chat.model_config_id,
        cost_micros=21_700,
        runtime_ms=8_400,
    )


ANSWERS: Final[Sequence[Write]] = (answer,)
TOOL_ROUNDS: Final[Sequence[Write]] = (ask, result)


def new_chat(words: str = "Why does the build fail?") -> CreateChat:
    return CreateChat(
        id=ChatId(new_id()),
        owner_id=OWNER,
        title="Why does the build fail?",
        model_config_id=MODEL,
        prompt=prompt(words),
    )


def tell_nobody(applied: AppliedChange) -> None:
    del applied


async def running_chat(transactor: Transactor) -> Chat:
    """A chat that a worker has taken and has not answered yet."""
    created = await transactor.run(creation(new_chat()))
    return created.chat


def creation(command: CreateChat) -> Operation:
    return Operation(
        chat_id=command.id,
        command=command,
        actor=command.owner_id,
        change_id=new_change_id(),
        slots=ReservedSlots(root=WORKER),
    )


async def commit(transactor: Transactor, chat: Chat, write: Write) -> Chat:
    """One step, as a runner commits it: from the row it has."""
    outcome = await transactor.run(
        Operation(
            chat_id=chat.id,
            command=write(chat),
            actor=None,
            change_id=new_change_id(),
            known=chat,
        )
    )
    assert isinstance(outcome, AppliedChange), "nobody else writes to this chat"
    return outcome.chat


def changes(chat: Chat, writes: Sequence[Write]) -> list[Change]:
    """The same steps, one after the other, without a database."""
    made: list[Change] = []
    for write in writes:
        made.append(commit_step(chat, write(chat)))
        chat = made[-1].after
    return made
