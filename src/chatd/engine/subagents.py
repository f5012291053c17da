"""The subagents of a chat: started, waited for, written to and stopped by the parent's tools; and
the waker of chats that are suspended until their subagents are settled.

A subagent is created in one statement with its first message and its binding to the workspace,
under the fence of its parent. Its id comes from the parent's call, so that a call that is run again
after a crash finds the subagent of the first run.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar
from uuid import uuid5
from weakref import WeakValueDictionary

from chatd.aio import InterruptibleSleep, retry_unavailable, run_contained
from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import Command, CreateChat, InterruptChat, SendMessage, WakeTurn
from chatd.domain.chat.messages import UserInput
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import AgentWait, Chat
from chatd.domain.chat.transitions import ReservedSlots
from chatd.domain.errors import ChatdError, NotFound, StaleFence, ToolError
from chatd.domain.ids import ChatId, RequestId, WorkerId
from chatd.domain.ports import Env, SpawnRequest, SubagentModels, ToolContext
from chatd.domain.subagents import (
    AgentPage,
    AgentReport,
    InterruptedAgent,
    MessagedAgent,
    SpawnedAgent,
    SubagentLimits,
    SubagentModel,
    can_spawn,
    derive_chat_id,
    mode_of,
    page_of,
    remaining_wait,
    report_text,
    spawn_objection,
    spawned,
    subagent_title,
    type_objection,
    wait_result,
)
from chatd.store.chat import subagents
from chatd.store.chat.operation import AppliedChange, Operation, OperationOutcome
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import Conn
from chatd.store.workspace import bindings

# Wakes chats that are suspended until their subagents are settled.
#
# The replica that writes the end of a subagent's turn wakes the parent. It also looks once more
# after it has suspended a chat, because the subagent may have ended in between. A poll covers a
# replica that died before it did either. The end of the wait itself needs no waking: the chat is
# runnable then.

AGENT_WAIT_POLL_INTERVAL_S: Final = 10.0
WAKE_RETRY_DELAY_S: Final = 1.0


class ReserveSlot(Protocol):
    """Reserve a slot of this replica's worker until the write has ended. None if it has none."""

    def __call__(self, *, root: bool) -> AbstractContextManager[WorkerId | None]: ...


class AgentWaker:
    def __init__(
        self, conn: Conn, transactor: Transactor, env: Env, reserve_slot: ReserveSlot
    ) -> None:
        self._conn = conn
        self._transactor = transactor
        self._env = env
        self._reserve_slot = reserve_slot
        self._requested: set[ChatId] = set()
        self._sleep = InterruptibleSleep(env.clock)

    def on_applied(self, chat: Chat) -> None:
        """A write of this replica."""
        if chat.is_suspended:
            self._request(chat.id)
        elif chat.parent_chat_id is not None and chat.is_settled:
            self._request(chat.parent_chat_id)

    def _request(self, parent: ChatId) -> None:
        self._requested.add(parent)
        self._sleep.wake()

    async def run(self) -> None:
        polled_at = self._env.clock.monotonic()
        while True:
            now = self._env.clock.monotonic()
            until_poll_s = polled_at + AGENT_WAIT_POLL_INTERVAL_S - now
            if not self._requested and until_poll_s > 0:
                await self._sleep.sleep(until_poll_s, "agent_wait_poll")
                continue
            requested, self._requested = self._requested, set()
            is_poll = until_poll_s <= 0
            if is_poll:
                polled_at = now
            wake = self._wake(None if is_poll else list(requested))
            if not await run_contained(wake, self._on_failed):
                self._requested |= requested
                await self._env.clock.sleep(WAKE_RETRY_DELAY_S, "wake_retry")

    def _on_failed(self, error: Exception) -> None:
        kind = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("wake_failed", error_kind=kind)

    async def _wake(self, parents: Sequence[ChatId] | None) -> None:
        """All suspended chats that can go on, or those of `parents`."""
        for chat in await subagents.list_wakeable(self._conn, parents):
            try:
                await self._wake_one(chat)
            except (StaleFence, NotFound):
                continue  # another replica was first, or a user has stopped the chat

    async def _wake_one(self, chat: Chat) -> None:
        with self._reserve_slot(root=chat.is_root) as worker:
            operation = Operation(
                chat_id=chat.id,
                command=WakeTurn(),
                actor=WORKER,
                change_id=self._env.new_change_id(),
                slots=ReservedSlots(root=worker, child=worker),
                known=chat,
            )
            await self._transactor.run(operation)
        self._env.emit("turn_woken", chat_id=chat.id)


