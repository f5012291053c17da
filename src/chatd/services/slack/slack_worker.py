"""Acts upon the events of Slack: starts and continues chats, answers calls, links persons.

Every replica may act: a claim in the database keeps two of them from the same event or thread. All
that is made has a name that follows from the event, so what is repeated after a crash finds what
was made: the chat and its workspace by their ids, a message by its idempotency key, a file by its
request key, a message in Slack by its metadata (`slack_threads`).
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Final, get_args
from uuid import UUID

from msgspec import Struct

from chatd.aio import InterruptibleSleep
from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.call_waits import (
    QuestionReply,
    call_fingerprint,
    waiting_calls,
)
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import AnswerCalls, CallAnswer, Command, InterruptChat
from chatd.domain.chat.messages import PendingCall
from chatd.domain.chat.parts import FilePart, Part, TextPart
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.repositories import EventOutcome, retry_after_s
from chatd.domain.deployment.slack import (
    APPROVE,
    DENY,
    MAX_CLAIMS,
    STOP,
    SlackEvent,
    SlackEventKind,
    SlackFile,
    asked_question,
    call_key,
    chat_of,
    chosen_label,
    codes_in,
    create_command,
    how_to_link,
    is_shown_whole,
    link_code_of,
    request_id_of,
    request_of,
    send_command,
    workspace_of,
)
from chatd.domain.deployment.slack_text import escape
from chatd.domain.errors import (
    CallNotWaiting,
    ChatdError,
    InvalidInput,
    NotFound,
    RequestError,
    RequestReused,
    TransitionNotAllowed,
    Unavailable,
)
from chatd.domain.files import FileLimits, NewFile, StoredFile, clean_file_name
from chatd.domain.ids import ChatId, FileId, ModelConfigId, RequestId
from chatd.domain.media_types import FileInspection
from chatd.domain.ports import Env
from chatd.domain.text import clip
from chatd.domain.workspace.entities import BuildId
from chatd.domain.workspace.rules import workspace_ttl_s
from chatd.domain.workspace.templates import generated_name, resolve_parameters
from chatd.sealed_secrets import KeyRing
from chatd.services.repository_worker import NewWorkspaces
from chatd.services.slack.slack_api import SlackApi, SlackCallFailed, SlackRequests
from chatd.services.slack.slack_socket import SlackSockets, open_api
from chatd.services.slack.slack_threads import ThreadLost, ThreadPass
from chatd.store import file_stores, files, projects
from chatd.store.chat import chats
from chatd.store.chat.operation import Operation
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import DuplicateRow
from chatd.store.database.pool import Pool
from chatd.store.deployment import slack, slack_work
from chatd.store.deployment.slack import OpenSlack, SlackPerson
from chatd.store.deployment.slack_work import SlackThread, StoredSlackEvent
from chatd.store.file_stores import DeadUpload, FileStores
from chatd.store.workspace import templates, workspaces
from chatd.store.workspace.workspaces import NewWorkspace

POLL_INTERVAL_S: Final = 2.0
IDLE_POLL_INTERVAL_S: Final = 60.0
CLAIM_S: Final = 30.0
"""Of an event or a thread; then another process goes on with what a dead one had begun."""
RENEWAL_S: Final = 8.0
HANDLE_TIMEOUT_S: Final = 270.0
"""For one event or thread, with its requests to Slack and its files."""
MAX_AT_ONCE: Final = 8
"""Of presses, of messages and of threads."""
MAX_DETAIL_CHARS: Final = 300
EMAIL_FRESH_S: Final = 60.0
"""For so long the email of a person is not asked again."""
MAX_KNOWN_EMAILS: Final = 2000

_NOT_YOURS: Final = (
    "This thread is a chat of somebody else, so only that person can use it. Mention me in a new"
    " message to start your own."
)
_EMPTY: Final = "Tell me what to do: mention me with your request in the same message."
_IN_PUBLIC: Final = (
    "That code no longer counts, because others may have read it here. Make a new one, and send it"
    " to me in a direct message."
)
_BAD_CODE: Final = "This code is wrong, was used already, or has expired. Make a new one in chatd."


class _Result(Struct, frozen=True, kw_only=True):
    outcome: EventOutcome = "done"
    detail: str = ""
    chat_id: ChatId | None = None


def _ignored(detail: str) -> _Result:
    return _Result(outcome="ignored", detail=detail)


class SlackParts(Struct, frozen=True, kw_only=True):
    """What Slack needs of a process. `workspaces` is None where there are none; `site` is the
    address of chatd's own page, for links."""

    ring: KeyRing
    requests: SlackRequests
    workspaces: NewWorkspaces | None
    stores: FileStores
    limits: FileLimits
    site: str | None


