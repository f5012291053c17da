"""Acts upon the events of git hosts: starts and continues chats, and shows there what they do.

Every replica may act: a claim in the database keeps two of them from the same event or thread. All
that is made has a name that follows from the event, so what is repeated after a crash finds what
was made: the chat and its workspace by their ids, a message by its idempotency key, a comment by
its marker, a pull request by its branch.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Final, Protocol

from msgspec import Struct

from chatd.aio import InterruptibleSleep
from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import Command, InterruptChat
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.repositories import (
    BRANCH_PREFIX,
    COMMENT_INTERVAL_S,
    MAX_CLAIMS,
    MAX_REQUESTS_PER_HOUR,
    NO_OPEN_PULL,
    Access,
    EventOutcome,
    HostEvent,
    ThreadState,
    chat_of,
    checks_message,
    clone_url,
    comment_marker,
    comment_text,
    covers,
    create_command,
    is_final,
    is_stop,
    later_message,
    own_branch,
    progress_of,
    pull_body,
    pull_title,
    reason_to_refuse,
    retry_after_s,
    send_command,
    workspace_of,
)
from chatd.domain.errors import ChatdError, InvalidInput, NotFound, RequestError, Unavailable
from chatd.domain.ids import ChatId, RequestId
from chatd.domain.ports import Env
from chatd.domain.text import clip
from chatd.domain.workspace.entities import BuildId, Template, TemplateSpec
from chatd.domain.workspace.rules import workspace_ttl_s
from chatd.domain.workspace.templates import generated_name, resolve_parameters
from chatd.git_hosts.host_api import GitHostApi, HostCallFailed, NewPull, Thread
from chatd.git_hosts.host_apis import HostApis
from chatd.services.repositories import REF_PARAMETER, REPOSITORY_PARAMETER
from chatd.store.chat import chats
from chatd.store.chat.operation import Operation
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import Conn
from chatd.store.deployment import repositories, repository_work, webhooks
from chatd.store.deployment.repositories import OpenConnection
from chatd.store.deployment.repository_work import StoredEvent, StoredThread
from chatd.store.workspace import templates, workspaces
from chatd.store.workspace.workspaces import NewWorkspace

POLL_INTERVAL_S: Final = 5.0
IDLE_POLL_INTERVAL_S: Final = 60.0
CLAIM_S: Final = 180.0
"""Longer than all requests of one event or comment may take."""
HANDLE_TIMEOUT_S: Final = 150.0
"""For one event or comment, with all its requests to the host."""
MAX_AT_ONCE: Final = 8
ACCESS_FRESH_S: Final = 60.0
"""For so long a person's access to a repository is not asked again."""
MAX_KNOWN_ACCESS: Final = 2000
MAX_DETAIL_CHARS: Final = 300
SETTLED_PAUSE_S: Final = 2.0
"""Before a comment that says the result is edited again."""


class NewWorkspaces(Protocol):
    """Where workspaces are built. Satisfied by `services.workspaces.WorkspaceControl`."""

    @property
    def ttl_s(self) -> str | None: ...

    def new_host(self, template: Template, spec: TemplateSpec) -> str | None: ...

    def wake(self) -> None:
        """There is a build."""
        ...


class _Result(Struct, frozen=True, kw_only=True):
    outcome: EventOutcome = "done"
    detail: str = ""
    chat_id: ChatId | None = None


class _KnownAccess:
    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], tuple[float, Access]] = OrderedDict()

    def get(self, key: tuple[object, ...], now_s: float) -> Access | None:
        read_at_s, access = self._known.get(key, (0.0, None))
        return access if access is not None and now_s < read_at_s + ACCESS_FRESH_S else None

    def put(self, key: tuple[object, ...], now_s: float, access: Access) -> None:
        self._known[key] = (now_s, access)
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN_ACCESS:
            self._known.popitem(last=False)