T = TypeVar("T")


class SubagentService:
    """Satisfies `ports.Subagents`."""

    def __init__(
        self,
        conn: Conn,
        transactor: Transactor,
        env: Env,
        *,
        reserve_slot: ReserveSlot,
        models: SubagentModels,
        limits: SubagentLimits,
    ) -> None:
        self._conn = conn
        self._transactor = transactor
        self._env = env
        self._reserve_slot = reserve_slot
        self._models = models
        self._limits = limits
        self._spawning: WeakValueDictionary[ChatId, asyncio.Lock] = WeakValueDictionary()

    # Spawn

    async def spawn(self, context: ToolContext, request: SpawnRequest) -> SpawnedAgent:
        parent = context.chat
        child_id = derive_chat_id(context.call_key)
        # Calls of one step run side by side, and only this worker starts subagents of this chat:
        # one after the other, they are counted exactly and created in the order of the calls.
        async with self._spawning.setdefault(parent.id, asyncio.Lock()):
            # Before all that may refuse: the subagent of an earlier run is at work.
            found = await self._read(lambda: subagents.get(self._conn, WORKER, parent.id, child_id))
            if found is not None:
                return spawned(found)
            if not can_spawn(parent):
                raise ToolError("Only a root chat that does not explore can start subagents.")
            if (refusal := type_objection(parent, request.type)) is not None:
                raise ToolError(refusal)
            if request.type == "computer_use":
                await self._require_desktop(parent)
            model = await self._models.choose(
                parent, request.type, request.model, request.reasoning_effort
            )
            counts = await self._read(lambda: subagents.count(self._conn, WORKER, parent.id))
            if (objection := spawn_objection(counts, self._limits)) is not None:
                raise ToolError(objection)
            effort = request.reasoning_effort or (
                parent.reasoning_effort if model == parent.model_config_id else None
            )
            prompt = UserInput(
                content=(TextPart(text=request.prompt),),
                created_by=parent.owner_id,
                model_config_id=model,
                reasoning_effort=effort,
            )
            command = CreateChat(
                id=child_id,
                owner_id=parent.owner_id,
                title=subagent_title(request.title, request.prompt),
                prompt=prompt,
                parent_chat_id=parent.id,
                root_chat_id=parent.root_chat_id,
                model_config_id=model,
                reasoning_effort=effort,
                model_required=parent.model_required and model == parent.model_config_id,
                mode=mode_of(parent, request.type),
                max_cost_micros=parent.max_cost_micros,
                mcp_server_ids=parent.mcp_server_ids,
                parent_fence=context.fence,
            )
            outcome = await self._run(child_id, command)
        self._env.emit("subagent_spawned", chat_id=child_id, parent_id=parent.id)
        return spawned(outcome.chat)

    async def _require_desktop(self, parent: Chat) -> None:
        spec = await self._read(lambda: bindings.get_spec(self._conn, WORKER, parent.id))
        if spec is None or not spec.desktop:
            what = "no workspace" if spec is None else "a workspace without a desktop"
            raise ToolError(
                f"This chat has {what}. Create one from a template with a desktop: read_template"
                " says whether it has one."
            )

    # Wait

    async def wait(
        self, context: ToolContext, chat_id: ChatId, timeout_s: float
    ) -> AgentReport | AgentWait:
        parent = context.chat
        seen = await self._read(
            lambda: subagents.get_waited(self._conn, WORKER, parent.id, chat_id)
        )
        if seen is None:
            raise _no_such_agent(chat_id)
        wait = remaining_wait(seen.chat, seen.waited_s, timeout_s)
        is_interrupted = parent.steer_len > 0
        if wait is not None and not is_interrupted:
            return wait
        content = await self._read(lambda: subagents.read_report(self._conn, WORKER, chat_id))
        return wait_result(seen.chat, report_text(content), interrupted=is_interrupted)

    # Messages and interrupts

    async def send(
        self, context: ToolContext, chat_id: ChatId, text: str, *, interrupt: bool
    ) -> MessagedAgent:
        await self._get(context.chat, chat_id)
        command = SendMessage(
            prompt=UserInput(content=(TextPart(text=text),), created_by=context.chat.owner_id),
            when_busy="interrupt" if interrupt else "queue",
        )
        outcome = await self._run(chat_id, command, _request(context, "message_agent", chat_id))
        return MessagedAgent(
            chat_id=chat_id,
            title=outcome.chat.title,
            status=outcome.chat.public_status,
            interrupted=interrupt and _was_at_work(outcome),
        )

    async def interrupt(self, context: ToolContext, chat_id: ChatId) -> InterruptedAgent:
        """Stops one turn also if the call runs again: not the one that the queue began since."""
        await self._get(context.chat, chat_id)
        request = _request(context, "interrupt_agent", chat_id)
        outcome = await self._run(chat_id, InterruptChat(), request)
        return InterruptedAgent(
            chat_id=chat_id,
            title=outcome.chat.title,
            status=outcome.chat.public_status,
            interrupted=_was_at_work(outcome) or _is_of_earlier_run(outcome),
        )

    # Lists

    async def list_page(self, chat: Chat, *, limit: int, offset: int) -> AgentPage:
        children, total = await self._read(
            lambda: subagents.list_page(self._conn, WORKER, chat.id, limit=limit, offset=offset)
        )
        return page_of(children, total, offset)

    async def list_models(self, chat: Chat) -> Sequence[SubagentModel]:
        return await self._models.usable(chat.owner_id)

    async def _get(self, parent: Chat, chat_id: ChatId) -> Chat:
        found = await self._read(lambda: subagents.get(self._conn, WORKER, parent.id, chat_id))
        if found is None:
            raise _no_such_agent(chat_id)
        return found

    async def _run(
        self, chat_id: ChatId, command: Command, request: IdempotencyKey | None = None
    ) -> OperationOutcome:
        with self._reserve_slot(root=False) as worker:
            operation = Operation(
                chat_id=chat_id,
                command=command,
                actor=WORKER,
                change_id=self._env.new_change_id(),
                slots=ReservedSlots(child=worker),
                request=request,
            )
            return await self._read(self._transactor.start(operation).attempt)

    async def _read(self, work: Callable[[], Awaitable[T]]) -> T:
        return await retry_unavailable(self._env.clock, work)


def _no_such_agent(chat_id: ChatId) -> ToolError:
    return ToolError(
        f"{chat_id} is no subagent of this chat. Call list_agents for those that it has."
    )


def _request(context: ToolContext, op: str, chat_id: ChatId) -> IdempotencyKey:
    """The same for every run of the call."""
    return IdempotencyKey(
        scope=context.chat.id,
        id=RequestId(uuid5(context.chat.id, f"{op} {context.call_key}")),
        op=op,
        fingerprint=str(chat_id),
    )


def _is_of_earlier_run(outcome: OperationOutcome) -> bool:
    return isinstance(outcome, AppliedChange) and outcome.request is not None and outcome.replayed


def _was_at_work(outcome: OperationOutcome) -> bool:
    """False also if the outcome of an earlier run of the call was found."""
    change = outcome.change if isinstance(outcome, AppliedChange) else None
    before = None if change is None else change.before
    return before is not None and not before.is_settled
