"""The commits of a bench: chats, and the steps that a worker writes to them.

Sizes are those of ordinary chats: 2 KB for an answer or a tool's output, one usage row per model
call.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from msgspec import Raw

from chatd.domain.access import permissions
from chatd.domain.access.permissions import ADMIN_USER_ID, UserActor
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import CommitStep, CreateChat
from chatd.domain.chat.messages import Draft, TokenUsage, UsageEntry, UserInput
from chatd.domain.chat.parts import Part, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.transitions import ReservedSlots
from chatd.domain.chat.worker_transitions import commit_step
from chatd.domain.ids import ChangeId, ChatId, ModelConfigId, ToolCallId, WorkerId
from chatd.store.chat.operation import AppliedChange, Operation
from chatd.store.chat.transactor import Transactor

WORKER: Final = WorkerId(UUID(int=7))
OWNER: Final = ADMIN_USER_ID
MODEL: Final = ModelConfigId(UUID(int=9))

_WORDS: Final = ("error", "while", "reading", "a", "file", "that", "the", "build", "needs", "at")
_USAGE: Final = TokenUsage(
    input_tokens=1834, output_tokens=512, total_tokens=2346, cache_read_tokens=10_240
)
_CALL: Final = ToolCallId("toolu_01A09q90qw90lq917835lq9")

NextStep = Callable[[Chat], CommitStep]
"""Builds the next step of a chat, under its current fence."""


def prose(size: int = 2048) -> str:
    """Compresses about as well as real prose, and is the same in every run."""
    chosen = random.Random(size)
    words: list[str] = []
    while size > 0:
        words.append(chosen.choice(_WORDS) + f"{chosen.randrange(1000)}")
        size -= len(words[-1]) + 1
    return " ".join(words)


_TEXT: Final = TextPart(text=prose())
_CALL_PARTS: Final = (
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


def answer_step(chat: Chat) -> CommitStep:
    return CommitStep(
        fence=Fence.of(chat), messages=(_answer_draft(chat, _TEXT),), usage=(_usage_entry(chat),)
    )


def tool_call_step(chat: Chat) -> CommitStep:
    return CommitStep(
        fence=Fence.of(chat),
        messages=(_answer_draft(chat, *_CALL_PARTS),),
        usage=(_usage_entry(chat),),
    )


def tool_result_step(chat: Chat) -> CommitStep:
    draft = Draft(role="tool", content=(_RESULT,), runtime_ms=640)
    return CommitStep(fence=Fence.of(chat), messages=(draft,))


def _answer_draft(chat: Chat, *content: Part) -> Draft:
    return Draft(
        role="assistant",
        content=content,
        model_config_id=chat.model_config_id,
        usage=_USAGE,
        cost_micros=21_700,
        runtime_ms=8_400,
        provider_response_id="msg_01XFDUDYJgAACzvnptvVoYEL",
    )


def _usage_entry(chat: Chat) -> UsageEntry:
    return UsageEntry(
        kind="turn",
        provider="anthropic",
        model="claude-sonnet",
        usage=_USAGE,
        model_config_id=chat.model_config_id,
        cost_micros=21_700,
        runtime_ms=8_400,
    )


ANSWER_STEPS: Final[Sequence[NextStep]] = (answer_step,)
TOOL_ROUND_STEPS: Final[Sequence[NextStep]] = (tool_call_step, tool_result_step)


def new_chat(words: str = "Why does the build fail?") -> CreateChat:
    return CreateChat(
        id=ChatId(new_id()),
        owner_id=OWNER,
        title="Why does the build fail?",
        model_config_id=MODEL,
        prompt=prompt(words),
    )


def ignore_applied(applied: AppliedChange) -> None:
    del applied


async def running_chat(transactor: Transactor) -> Chat:
    """A chat that a worker has acquired and not answered."""
    created = await transactor.run(creation(new_chat()))
    return created.chat


def creation(command: CreateChat) -> Operation:
    return Operation(
        chat_id=command.id,
        command=command,
        actor=UserActor(user_id=command.owner_id, role="member"),
        change_id=new_change_id(),
        slots=ReservedSlots(root=WORKER),
    )


async def commit(transactor: Transactor, chat: Chat, next_step: NextStep) -> Chat:
    """Commit one step as a runner does, from the row at hand."""
    outcome = await transactor.run(
        Operation(
            chat_id=chat.id,
            command=next_step(chat),
            actor=permissions.WORKER,
            change_id=new_change_id(),
            known=chat,
        )
    )
    assert isinstance(outcome, AppliedChange), "no other worker writes to this chat"
    return outcome.chat


def plan_changes(chat: Chat, steps: Sequence[NextStep]) -> list[Change]:
    """The changes of these steps in sequence, without a database."""
    made: list[Change] = []
    for next_step in steps:
        made.append(commit_step(chat, next_step(chat)))
        chat = made[-1].after
    return made