class RepositoryWorker:
    """`run` works until it is cancelled; `wake` lets it look for work now. `site`: the address of
    chatd's own page, for links."""

    def __init__(
        self,
        conn: Conn,
        transactor: Transactor,
        env: Env,
        apis: HostApis,
        workspaces: NewWorkspaces | None,
        *,
        site: str | None,
    ) -> None:
        self._conn = conn
        self._transactor = transactor
        self._env = env
        self._apis = apis
        self._workspaces = workspaces
        self._site = site
        self._access = _KnownAccess()
        self._pause = InterruptibleSleep(env.clock)
        self._has_connections = True

    def wake(self) -> None:
        self._has_connections = True
        self._pause.wake()

    def on_turn_end(self) -> None:
        if self._has_connections:
            self._pause.wake()

    async def run(self) -> None:
        while True:
            if not await self.run_due():
                interval_s = POLL_INTERVAL_S if self._has_connections else IDLE_POLL_INTERVAL_S
                await self._pause.sleep(interval_s, "repositories")

    async def run_due(self) -> bool:
        """Whether there was anything to do."""
        try:
            self._has_connections = await repositories.has_any(self._conn)
            events = await repository_work.claim_events(
                self._conn, limit=MAX_AT_ONCE, claim_s=CLAIM_S
            )
            threads = await repository_work.claim_threads(
                self._conn, limit=MAX_AT_ONCE, claim_s=CLAIM_S
            )
        except ChatdError as error:
            self._env.emit("repositories_unread", error_kind=error.code)
            return False
        async with asyncio.TaskGroup() as group:
            for event in events:
                group.create_task(self._contain(self._handle(event)))
            for thread in threads:
                group.create_task(self._contain(self._show(thread)))
        return bool(events or threads)

    async def _contain(self, work: Coroutine[object, object, None]) -> None:
        """What fails here is due again when its claim ends."""
        try:
            async with asyncio.timeout(HANDLE_TIMEOUT_S):
                await work
        except (ChatdError, TimeoutError) as error:
            kind = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("repositories_unread", error_kind=kind)
        except Exception as error:  # noqa: BLE001 - one event must not end the process
            self._env.emit("repository_work_failed", error=error, error_kind="bug")

    # Events

    async def _handle(self, stored: StoredEvent) -> None:
        found = await repositories.open_connection(self._conn, stored.connection_id)
        if found is None:
            return  # deleted, and its events with it
        wait_s: float | None = None
        try:
            result = await self._act(found, stored)
            if found.connection.problem is not None and result.outcome == "done":
                await repositories.set_problem(self._conn, found.connection.id, None)
        except HostCallFailed as error:
            wait_s = await self._note_failure(found, error)
            if error.reason in ("missing", "rejected"):
                result = _Result(outcome="failed", detail=error.message)
            else:
                result = _Result(outcome="waiting", detail=error.message)
        except RequestError as error:
            result = _Result(outcome="failed", detail=error.message)
        except Unavailable:
            raise
        except ChatdError as error:
            result = _Result(outcome="waiting", detail=error.message)
        await self._finish(stored, result, wait_s)

    async def _finish(self, stored: StoredEvent, result: _Result, wait_s: float | None) -> None:
        detail = clip(result.detail, MAX_DETAIL_CHARS)
        if result.outcome == "waiting":
            after_s = retry_after_s(stored.attempts, self._env.jitter(), wait_s)
            if after_s is not None:
                await repository_work.retry_event(self._conn, stored, after_s, detail)
                return
            result = _Result(outcome="failed", detail=result.detail)
        self._env.emit(
            "repository_event",
            connection_id=stored.connection_id,
            kind=stored.event.kind,
            outcome=result.outcome,
            chat_id=result.chat_id,
            attempts=stored.attempts,
        )
        await repository_work.end_event(self._conn, stored, result.outcome, detail, result.chat_id)

    async def _note_failure(self, found: OpenConnection, error: HostCallFailed) -> float | None:
        """How long the host asks to wait."""
        one = found.connection
        self._env.emit("git_host_failed", connection_id=one.id, host=one.host, reason=error.reason)
        if error.reason == "refused":
            await repositories.set_problem(self._conn, one.id, error.message)
        if error.reason == "limited" and error.wait_s is not None:
            await repositories.rest(self._conn, one.id, error.wait_s)
        return error.wait_s

    async def _act(self, found: OpenConnection, stored: StoredEvent) -> _Result:
        if stored.attempts > MAX_CLAIMS:
            return _Result(outcome="failed", detail=f"{MAX_CLAIMS} attempts did not end")
        if not found.connection.enabled:
            return _Result(outcome="ignored", detail="the connection is disabled")
        if not covers(found.connection.repositories, stored.event.repository):
            return _Result(outcome="ignored", detail="the connection is not for this repository")
        if not found.is_active:
            return _Result(outcome="failed", detail="the user of the connection is suspended")
        event = stored.event
        api = self._apis.open(found.access, event.repository)
        if event.kind == "checks_failed":
            return await self._send_checks(found, api, event)
        access = await self._read_access(found, api, event)
        if (reason := reason_to_refuse(found.connection, event, access)) is not None:
            return _Result(outcome="ignored", detail=reason)
        thread = await repository_work.find_thread(self._conn, found.connection.id, event)
        if is_stop(event, found.connection.mention):
            return await self._stop(found, thread)
        if await repository_work.count_recent(self._conn, stored) >= MAX_REQUESTS_PER_HOUR:
            text = f"{MAX_REQUESTS_PER_HOUR} requests were accepted there within an hour"
            return _Result(outcome="ignored", detail=text)
        if thread is None:
            thread = await self._place(found, api, event)
        chat_id = await self._ask(found, thread, event)
        await repository_work.begin_reply(self._conn, thread, event, self._env.new_id())
        self._pause.wake()
        return _Result(chat_id=chat_id)

    async def _read_access(
        self, found: OpenConnection, api: GitHostApi, event: HostEvent
    ) -> Access:
        key = (found.connection.id, event.repository.lower(), event.sender.lower())
        now_s = self._env.clock.monotonic()
        known = self._access.get(key, now_s)
        if known is None:
            known = await api.access(event.repository, event.sender, event.sender_id)
            self._access.put(key, now_s, known)
        return known

    async def _place(
        self, found: OpenConnection, api: GitHostApi, event: HostEvent
    ) -> StoredThread:
        thread_id, branch = self._env.new_id(), ""
        if event.is_pull:
            branch = (await api.pull_head(event.repository, event.number)).branch
        return await repository_work.place_thread(
            self._conn,
            found.connection.id,
            event,
            thread_id=thread_id,
            key=self._env.new_id(),
            branch=branch or own_branch(event, thread_id),
        )

    async def _stop(self, found: OpenConnection, thread: StoredThread | None) -> _Result:
        if thread is None or thread.chat_id is None:
            return _Result(outcome="ignored", detail="there is no chat to stop")
        with contextlib.suppress(RequestError):
            await self._run(found, thread.chat_id, InterruptChat(hold_queue=True))
        return _Result(chat_id=thread.chat_id)

    async def _ask(self, found: OpenConnection, thread: StoredThread, event: HostEvent) -> ChatId:
        """Continue the chat of the thread, or start one."""
        new = chat_of(thread.id, event.key)
        if thread.chat_id is not None and thread.chat_id != new:
            text = later_message(found.connection, event)
            if await self._send(found, thread.chat_id, event, text):
                return thread.chat_id
        await self._start(found, thread, event, new)
        return new

    async def _send(
        self, found: OpenConnection, chat_id: ChatId, event: HostEvent, text: str
    ) -> bool:
        """False: the chat is archived or deleted."""
        key = IdempotencyKey(
            scope=chat_id,
            id=RequestId(chat_of(found.connection.id, event.key)),
            op="send",
            fingerprint=event.key,
        )
        try:
            await self._run(found, chat_id, send_command(found.connection, text), key)
        except NotFound:
            return False
        except RequestError as error:
            if error.code == "chat_archived":
                return False
            raise
        return True

    async def _start(
        self, found: OpenConnection, thread: StoredThread, event: HostEvent, chat_id: ChatId
    ) -> None:
        await repository_work.bind(self._conn, thread, chat_id, workspace_of(chat_id))
        if await chats.get(self._conn, WORKER, chat_id) is not None:
            return  # started before a crash
        await self._create_workspace(found, thread, event, chat_id)
        labels = {"repository": event.repository}
        command = create_command(found.connection, event, chat_id, thread.branch, labels)
        try:
            await self._run(found, chat_id, command)
        except RequestError as error:
            if error.code != "chat_exists":
                raise

    async def _create_workspace(
        self, found: OpenConnection, thread: StoredThread, event: HostEvent, chat_id: ChatId
    ) -> None:
        """Raises InvalidInput if the template cannot be used."""
        one, control = found.connection, self._workspaces
        if control is None:
            raise InvalidInput("workspaces", "are disabled on this server")
        template = await templates.get(self._conn, one.template_id)
        version = None
        if template is not None and not template.deleted and not template.deprecated:
            version = await templates.get_version(self._conn, template.active_version_id)
        if (
            template is None
            or version is None
            or not await templates.is_usable(
                self._conn, found.actor, one.user_id, template, "workspaces.write"
            )
        ):
            raise InvalidInput("template", "the user of the connection may not use it")
        given = {REPOSITORY_PARAMETER: clone_url(one, event.repository)}
        names = {parameter.name for parameter in version.parameters}
        if REF_PARAMETER in names and not thread.branch.startswith(BRANCH_PREFIX):
            given[REF_PARAMETER] = thread.branch
        resolved = resolve_parameters(version.parameters, given)
        if resolved.problems:
            problem = resolved.problems[0]
            raise InvalidInput("template", f"{problem.field}: {problem.detail}")
        workspace_id = workspace_of(chat_id)
        name = event.repository.rpartition("/")[2]
        new = NewWorkspace(
            id=workspace_id,
            build_id=BuildId(self._env.new_id()),
            owner_id=one.user_id,
            template_id=template.id,
            version_id=version.id,
            name=generated_name(f"{name}-{event.number}", workspace_id.bytes),
            host_id=control.new_host(template, version.spec),
            ttl_s=workspace_ttl_s(control.ttl_s, template),
            params=resolved.values,
            made_by=f"repository:{chat_id}",
        )
        await workspaces.create(self._conn, found.actor, new)
        control.wake()

    async def _send_checks(
        self, found: OpenConnection, api: GitHostApi, event: HostEvent
    ) -> _Result:
        """Only of the newest commit of an open pull request that a chat has opened."""
        one = found.connection
        thread = await repository_work.find_by_branch(self._conn, one.id, event)
        if thread is None or thread.chat_id is None:
            return _Result(outcome="ignored", detail="no chat has this branch")
        is_new = event.commit not in thread.rounds
        if is_new and len(thread.rounds) >= one.check_rounds:
            text = f"checks were sent back {len(thread.rounds)} times already"
            return _Result(outcome="ignored", detail=text)
        pull = await api.find_pull(event.repository, event.branch)
        if pull is None or pull.pull_request.state not in ("open", "draft"):
            return _Result(outcome="ignored", detail=NO_OPEN_PULL)
        if pull.commit != event.commit:
            return _Result(outcome="ignored", detail="the branch has a newer commit")
        most = one.check_rounds
        await repository_work.add_round(self._conn, thread, event.commit, most)
        number = len(thread.rounds) + (1 if is_new else 0)
        text = checks_message(event, number, most)
        if not await self._send(found, thread.chat_id, event, text):
            return _Result(outcome="ignored", detail="the chat is archived or deleted")
        await repository_work.begin_reply(self._conn, thread, event, self._env.new_id())
        self._pause.wake()
        return _Result(chat_id=thread.chat_id)

    async def _run(
        self,
        found: OpenConnection,
        chat_id: ChatId,
        command: Command,
        key: IdempotencyKey | None = None,
    ) -> None:
        operation = Operation(
            chat_id=chat_id,
            command=command,
            actor=found.actor,
            change_id=self._env.new_change_id(),
            request=key,
        )
        await self._transactor.run(operation)

    # Comments and pull requests

    async def _show(self, thread: StoredThread) -> None:
        """Let the comment and the pull request say what the chat says now."""
        found = await repositories.open_connection(self._conn, thread.connection_id)
        if found is None:
            return
        try:
            await self._show_state(found, thread)
        except HostCallFailed as error:
            wait_s = await self._note_failure(found, error)
            after_s = retry_after_s(thread.attempts, self._env.jitter(), wait_s)
            if error.reason in ("missing", "rejected"):
                after_s = None
            detail = clip(error.message, MAX_DETAIL_CHARS)
            await repository_work.postpone(self._conn, thread, after_s, detail)

    async def _show_state(self, found: OpenConnection, thread: StoredThread) -> None:
        """Raises HostCallFailed."""
        api = self._apis.open(found.access, thread.repository)
        chat = None
        if thread.chat_id is not None:
            chat = await chats.get(self._conn, WORKER, thread.chat_id)
        state = await self._state(thread, chat)
        if state.progress == "done" and not thread.pull_url:
            state = await self._open_pull(api, thread, state)
        await self._write_comment(api, thread, comment_text(state, thread.comment_key))
        final = is_final(state.progress)
        await repository_work.set_shown(
            self._conn,
            thread,
            chat,
            is_final=final,
            pause_s=SETTLED_PAUSE_S if final else COMMENT_INTERVAL_S,
        )
        if found.connection.problem is not None:
            await repositories.set_problem(self._conn, found.connection.id, None)

    async def _state(self, thread: StoredThread, chat: Chat | None) -> ThreadState:
        if chat is None:
            return ThreadState(progress="gone", pull_url=thread.pull_url)
        progress = progress_of(
            chat.status, archived=chat.archived, deleted=chat.deleted_at is not None
        )
        answer = None
        if progress == "done":
            answer = await webhooks.last_answer(self._conn, chat.id)
        began = chat.turn_message_id or chat.next_message_id
        return ThreadState(
            progress=progress,
            messages=max(chat.next_message_id - began - 1, 0),
            queued=chat.queue_len,
            answer=answer or "",
            error="" if chat.last_error is None else chat.last_error.message,
            pull_url=thread.pull_url,
            chat_url="" if self._site is None else f"{self._site}/c/{chat.id}",
        )

    async def _open_pull(
        self, api: GitHostApi, thread: StoredThread, state: ThreadState
    ) -> ThreadState:
        """With the pull request of the branch, once it is pushed. Raises HostCallFailed."""
        branch, repository = thread.branch, thread.repository
        if not branch.startswith(BRANCH_PREFIX) or not await api.has_branch(repository, branch):
            return state
        pull = await api.find_pull(repository, branch)
        if pull is None:
            new = NewPull(
                branch=branch,
                base=await api.default_branch(repository),
                title=pull_title(thread.title, thread.number),
                body=pull_body(
                    thread.number,
                    is_pull=thread.is_pull,
                    answer=state.answer,
                    chat_url=state.chat_url,
                ),
            )
            try:
                await api.open_pull(repository, new)
            except HostCallFailed as error:
                # There is one already, or the branch has no commits of its own.
                if error.reason != "rejected":
                    raise
                self._env.emit("pull_request_not_opened", reason=error.message)
            pull = await api.find_pull(repository, branch)
        if pull is None:
            return state
        opened = pull.pull_request
        await repository_work.set_pull(self._conn, thread, opened.number, opened.url)
        return ThreadState(
            progress=state.progress,
            messages=state.messages,
            queued=state.queued,
            answer=state.answer,
            pull_url=opened.url,
            chat_url=state.chat_url,
        )

    async def _write_comment(self, api: GitHostApi, thread: StoredThread, text: str) -> None:
        """Raises HostCallFailed."""
        place = Thread(
            repository=thread.repository, number=thread.reply_number, is_pull=thread.reply_is_pull
        )
        comment_id = thread.comment_id
        if comment_id is None and thread.comment_tried:
            comment_id = await api.find_comment(place, comment_marker(thread.comment_key))
            if comment_id is not None:
                await repository_work.set_comment(self._conn, thread, comment_id)
        if comment_id is not None:
            await api.edit_comment(place, comment_id, text)
        elif await repository_work.try_comment(self._conn, thread):
            made = await api.create_comment(place, text)
            await repository_work.set_comment(self._conn, thread, made)