class SlackWorker:
    """`run` works until it is cancelled, and so does `sockets.run`, which receives; `wake` lets it
    look for work now."""

    def __init__(self, pool: Pool, transactor: Transactor, env: Env, parts: SlackParts) -> None:
        self._pool = pool
        self._transactor = transactor
        self._env = env
        self._ring = parts.ring
        self.requests = parts.requests
        self._workspaces = parts.workspaces
        self._files = _SlackFiles(pool, parts.stores, parts.limits, env)
        self._site = parts.site
        self._emails: OrderedDict[tuple[UUID, str], tuple[float, str]] = OrderedDict()
        self._pause = InterruptibleSleep(env.clock)
        self._busy: Counter[str] = Counter()
        self._events: set[tuple[int, int]] = set()
        self._threads: set[tuple[UUID, int]] = set()
        self._has_connections = True
        self.sockets = SlackSockets(pool, env, parts.ring, parts.requests, self.wake)

    def wake(self) -> None:
        self._has_connections = True
        self._pause.wake()

    def on_change(self) -> None:
        """A connection was added or changed on this replica."""
        self.wake()
        self.sockets.on_change()

    def on_turn_end(self) -> None:
        if self._has_connections:
            self._pause.wake()

    async def run(self) -> None:
        """What takes long keeps nothing else waiting while there is room."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew_claims())
            while True:
                if not await self._begin_due(group):
                    interval_s = POLL_INTERVAL_S if self._has_connections else IDLE_POLL_INTERVAL_S
                    await self._pause.sleep(interval_s, "slack")

    async def run_due(self) -> bool:
        """Whether there was anything to do; it is done."""
        async with asyncio.TaskGroup() as group:
            return await self._begin_due(group)

    async def _begin_due(self, group: asyncio.TaskGroup) -> bool:
        """Whether there was anything to do for which there is room. Messages with files take long,
        so presses have room of their own."""
        began = False
        try:
            self._has_connections = await slack.has_any(self._pool)
            if not self._has_connections:
                return False
            for kind in get_args(SlackEventKind):
                if room := self._room(kind):
                    events = await slack_work.claim_events(
                        self._pool, kind, limit=room, claim_s=CLAIM_S
                    )
                    for event in events:
                        self._begin(group, kind, self._handle(event))
                    began |= bool(events)
            if room := self._room("thread"):
                threads = await slack_work.claim_threads(self._pool, limit=room, claim_s=CLAIM_S)
                for thread in threads:
                    self._begin(group, "thread", self._show(thread))
                began |= bool(threads)
        except ChatdError as error:
            self._env.emit("slack_unread", error_kind=error.code)
        return began

    async def _renew_claims(self) -> None:
        """As long as this process lives and works on them."""
        while True:
            await self._env.clock.sleep(RENEWAL_S, "slack_claims")
            try:
                if events := list(self._events):
                    await slack_work.renew_events(self._pool, events, claim_s=CLAIM_S)
                if threads := list(self._threads):
                    await slack_work.renew_threads(self._pool, threads, claim_s=CLAIM_S)
            except ChatdError as error:
                self._env.emit("slack_unread", error_kind=error.code)

    def _room(self, kind: str) -> int:
        return MAX_AT_ONCE - self._busy[kind]

    def _begin(
        self, group: asyncio.TaskGroup, kind: str, work: Coroutine[object, object, None]
    ) -> None:
        self._busy[kind] += 1
        group.create_task(self._contain(work)).add_done_callback(lambda _task: self._end(kind))

    def _end(self, kind: str) -> None:
        if self._room(kind) == 0:  # more of it may be due
            self._pause.wake()
        self._busy[kind] -= 1

    async def _contain(self, work: Coroutine[object, object, None]) -> None:
        """What fails here is due again when its claim ends."""
        try:
            async with asyncio.timeout(HANDLE_TIMEOUT_S):
                await work
        except (ChatdError, TimeoutError) as error:
            kind = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("slack_unread", error_kind=kind)
        except Exception as error:  # noqa: BLE001 - one event must not end the process
            self._env.emit("slack_work_failed", error=error, error_kind="bug")

    async def _show(self, thread: SlackThread) -> None:
        self._threads.add(claim := (thread.id, thread.claim))
        try:
            await self._show_claimed(thread)
        finally:
            self._threads.discard(claim)

    async def _show_claimed(self, thread: SlackThread) -> None:
        found = await slack.open_connection(self._pool, thread.connection_id)
        if found is None:
            return
        if thread.attempts > MAX_CLAIMS:
            detail = f"{MAX_CLAIMS} attempts did not end"
            await slack_work.postpone(self._pool, thread, None, detail)
            return
        try:
            api = open_api(self.requests, self._ring, found)
            await ThreadPass(self._pool, self._env, api, thread, site=self._site).show()
        except ThreadLost:
            return
        except SlackCallFailed as error:
            wait_s = await self._note_failure(found, error)
            after_s = retry_after_s(thread.attempts, self._env.jitter(), wait_s)
            if error.reason in ("missing", "rejected"):
                after_s = None
            detail = clip(error.message, MAX_DETAIL_CHARS)
            await slack_work.postpone(self._pool, thread, after_s, detail)

    # Events

    async def _handle(self, stored: StoredSlackEvent) -> None:
        self._events.add(claim := (stored.id, stored.attempts))
        try:
            await self._handle_claimed(stored)
        finally:
            self._events.discard(claim)

    async def _handle_claimed(self, stored: StoredSlackEvent) -> None:
        found = await slack.open_connection(self._pool, stored.connection_id)
        if found is None:
            return  # deleted, and its events with it
        wait_s: float | None = None
        try:
            result = await self._act(found, stored)
        except SlackCallFailed as error:
            wait_s = await self._note_failure(found, error)
            is_over = error.reason in ("missing", "rejected")
            result = _Result(outcome="failed" if is_over else "waiting", detail=error.message)
        except RequestError as error:
            result = _Result(outcome="failed", detail=error.message)
            await self._tell_failure(found, stored.event, error.message)
        except Unavailable:
            raise
        except ChatdError as error:
            result = _Result(outcome="waiting", detail=error.message)
        await self._finish(stored, result, wait_s)

    async def _finish(
        self, stored: StoredSlackEvent, result: _Result, wait_s: float | None
    ) -> None:
        detail = clip(result.detail, MAX_DETAIL_CHARS)
        if result.outcome == "waiting":
            after_s = retry_after_s(stored.attempts, self._env.jitter(), wait_s)
            if after_s is not None:
                await slack_work.retry_event(self._pool, stored, after_s, detail)
                return
            result = _Result(outcome="failed", detail=result.detail)
        self._env.emit(
            "slack_event",
            connection_id=stored.connection_id,
            kind=stored.event.kind,
            outcome=result.outcome,
            chat_id=result.chat_id,
            attempts=stored.attempts,
        )
        await slack_work.end_event(self._pool, stored, result.outcome, detail, result.chat_id)

    async def _note_failure(self, found: OpenSlack, error: SlackCallFailed) -> float | None:
        """How long Slack asks to wait."""
        one = found.connection
        self._env.emit("slack_failed", connection_id=one.id, reason=error.reason)
        if error.reason == "refused":
            await slack.set_problem(self._pool, one.id, error.message)
        if error.reason == "limited" and error.wait_s is not None:
            await slack.rest(self._pool, one.id, error.wait_s)
        return error.wait_s

    async def _act(self, found: OpenSlack, stored: StoredSlackEvent) -> _Result:
        if stored.attempts > MAX_CLAIMS:
            return _Result(outcome="failed", detail=f"{MAX_CLAIMS} attempts did not end")
        if not found.connection.enabled:
            return _ignored("the connection is disabled")
        api = open_api(self.requests, self._ring, found)
        if stored.event.kind == "press":
            return await self._press(found, api, stored.event)
        return await self._message(found, api, stored.event, is_retry=stored.attempts > 1)

    async def _message(
        self, found: OpenSlack, api: SlackApi, event: SlackEvent, *, is_retry: bool
    ) -> _Result:
        one = found.connection
        request = request_of(event, one.bot_user_id)
        code = link_code_of(request)
        if event.is_direct and code is not None:
            return await self._link(found, api, event, code, is_retry=is_retry)
        if not event.is_direct and await self._revoke(event, code):
            await self._tell(api, event, _IN_PUBLIC)
            return _ignored("a code in a channel")
        thread = await slack_work.find_thread(self._pool, one.id, event)
        chat = await self._chat_of(thread)
        if not event.is_request and chat is None:
            return _ignored("no chat in this thread")
        person = await self._find_person(found, api, event.user)
        if person is None:
            if event.is_request:
                await self._tell(api, event, how_to_link(self._site))
            return _ignored("the person is not linked to a user")
        if chat is not None and chat.owner_id != person.actor.user_id:
            if event.is_request:
                await self._tell(api, event, _NOT_YOURS)
            return _ignored("the chat is another user's")
        if request.lower() == STOP and chat is not None:
            return await self._stop(person, chat)
        content = await self._content(api, person, request, event)
        if not content:
            await self._tell(api, event, _EMPTY)
            return _ignored("no text")
        if thread is None:
            thread = await slack_work.place_thread(
                self._pool, one.id, event, thread_id=self._env.new_id()
            )
        chat_id = await self._ask(found, person, thread, event, chat=chat, content=content)
        await slack_work.show(self._pool, thread, event)
        self._pause.wake()
        return _Result(chat_id=chat_id)

    async def _chat_of(self, thread: SlackThread | None) -> Chat | None:
        """The chat of the thread, if it can be continued."""
        if thread is None or thread.chat_id is None:
            return None
        chat = await chats.get(self._pool, WORKER, thread.chat_id)
        if chat is None or chat.archived or chat.deleted_at is not None:
            return None
        return chat

    async def _find_person(
        self, found: OpenSlack, api: SlackApi, slack_user: str
    ) -> SlackPerson | None:
        one = found.connection
        person = await slack.find_person(self._pool, one.id, slack_user)
        if person is not None or not one.match_email:
            return person
        key, now_s = (one.id, slack_user), self._env.clock.monotonic()
        read_at_s, email = self._emails.get(key, (0.0, None))
        if email is None or now_s >= read_at_s + EMAIL_FRESH_S:
            email = (await api.user(slack_user)).confirmed_email(one.team_id)
            self._emails[key] = (now_s, email)
            self._emails.move_to_end(key)
            if len(self._emails) > MAX_KNOWN_EMAILS:
                self._emails.popitem(last=False)
        return await slack.find_person_by_email(self._pool, email) if email else None

    async def _revoke(self, event: SlackEvent, code: str | None) -> bool:
        """Codes that others may have read count no more. Whether the message is about one."""
        is_code = False
        async with self._pool.transaction() as session:
            for one in codes_in(event.text):
                is_code |= await slack.revoke_code(session, one)
        return is_code or (event.is_request and code is not None)

    async def _link(
        self, found: OpenSlack, api: SlackApi, event: SlackEvent, code: str, *, is_retry: bool
    ) -> _Result:
        name = (await api.user(event.user)).shown_name
        async with self._pool.transaction() as session:
            person = await slack.use_code(
                session,
                code,
                connection_id=found.connection.id,
                link_id=self._env.new_id(),
                slack_user=event.user,
                slack_name=name,
            )
        if person is None and is_retry:  # an attempt before a crash has used the code
            person = await slack.find_person(self._pool, found.connection.id, event.user)
        if person is None:
            await self._tell(api, event, _BAD_CODE)
            return _ignored("a wrong code")
        text = f"You are *{escape(person.username)}* in chatd now. Tell me what to do."
        await self._tell(api, event, text)
        return _Result(detail="linked")

    async def _stop(self, person: SlackPerson, chat: Chat) -> _Result:
        with suppress(TransitionNotAllowed):
            await self._run(person, chat.id, InterruptChat(hold_queue=True))
        return _Result(chat_id=chat.id)

    async def _ask(
        self,
        found: OpenSlack,
        person: SlackPerson,
        thread: SlackThread,
        event: SlackEvent,
        *,
        chat: Chat | None,
        content: tuple[Part, ...],
    ) -> ChatId:
        """Continue the chat of the thread, or start one."""
        new = chat_of(thread.id, event.key)
        if chat is None or chat.id == new:
            await slack_work.begin_request(self._pool, thread, event, new, 0)
            await self._start(found, person, new, content)
            return new
        await slack_work.begin_request(self._pool, thread, event, chat.id, chat.next_message_id - 1)
        user_id = person.actor.user_id
        command: Command = send_command(content, user_id)
        asked = asked_question(chat)
        text = " ".join(part.text for part in content if isinstance(part, TextPart))
        if asked is not None and text:
            answer = CallAnswer(
                tool_call_id=asked[0].id,
                decision="answer",
                replies=(QuestionReply(text=text),),
                fingerprint=call_fingerprint(chat, asked[0]),
            )
            command = AnswerCalls(answered_by=user_id, answers=(answer,))
        request_id = RequestId(request_id_of(found.connection.id, event.key))
        op = "answer" if isinstance(command, AnswerCalls) else "send"
        key = IdempotencyKey(scope=chat.id, id=request_id, op=op, fingerprint=event.key)
        with suppress(RequestReused):  # an attempt before a crash sent it as the other one
            await self._run(person, chat.id, command, key)
        return chat.id

    async def _start(
        self, found: OpenSlack, person: SlackPerson, chat_id: ChatId, content: tuple[Part, ...]
    ) -> None:
        if await chats.get(self._pool, WORKER, chat_id) is not None:
            return  # started before a crash
        one = found.connection
        model: ModelConfigId | None = one.model_config_id
        if one.project_id is not None:
            project = await projects.require(self._pool, person.actor, one.project_id, "edit")
            model = model or project.model_config_id
        if one.template_id is not None:
            await self._create_workspace(found, person, chat_id)
        command = create_command(
            one,
            chat_id,
            person.actor.user_id,
            content,
            has_workspace=one.template_id is not None,
            model_config_id=model,
        )
        try:
            await self._run(person, chat_id, command)
        except RequestError as error:
            if error.code != "chat_exists":
                raise

    async def _create_workspace(
        self, found: OpenSlack, person: SlackPerson, chat_id: ChatId
    ) -> None:
        """Raises InvalidInput if the template cannot be used."""
        one, control, owner_id = found.connection, self._workspaces, person.actor.user_id
        if control is None or one.template_id is None:
            raise InvalidInput("workspaces", "are disabled on this server")
        template = await templates.get(self._pool, one.template_id)
        version = None
        if template is not None and not template.deleted and not template.deprecated:
            version = await templates.get_version(self._pool, template.active_version_id)
        if (
            template is None
            or version is None
            or not await templates.is_usable(
                self._pool, person.actor, owner_id, template, "workspaces.write"
            )
        ):
            raise InvalidInput("template", "you may not use the template of this connection")
        resolved = resolve_parameters(version.parameters, {})
        if resolved.problems:
            problem = resolved.problems[0]
            raise InvalidInput("template", f"{problem.field}: {problem.detail}")
        workspace_id = workspace_of(chat_id)
        new = NewWorkspace(
            id=workspace_id,
            build_id=BuildId(self._env.new_id()),
            owner_id=owner_id,
            template_id=template.id,
            version_id=version.id,
            name=generated_name("slack", workspace_id.bytes),
            host_id=control.new_host(template, version.spec),
            ttl_s=workspace_ttl_s(control.ttl_s, template),
            params=resolved.values,
            made_by=f"slack:{chat_id}",
        )
        await workspaces.create(self._pool, person.actor, new)
        control.wake()

    # Presses of buttons

    async def _press(self, found: OpenSlack, api: SlackApi, event: SlackEvent) -> _Result:
        try:
            value = UUID(event.value)
        except ValueError:
            return _ignored("not a button of chatd")
        person = await self._find_person(found, api, event.user)
        if person is None:
            await self._tell(api, event, how_to_link(self._site))
            return _ignored("the person is not linked to a user")
        if event.action == STOP:
            thread = await slack_work.get_thread(self._pool, value)
            post = None
        else:
            post = await slack_work.get_post(self._pool, value)
            thread = (
                None if post is None else await slack_work.get_thread(self._pool, post.thread_id)
            )
        chat = None if thread is None else await self._chat_of(thread)
        if (
            thread is None
            or chat is None
            or (thread.connection_id, thread.channel) != (found.connection.id, event.channel)
        ):
            return _ignored("there is no such chat")
        if chat.owner_id != person.actor.user_id and event.action != STOP:
            await self._tell(api, event, _NOT_YOURS)
            return _ignored("the chat is another user's")
        if post is None:
            return await self._press_stop(api, event, person, thread, chat)
        call = next(
            (
                one
                for one in waiting_calls(chat)
                if one.id == post.tool_call_id and call_key(chat, one) == post.key
            ),
            None,
        )
        is_first = False
        if call is not None:
            is_first = await self._answer(person, chat, call, post.id, event)
        await slack_work.hurry(self._pool, thread.id)
        self._pause.wake()
        return _Result(chat_id=chat.id) if is_first else _ignored("the call no longer waits")

    async def _press_stop(
        self,
        api: SlackApi,
        event: SlackEvent,
        person: SlackPerson,
        thread: SlackThread,
        chat: Chat,
    ) -> _Result:
        """The owner may, and an administrator."""
        try:
            result = await self._stop(person, chat)
        except NotFound:
            await self._tell(api, event, _NOT_YOURS)
            return _ignored("the chat is another user's")
        await slack_work.hurry(self._pool, thread.id)
        self._pause.wake()
        return result

    async def _answer(
        self, person: SlackPerson, chat: Chat, call: PendingCall, post_id: UUID, event: SlackEvent
    ) -> bool:
        """False: another answer was faster, or this button cannot answer."""
        fingerprint = call_fingerprint(chat, call)
        label = chosen_label(call, event.action)
        if label is not None:
            answer = CallAnswer(
                tool_call_id=call.id,
                decision="answer",
                replies=(QuestionReply(labels=(label,)),),
                fingerprint=fingerprint,
            )
        elif event.action == DENY or (event.action == APPROVE and is_shown_whole(call)):
            answer = CallAnswer(
                tool_call_id=call.id,
                decision="approve" if event.action == APPROVE else "deny",
                fingerprint=fingerprint,
            )
        else:
            return False
        key = IdempotencyKey(
            scope=chat.id, id=RequestId(post_id), op="answer", fingerprint=event.action
        )
        command = AnswerCalls(answered_by=person.actor.user_id, answers=(answer,))
        try:
            await self._run(person, chat.id, command, key)
        except (CallNotWaiting, TransitionNotAllowed, RequestReused):
            return False
        return True

    # What both need

    async def _content(
        self, api: SlackApi, person: SlackPerson, request: str, event: SlackEvent
    ) -> tuple[Part, ...]:
        parts: list[Part] = []
        notes: list[str] = []
        for file in event.files:
            try:
                stored = await self._files.store(api, person, file)
            except (RequestError, SlackCallFailed) as error:
                if isinstance(error, SlackCallFailed) and error.reason in (
                    "limited",
                    "unavailable",
                ):
                    raise
                notes.append(f"[The file {file.name or file.id} was not attached: {error.message}]")
                continue
            parts.append(
                FilePart(media_type=stored.media_type, file_id=str(stored.id), name=stored.name)
            )
        text = "\n".join([request, *notes]).strip()
        return (*((TextPart(text=text),) if text else ()), *parts)

    async def _run(
        self,
        person: SlackPerson,
        chat_id: ChatId,
        command: Command,
        key: IdempotencyKey | None = None,
    ) -> None:
        operation = Operation(
            chat_id=chat_id,
            command=command,
            actor=person.actor,
            change_id=self._env.new_change_id(),
            request=key,
        )
        await self._transactor.run(operation)

    async def _tell(self, api: SlackApi, event: SlackEvent, text: str) -> None:
        """Only to the person who asked."""
        is_reply = event.is_direct or event.kind == "press" or event.thread_ts != event.ts
        thread_ts = event.thread_ts if is_reply else None
        await api.tell(event.channel, thread_ts, event.user, text, is_direct=event.is_direct)

    async def _tell_failure(self, found: OpenSlack, event: SlackEvent, message: str) -> None:
        """Best effort: the list of events has it too."""
        with suppress(SlackCallFailed):
            api = open_api(self.requests, self._ring, found)
            await self._tell(api, event, f"That did not work: {escape(clip(message, 500))}")


class _SlackFiles:
    """Stores files of Slack as files of a user, each once."""

    def __init__(self, pool: Pool, stores: FileStores, limits: FileLimits, env: Env) -> None:
        self._pool = pool
        self._stores = stores
        self._limits = limits
        self._env = env

    async def store(self, api: SlackApi, person: SlackPerson, file: SlackFile) -> StoredFile:
        """Raises SlackCallFailed, and what the file or the quota gives reason for."""
        actor = person.actor
        key = f"slack:{actor.user_id}:{file.id}"
        known = await files.get_by_request(self._pool, key, actor)
        if known is not None:
            return known
        if file.size > self._limits.max_bytes:
            raise InvalidInput("file", f"is larger than {self._limits.max_bytes} bytes")
        await file_stores.check_quota(self._pool, actor, file.size, self._limits)
        store, file_id = self._stores.current, FileId(self._env.new_id())
        await file_stores.begin_upload(
            self._pool, file_id, actor, store=store.name, chunk_bytes=store.chunk_bytes
        )
        name = clean_file_name(file.name)
        inspection = FileInspection(file.mimetype or None, name, takes_markup=True)
        digest, number = sha256(), 0
        try:
            async with aclosing(self._chunks(api, file, store.chunk_bytes)) as chunks:
                async for chunk in chunks:
                    inspection.feed(chunk)
                    digest.update(chunk)
                    await store.write(file_id, number, chunk)
                    number += 1
            new = NewFile(
                name=name,
                media_type=inspection.finish(),
                size_bytes=inspection.size,
                sha256=digest.hexdigest(),
                request_key=key,
            )
            return await file_stores.finish_upload(self._pool, file_id, new, self._limits)
        except Exception as error:
            await self._remove(file_id, store.name, store.chunk_bytes)
            if isinstance(error, DuplicateRow):
                known = await files.get_by_request(self._pool, key, actor)
                if known is not None:
                    return known
            raise

    async def _remove(self, file_id: FileId, store: str, chunk_bytes: int) -> None:
        """Best effort: maintenance repeats it."""
        with suppress(Unavailable):
            await file_stores.abandon_upload(self._pool, file_id)
            left = DeadUpload(id=file_id, store=store, chunk_bytes=chunk_bytes)
            await self._stores.remove_bytes(self._pool, left)

    async def _chunks(
        self, api: SlackApi, file: SlackFile, chunk_bytes: int
    ) -> AsyncGenerator[bytes]:
        buffer, total = bytearray(), 0
        async with api.download(file) as content:
            async for piece in content.iter_chunked(64 * 1024):
                total += len(piece)
                if total > self._limits.max_bytes:
                    raise InvalidInput("file", f"is larger than {self._limits.max_bytes} bytes")
                buffer += piece
                while len(buffer) >= chunk_bytes:
                    yield bytes(buffer[:chunk_bytes])
                    del buffer[:chunk_bytes]
        if buffer:
            yield bytes(buffer)
