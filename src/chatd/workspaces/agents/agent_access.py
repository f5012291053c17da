"""Access of chats to the agents of their workspaces.

A request of a chat goes to the agent that the chat is bound to, after a handshake that learns the
agent's boot id. If the reply is slow or the request is lost, chatd looks up the agent of the latest
build, binds the chat to it if it is another one, and sends the request once more. An effect carries
an idempotency key, which an agent answers from its journal if it knows the key already. Every
request ends within a bounded time, with a reply or with an error that tells the model what to do.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from chatd.aio import first_of
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.ports import Clock, ToolContext
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    ConnectFailed,
    RunnerDisconnected,
    WorkspaceUnavailable,
)
from chatd.domain.workspace.entities import AgentId, AgentRow
from chatd.domain.workspace.rules import agent_status, remedy_after_timeout
from chatd.domain.workspace.runners import RUNNER_WAIT_S
from chatd.workspaces.agents.agent_client import (
    EPOCH_HEADER,
    AgentClient,
    AgentConnection,
    ChatIdentity,
    OutcomeUnknown,
    OwnerUnproven,
)
from chatd.workspaces.agents.agent_resolver import (
    MAX_BIND_ATTEMPTS,
    AgentObservation,
    AgentResolver,
    BindingStore,
    workspace_changing_error,
)
from chatd.workspaces.agents.agent_session import (
    AGENT_REPLY_TIMEOUT_S,
    AgentRequest,
    AgentTimeout,
)

# The proof that a worker owns its chat.
#
# An agent acts for one owner of a chat at a time. If it knows another one, or none because it has
# just started, it does nothing and asks for a proof, named by a mark. The worker then reads the
# chat's row, and only the worker that the row names sends the request again with the mark. So a
# worker that has lost its chat is refused, and a database restored to an older state, with lower
# epochs, is obeyed.

MAX_OWNER_CHECKS: Final = 3
"""How often one request proves that its worker owns the chat. The agent asks again if it has been
restarted in between."""
OWNER_UNREAD_TEXT: Final = (
    "Nothing was done: chatd's own database did not answer whether this worker still owns the chat."
    " Try again in a moment."
)
_NO_MARK: Final = "-"


class ChatOwner:
    """`on_proven` is called when the row has named the worker as the owner."""

    def __init__(
        self,
        bindings: BindingStore,
        chat_id: ChatId,
        fence: Fence,
        on_proven: Callable[[], None],
    ) -> None:
        self._bindings = bindings
        self._on_proven = on_proven
        self.chat_id = chat_id
        self.fence = fence

    def is_same(self, fence: Fence) -> bool:
        mine = (self.fence.epoch, self.fence.worker_id)
        return mine == (fence.epoch, fence.worker_id)

    async def send(self, sender: AgentConnection, request: AgentRequest) -> bytes:
        """Raises OwnerUnproven; the agent has then done nothing."""
        if not request.has_effect or not sender.asks_for_owner:
            return await sender.send(request)
        mark, checks = _NO_MARK, 0
        while True:
            claim = f"{self.fence.epoch} {self.fence.worker_id} {mark}"
            headers = {**request.headers, EPOCH_HEADER: claim}
            try:
                return await sender.send(replace(request, headers=headers))
            except OwnerUnproven as refusal:
                checks += 1
                if checks > MAX_OWNER_CHECKS or not await self._is_owner(refusal):
                    raise
                mark = refusal.fence
            self._on_proven()

    async def _is_owner(self, refusal: OwnerUnproven) -> bool:
        try:
            return await self._bindings.is_owner(self.chat_id, self.fence)
        except ChatdError as unread:
            raise OwnerUnproven(OWNER_UNREAD_TEXT, refusal.fence) from unread


# Requests of chats

REBIND_CHECK_AFTER_S: Final = 5.0
"""If the reply takes longer, chatd reads the latest build while it waits."""
RESEND_TIMEOUT_S: Final = 25.0
"""Limit for the second attempt. Both attempts together are shorter than a tool's timeout of 60
s."""
BINDING_RECHECK_AFTER_S: Final = 30.0
"""A binding unused for this long is checked again: its agent may be disconnected by now."""
MAX_REMEMBERED_CHATS: Final = 1000

RESTART_TEXT: Final = "Call stop_workspace, then start_workspace."
WORKSPACE_CHANGED_TEXT: Final = "The chat was given another workspace during the call."
NOT_REPEATED_TEXT: Final = (
    "The workspace agent's reply was lost, and chatd could not show that this worker still owns the"
    " chat, so it did not ask again."
)
RUNNER_GONE_TEXT: Final = (
    "What runs there goes on, and it reconnects by itself: try again later, or tell the user. If it"
    " is gone for good, create_workspace creates a new workspace elsewhere."
)
RUNNER_POLL_INTERVAL_S: Final = 1.0


def _ignore(workspace_id: WorkspaceId) -> None:
    del workspace_id


def _ignore_chat(chat_id: ChatId) -> None:
    del chat_id


class AccessDeps(Struct, frozen=True, kw_only=True):
    """`connect` makes the handshake. `on_use` is called for every workspace that a chat uses."""

    bindings: BindingStore
    connect: Callable[[AgentRow], Awaitable[AgentConnection]]
    clock: Clock
    on_use: Callable[[WorkspaceId], None] = _ignore
    on_chat_request: Callable[[ChatId], None] = _ignore_chat
    check_after_s: float = REBIND_CHECK_AFTER_S
    runner_wait_s: float = RUNNER_WAIT_S


class AgentAccess:
    """Satisfies `tools.tool.WorkspaceAccess` for all chats of this replica."""

    def __init__(self, deps: AccessDeps) -> None:
        self._deps = deps
        self._chats: OrderedDict[ChatId, ChatAccess] = OrderedDict()
        self._in_flight: Counter[WorkspaceId] = Counter()

    async def connect(self, context: ToolContext) -> AgentClient:
        """Raises WorkspaceUnavailable if the chat has no workspace that runs."""
        chat = context.chat
        access = self._access(chat, context.fence)
        await access.resolver.resolve()
        parents = () if chat.parent_chat_id is None else (chat.parent_chat_id,)
        identity = ChatIdentity(
            chat_id=chat.id,
            ancestors=parents,
            epoch=context.fence.epoch,
            turn=chat.turn_message_id,
        )
        return AgentClient(_CallSender(access, context.wait_for), self._deps.clock, identity)

    def in_use(self) -> set[WorkspaceId]:
        """The workspaces with a request in flight."""
        return set(self._in_flight)

    def on_bound(self, chat_id: ChatId, workspace_id: WorkspaceId) -> None:
        """Called when the chat was given this workspace, or its workspace was built again."""
        if (access := self._chats.get(chat_id)) is not None:
            access.select(workspace_id)

    def forget(self, chat_id: ChatId) -> None:
        """Called when the chat lost its workspace: later requests of a running call fail too."""
        if (access := self._chats.pop(chat_id, None)) is not None:
            access.select(None)

    def _access(self, chat: Chat, fence: Fence) -> "ChatAccess":
        access = self._chats.get(chat.id)
        if access is not None and access.owner.fence.epoch > fence.epoch:
            # A chat task that has lost its chat and does not know it yet, or one of a database that
            # was restored to an older state. The agent asks for a proof, which tells.
            return ChatAccess(self._deps, self._in_flight, chat, fence, self._remember)
        if access is None or not access.owner.is_same(fence):
            access = ChatAccess(self._deps, self._in_flight, chat, fence, self._remember)
        self._remember(access)
        access.on_row(chat)
        return access

    def _remember(self, access: "ChatAccess") -> None:
        self._chats[access.owner.chat_id] = access
        self._chats.move_to_end(access.owner.chat_id)
        while len(self._chats) > MAX_REMEMBERED_CHATS:
            self._chats.popitem(last=False)


class _AgentReplaced(Exception):
    """The latest build has another agent than the one that was asked."""

    def __init__(self, latest: AgentRow) -> None:
        super().__init__()
        self.latest = latest


class _WorkspaceChanged(Exception):
    """The chat was given another workspace before the request was sent."""


async def _go_on(text: str) -> None:
    del text


class _Delivery:
    """One request, over all attempts to send it. `wait_for` is told why it cannot be sent now."""

    def __init__(
        self, request: AgentRequest, wait_for: Callable[[str], Awaitable[None]] = _go_on
    ) -> None:
        self.request = request
        self.wait_for = wait_for
        self.workspace_id: WorkspaceId | None = None
        self.may_have_arrived = False

    @property
    def may_have_acted(self) -> bool:
        return self.may_have_arrived and self.request.has_effect


class _Connected(Struct, frozen=True):
    agent_id: AgentId
    sender: AgentConnection


class ChatAccess:
    """Satisfies `RequestSender` for one chat under one epoch. `on_proven` is called when the
    chat's row has named the worker as its owner."""

    def __init__(
        self,
        deps: AccessDeps,
        in_flight: Counter[WorkspaceId],
        chat: Chat,
        fence: Fence,
        on_proven: Callable[["ChatAccess"], None],
    ) -> None:
        self._deps = deps
        self._in_flight = in_flight
        self._row_workspace_id = chat.workspace_id
        self._connected: _Connected | None = None
        self._connecting = asyncio.Lock()
        self._used_at = 0.0
        self.resolver = AgentResolver(deps.bindings, chat.id)
        self.owner = ChatOwner(deps.bindings, chat.id, fence, lambda: on_proven(self))

    def on_row(self, chat: Chat) -> None:
        """Follow a change of the chat's row. `select` may have received it before."""
        if self._row_workspace_id != chat.workspace_id:
            self._row_workspace_id = chat.workspace_id
            if self.resolver.workspace_id != chat.workspace_id:
                self.select(chat.workspace_id)

    def select(self, workspace_id: WorkspaceId | None) -> None:
        """Close it. Requests in flight still get their replies."""
        self.resolver.select(workspace_id)
        self._connected = None

    async def send(
        self, request: AgentRequest, wait_for: Callable[[str], Awaitable[None]] = _go_on
    ) -> bytes:
        """Raises AgentRefused, AgentUnreachable and WorkspaceUnavailable; OutcomeUnknown if the
        request may have taken effect."""
        delivery = _Delivery(request, wait_for)
        self._deps.on_chat_request(self.owner.chat_id)
        try:
            return await self._deliver(delivery)
        except OwnerUnproven as error:
            # The attempt that was refused did nothing. An earlier one may have acted.
            if delivery.may_have_acted:
                raise OutcomeUnknown(AgentUnreachable(NOT_REPEATED_TEXT)) from error
            raise
        except (AgentUnreachable, WorkspaceUnavailable) as error:
            self.resolver.forget()
            self._connected = None
            reason = await self._explain(error, delivery)
            if delivery.may_have_acted:
                raise OutcomeUnknown(reason) from error
            if reason is error:
                raise
            raise reason from error

    async def _deliver(self, delivery: _Delivery) -> bytes:
        """Wait for a runner that is not connected, then send the request under its key."""
        until = self._deps.clock.monotonic() + self._deps.runner_wait_s
        bound, is_waiting = 0, False
        while True:
            try:
                reply = await self._send(await self.resolver.resolve(), delivery)
                await delivery.wait_for("")
                return reply
            except _WorkspaceChanged:
                # The agent of another workspace does not know the key: it would act again.
                if delivery.may_have_acted:
                    raise AgentUnreachable(WORKSPACE_CHANGED_TEXT) from None
                bound += 1
                if bound == MAX_BIND_ATTEMPTS:
                    raise workspace_changing_error() from None
            except RunnerDisconnected as away:
                is_late = self._deps.clock.monotonic() >= until
                if is_late or (delivery.may_have_acted and not delivery.request.is_repeatable):
                    raise
                self._connected = None
                if is_waiting:  # Longer than for a moment.
                    await delivery.wait_for(away.message)
                is_waiting = True
                await self._deps.clock.sleep(RUNNER_POLL_INTERVAL_S, "runner_wait")

    async def _send(self, agent: AgentRow, delivery: _Delivery) -> bytes:
        delivery.workspace_id = agent.workspace_id
        try:
            return await self._attempt(
                agent, delivery, AGENT_REPLY_TIMEOUT_S, self._fail_if_replaced(agent, delivery)
            )
        except _AgentReplaced as replaced:
            latest, lost = replaced.latest, AgentUnreachable("The workspace has a new agent.")
        except AgentUnreachable as error:
            if isinstance(error, AgentTimeout) and not delivery.may_have_arrived:
                raise
            latest, lost = None, error
        if delivery.may_have_arrived and not delivery.request.is_repeatable:
            raise lost
        latest = latest or await self._latest_after(lost, agent)
        self._connected = None
        if latest.id != agent.id and not await self._rebind(latest, lost):
            raise _WorkspaceChanged
        return await self._attempt(latest, delivery, RESEND_TIMEOUT_S)

    async def _attempt(
        self,
        agent: AgentRow,
        delivery: _Delivery,
        timeout_s: float,
        *guards: Coroutine[object, None, NoReturn],
    ) -> bytes:
        """The reply, or the error of the first guard that fails. Guards never return."""
        exchange = self._exchange(agent, delivery)
        reply = asyncio.get_running_loop().create_task(exchange, name="agent request")
        try:
            await first_of(asyncio.wait({reply}), *guards, self._fail_after(timeout_s, delivery))
            return reply.result()
        except (_AgentReplaced, AgentUnreachable, WorkspaceUnavailable):
            # The reply may have come in the same moment as the guard's error.
            if not reply.done():
                raise
            return reply.result()
        finally:
            reply.cancel()
            await asyncio.wait({reply})

    async def _exchange(self, agent: AgentRow, delivery: _Delivery) -> bytes:
        sender = await self._connect(agent)
        if self.resolver.workspace_id != agent.workspace_id:
            raise _WorkspaceChanged
        arrived_before, delivery.may_have_arrived = delivery.may_have_arrived, True
        self._in_flight[agent.workspace_id] += 1
        try:
            body = await self.owner.send(sender, delivery.request)
            self._deps.on_use(agent.workspace_id)
            return body
        except (ConnectFailed, OwnerUnproven):
            delivery.may_have_arrived = arrived_before
            raise
        finally:
            self._used_at = self._deps.clock.monotonic()
            self._in_flight[agent.workspace_id] -= 1
            if not self._in_flight[agent.workspace_id]:
                del self._in_flight[agent.workspace_id]

    async def _connect(self, agent: AgentRow) -> AgentConnection:
        """One handshake for all calls of a turn, unless the agent is said to be gone."""
        async with self._connecting:
            known = self._connected
            if known is None or known.agent_id != agent.id or await self._is_gone(agent):
                self._connected = None
                known = _Connected(agent.id, await self._deps.connect(agent))
                self._connected = known
            self._used_at = self._deps.clock.monotonic()
            return known.sender

    async def _is_gone(self, agent: AgentRow) -> bool:
        """Whether the row says so. A new handshake follows, not a refusal: rows may be late."""
        if self._deps.clock.monotonic() - self._used_at < BINDING_RECHECK_AFTER_S:
            return False
        try:
            seen = await self._deps.bindings.agent(agent.id)
        except ChatdError:
            return False
        return seen is None or agent_status(seen.agent, seen.now) != "connected"

    async def _fail_if_replaced(self, agent: AgentRow, delivery: _Delivery) -> NoReturn:
        """Ends only with an error: the latest build has no agent, or another one."""
        after_s = self._deps.check_after_s + delivery.request.wait_s
        await self._deps.clock.sleep(after_s, "rebind_check")
        try:
            latest = (await self.resolver.latest(agent.workspace_id)).agent
        except WorkspaceUnavailable:
            raise
        except ChatdError:
            latest = agent  # nothing shows that it is the wrong agent: go on waiting for it
        if latest.id != agent.id:
            raise _AgentReplaced(latest)
        await asyncio.Event().wait()
        raise AssertionError

    async def _fail_after(self, timeout_s: float, delivery: _Delivery) -> NoReturn:
        await self._deps.clock.sleep(timeout_s + delivery.request.wait_s, "agent_timeout")
        raise AgentTimeout("The workspace agent did not answer in time.")

    async def _latest_after(self, lost: AgentUnreachable, agent: AgentRow) -> AgentRow:
        try:
            return (await self.resolver.latest(agent.workspace_id)).agent
        except WorkspaceUnavailable:
            raise
        except ChatdError as unreadable:
            raise _unchecked(lost) from unreadable

    async def _rebind(self, latest: AgentRow, lost: AgentUnreachable) -> bool:
        try:
            return await self.resolver.bind(latest)
        except ChatdError as unwritten:
            raise _unchecked(lost) from unwritten

    async def _explain(
        self, error: AgentUnreachable | WorkspaceUnavailable, delivery: _Delivery
    ) -> ChatdError:
        """The error for the model: what happened, and what to do."""
        if isinstance(error, RunnerDisconnected):
            return WorkspaceUnavailable(f"{error.message} {RUNNER_GONE_TEXT}", code=error.code)
        if not isinstance(error, AgentTimeout) or delivery.workspace_id is None:
            return error
        try:
            return timeout_error(await self.resolver.latest(delivery.workspace_id))
        except WorkspaceUnavailable as none:
            return none
        except ChatdError:
            return _slow_agent_error()


class _CallSender:
    """Satisfies `RequestSender` for one call of a chat."""

    def __init__(self, access: ChatAccess, wait_for: Callable[[str], Awaitable[None]]) -> None:
        self._access = access
        self._wait_for = wait_for

    async def send(self, request: AgentRequest) -> bytes:
        return await self._access.send(request, self._wait_for)


def timeout_error(seen: AgentObservation) -> ChatdError:
    """Advises a restart only if the agent's row also says that it is gone."""
    if remedy_after_timeout(seen.agent, seen.now) == "retry":
        return _slow_agent_error()
    if agent_status(seen.agent, seen.now) == "timeout":
        return WorkspaceUnavailable(f"The workspace agent has never connected. {RESTART_TEXT}")
    return WorkspaceUnavailable(f"The workspace agent has been gone for a while. {RESTART_TEXT}")


def _slow_agent_error() -> AgentUnreachable:
    return AgentUnreachable("The workspace agent did not answer in time.")


def _unchecked(lost: AgentUnreachable) -> AgentUnreachable:
    """Leaves out the database's own message, which may name hosts."""
    return AgentUnreachable(f"{lost.message} The workspace's latest build could not be looked up.")
