"""A session of an editor: one chat, told to the editor as it changes, and what the editor sends.

The chat begins with the first prompt and has the session's id as a label, so that a later process
finds it again. It goes on by itself: a lost connection only delays what the editor is told.
"""

import asyncio
import io
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote, urlsplit

from msgspec import UNSET

from chatd.cli.acp.peer import INTERNAL_ERROR, INVALID_PARAMS, Json, Peer, RpcError
from chatd.cli.acp.updates import Presenter, call_fields, plan_update
from chatd.cli.mcp_stdio import as_object
from chatd.client.connection import Connection, FollowedChat
from chatd.client.drafts import (
    CallAnswer,
    ChatChange,
    Draft,
    FileInput,
    FileReferenceInput,
    InputPart,
    TextInput,
)
from chatd.client.errors import ApiError
from chatd.client.server import ServerApi
from chatd.client.state import ShownChat
from chatd.domain.chat.call_waits import Question, QuestionReply, read_questions
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.errors import ChatdError, ToolError
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.tool_modes import ModeChoice

SESSION_LABEL: Final = "acp/session"
DIRECTORY_LABEL: Final = "acp/cwd"
MAX_LABEL_CHARS: Final = 256
MAX_HISTORY_PAGES: Final = 20
"""Of older messages that are told when a session is loaded."""
LOST_AFTER_S: Final = 180.0
"""A prompt whose server cannot be reached for so long fails; its chat goes on."""
LOOK_AGAIN_S: Final = 1.0
MAX_PLAN_BYTES: Final = 256 * 1024
OVER: Final = frozenset({"waiting", "error", "archived"})

_STOP_REASONS: Final[Mapping[str | None, str]] = {
    "length": "max_tokens",
    "content-filter": "refusal",
    "refusal": "refusal",
}


class Start(Protocol):
    """Runs work of the session until the process ends."""

    def __call__(self, work: Any) -> asyncio.Task[None]: ...


class Session:
    def __init__(
        self,
        session_id: str,
        cwd: str,
        *,
        api: ServerApi,
        connection: Connection,
        peer: Peer,
        start: Start,
        can_fill_forms: bool,
        model: str | None,
    ) -> None:
        self.id = session_id
        self.cwd = cwd
        self.mode: ModeChoice = "off"
        self.workspace_id: WorkspaceId | None = None
        self._api = api
        self._connection = connection
        self._peer = peer
        self._start = start
        self._can_fill_forms = can_fill_forms
        self._model = model
        self._chat_id: ChatId | None = None
        self._presenter = Presenter()
        self._latest: FollowedChat | None = None
        self._has_changed = asyncio.Event()
        self._has_told = asyncio.Event()
        self._told: ShownChat | None = None
        self._sending = asyncio.Lock()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._is_cancelled = False
        self._stop: Callable[[], None] = lambda: None
        self._pump: asyncio.Task[None] | None = None

    # Begin and end

    async def open_chat(self, chat_id: ChatId, *, replay: bool) -> None:
        """Tell the editor what the chat has, or only what it will have."""
        async with self._sending:
            self._follow(chat_id)
            await self._until_loaded()
            if replay:
                for _ in range(MAX_HISTORY_PAGES):
                    if not self._connection.chat(chat_id).shown.has_older:
                        break
                    await self._connection.load_older(chat_id)
            else:
                messages = self._connection.chat(chat_id).shown.messages
                self._presenter = Presenter(messages[-1].id if messages else 0)
            self._latest = self._connection.chat(chat_id)
            self._has_changed.set()
        while self._told is None:
            await self._wait()

    def close(self) -> None:
        self._stop()
        for task in (self._pump, *self._asking.values()):
            if task is not None:
                task.cancel()

    def _follow(self, chat_id: ChatId) -> None:
        self._chat_id = chat_id
        self._stop = self._connection.follow_chat(chat_id, self._on_chat)
        self._pump = self._start(self._tell())

    def _on_chat(self, chat: FollowedChat) -> None:
        self._latest = chat
        self._has_changed.set()

    async def _until_loaded(self) -> None:
        while not (self._latest and (self._latest.shown.is_loaded or self._latest.gone)):
            self._has_changed.clear()
            await self._wait_connected(self._has_changed)
        if self._latest.gone:
            raise RpcError(INTERNAL_ERROR, "The chat was deleted, or you may no longer read it.")

    async def _wait_connected(self, event: asyncio.Event) -> None:
        """Raises RpcError once the server was away for too long."""
        lost_s = 0.0
        while True:
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await event.wait()
                return
            except TimeoutError:
                is_open = self._connection.state == "open"
                lost_s = 0.0 if is_open else lost_s + LOOK_AGAIN_S
            if self._connection.state == "signed_out" or lost_s > LOST_AFTER_S:
                raise RpcError(
                    INTERNAL_ERROR,
                    f"chatd at {self._api.server.url} cannot be reached:"
                    f" {self._connection.problem or 'no answer'}. The chat goes on there; load the"
                    " session again to see it.",
                )

    # Tell the editor

    async def _tell(self) -> None:
        """Until the session is closed."""
        while True:
            await self._has_changed.wait()
            async with self._sending:
                self._has_changed.clear()
                latest = self._latest
                if latest is not None and latest.shown.is_loaded:
                    for update in self._presenter.advance(latest.shown):
                        await self._update(update)
                    await self._tell_plans()
                    self._ask(latest.shown.requested_calls)
                    self._told = latest.shown
                self._has_told.set()

    async def _update(self, update: Json) -> None:
        await self._peer.notify("session/update", {"sessionId": self.id, "update": update})

    async def _tell_plans(self) -> None:
        """The newest plan. One that cannot be read now is in the chat all the same."""
        plans, self._presenter.plans = self._presenter.plans, []
        if not plans:
            return
        try:
            plan = await self._api.load_content(plans[-1]).read(max_bytes=MAX_PLAN_BYTES)
        except ChatdError:
            return
        text = plan.decode(errors="replace")
        await self._update(
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        )
        if (update := plan_update(text)) is not None:
            await self._update(update)

    async def _wait(self) -> None:
        self._has_told.clear()
        await self._wait_connected(self._has_told)

    # Prompts

    async def prompt(self, blocks: Sequence[Json]) -> Json:
        content = tuple([await self._read_block(block) for block in blocks])
        if not content:
            raise RpcError(INVALID_PARAMS, "A prompt needs at least one block.")
        self._is_cancelled = False
        async with self._sending:
            version, queue_id = await self._send(content)
        while True:
            shown = self._told
            if self._latest is not None and self._latest.gone:
                raise RpcError(INTERNAL_ERROR, "The chat was deleted.")
            if shown is not None and shown.version >= version and shown.status in OVER:
                is_queued = any(item.id == queue_id for item in shown.queue)
                if not is_queued or shown.status != "waiting":
                    return self._result(shown)
            await self._wait()

    async def _send(self, content: tuple[InputPart, ...]) -> tuple[int, int | None]:
        """The version at which the chat has the message, and its place in the queue."""
        if self._chat_id is not None:
            sent = await self._api.send_message(self._chat_id, Draft(content=content))
            if sent.message_id is not None:
                self._presenter.skip_prompt(sent.message_id)
            else:
                self._presenter.skip_next_prompt()
            return sent.version, sent.queue_id
        labels = {SESSION_LABEL: self.id}
        if 0 < len(self.cwd) <= MAX_LABEL_CHARS:
            labels[DIRECTORY_LABEL] = self.cwd
        draft = Draft(
            content=content,
            labels=labels,
            workspace_id=self.workspace_id,
            mode=self.mode,
            model=self._model,
        )
        try:
            chat = await self._api.create_chat(draft, key=f"acp:{self.id}")
        except ApiError as error:
            if error.code != "idempotency_key_reused":
                raise
            # The reply to an earlier prompt was lost: its chat exists, and this one continues it.
            found = await self._api.list_chats(label=[f"{SESSION_LABEL}:{self.id}"], limit=1)
            if not found.items:
                raise
            self._follow(found.items[0].id)
            return await self._send(content)
        self._presenter.skip_next_prompt()
        self._follow(chat.id)
        return chat.version, None

    def _result(self, shown: ShownChat) -> Json:
        if shown.status == "error" and shown.error is not None and not self._is_cancelled:
            raise RpcError(INTERNAL_ERROR, shown.error.message)
        answers = [one for one in shown.messages if one.role == "assistant"]
        reason = answers[-1].finish_reason if answers else None
        stopped = self._is_cancelled or not answers or reason is None
        return {"stopReason": "cancelled" if stopped else _STOP_REASONS.get(reason, "end_turn")}

    async def cancel(self) -> None:
        self._is_cancelled = True
        async with self._sending:
            chat_id = self._chat_id
        if chat_id is None:
            return
        try:
            await self._api.interrupt_chat(chat_id)
        except ChatdError:
            return  # It has ended, or the server is away: the prompt says how.

    async def set_mode(self, mode: ModeChoice) -> None:
        self.mode = mode
        if self._chat_id is not None:
            await self._api.amend_chat(self._chat_id, ChatChange(mode=mode))

    async def _read_block(self, block: Json) -> InputPart:
        match block.get("type"):
            case "text" if str(block.get("text", "")).strip():
                return TextInput(str(block["text"]))
            case "image":
                return await self._upload(block)
            case "resource_link":
                uri = str(block.get("uri", ""))
                return TextInput(f"[{block.get('name') or uri}]({_path(uri)})")
            case "resource":
                found = as_object(block.get("resource"))
                text = str(found.get("text", ""))
                return FileReferenceInput(
                    file_name=_path(str(found.get("uri", ""))) or "resource",
                    start_line=1,
                    end_line=max(1, text.count("\n") + 1),
                    content=text,
                )
            case kind:
                raise RpcError(INVALID_PARAMS, f"Blocks of the type {kind!r} are not supported.")

    async def _upload(self, block: Json) -> FileInput:
        try:
            data = b64decode(str(block.get("data", "")), validate=True)
        except (Base64Error, ValueError):
            raise RpcError(INVALID_PARAMS, "The image is not valid base64.") from None
        kind = str(block.get("mimeType", "image/png"))
        stored = await self._api.upload_file("image", kind, io.BytesIO(data))
        return FileInput(stored.id)

    # What a person must decide

    def _ask(self, calls: Sequence[RequestedCall]) -> None:
        """Each call is asked for once, until somebody has answered it."""
        wanted = {call.tool_call_id: call for call in calls if call.kind != "client"}
        for call_id in [one for one in self._asking if one not in wanted]:
            self._asking.pop(call_id).cancel()
        for call_id, call in wanted.items():
            if call_id not in self._asking:
                self._asking[call_id] = self._start(self._answer(call))

    async def _answer(self, call: RequestedCall) -> None:
        try:
            is_question = call.kind == "question"
            answer = await (self._put_question(call) if is_question else self._permit(call))
            if answer is not None and self._chat_id is not None:
                await self._api.answer_calls(self._chat_id, [answer])
        except RpcError:
            return  # The editor cannot ask: the call waits for somebody on the page.
        except ApiError as error:
            if error.code != "call_not_waiting":
                raise

    async def _permit(self, call: RequestedCall) -> CallAnswer | None:
        options = [
            {"optionId": "approve", "name": "Allow", "kind": "allow_once"},
            {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
        ]
        if call.can_always:
            always = {"optionId": "always", "name": "Always allow", "kind": "allow_always"}
            options.insert(1, always)
        chosen = await self._choose(call, options, call_fields(call.tool_name, call.args))
        match chosen:
            case "approve" | "always":
                return CallAnswer(
                    tool_call_id=call.tool_call_id, decision="approve", always=chosen == "always"
                )
            case "deny":
                return CallAnswer(tool_call_id=call.tool_call_id, decision="deny")
            case _:
                return None

    async def _choose(self, call: RequestedCall, options: Sequence[Json], shown: Json) -> str:
        """The option; empty if the editor cancelled it, as it does when its user stops the turn."""
        call_id = self._presenter.call_id(call.tool_call_id)
        reply = await self._peer.request(
            "session/request_permission",
            {
                "sessionId": self.id,
                "toolCall": {"toolCallId": call_id, "status": "pending", **shown},
                "options": list(options),
            },
        )
        found = as_object(reply.get("outcome"))
        return str(found.get("optionId", "")) if found.get("outcome") == "selected" else ""

    async def _put_question(self, call: RequestedCall) -> CallAnswer | None:
        try:
            questions = () if call.args is UNSET else read_questions(call.args)
        except ToolError:
            questions = ()
        if not questions:
            return None
        replies: tuple[QuestionReply, ...] | None
        if self._can_fill_forms:
            replies = await self._fill_form(call, questions)
        else:
            replies = await self._choose_each(call, questions)
        if replies is None:
            return None
        if not replies:
            return CallAnswer(tool_call_id=call.tool_call_id, decision="deny")
        return CallAnswer(tool_call_id=call.tool_call_id, decision="answer", replies=replies)

    async def _fill_form(
        self, call: RequestedCall, questions: Sequence[Question]
    ) -> tuple[QuestionReply, ...] | None:
        """Empty: the user declines to answer."""
        fields: Json = {}
        for number, question in enumerate(questions, 1):
            choice: Json = {"type": "string", "enum": list(question.labels)}
            if question.multi_select:
                choice = {"type": "array", "items": {"type": "string", "enum": choice["enum"]}}
            fields[f"choice_{number}"] = {**choice, "title": question.question}
            fields[f"text_{number}"] = {"type": "string", "title": "In your own words"}
        reply = await self._peer.request(
            "elicitation/create",
            {
                "sessionId": self.id,
                "toolCallId": self._presenter.call_id(call.tool_call_id),
                "mode": "form",
                "message": questions[0].question,
                "requestedSchema": {"type": "object", "properties": fields},
            },
        )
        if reply.get("action") != "accept":
            return () if reply.get("action") == "decline" else None
        given = as_object(reply.get("content"))
        return tuple(
            _reply(given.get(f"choice_{number}"), given.get(f"text_{number}"))
            for number in range(1, len(questions) + 1)
        )

    async def _choose_each(
        self, call: RequestedCall, questions: Sequence[Question]
    ) -> tuple[QuestionReply, ...] | None:
        """For an editor without forms: the answers as options, one question after the other."""
        replies: list[QuestionReply] = []
        for question in questions:
            options = [
                {"optionId": f"choice:{label}", "name": label, "kind": "allow_once"}
                for label in question.labels
            ]
            options.append({"optionId": "decline", "name": "Decline", "kind": "reject_once"})
            shown: Json = {"title": question.question, "kind": "other"}
            chosen = await self._choose(call, options, shown)
            if not chosen.startswith("choice:"):
                return () if chosen == "decline" else None
            replies.append(QuestionReply(labels=(chosen.removeprefix("choice:"),)))
        return tuple(replies)


def _reply(choice: object, text: object) -> QuestionReply:
    chosen = cast("list[object]", choice) if isinstance(choice, list) else [choice]
    labels = tuple(one for one in chosen if isinstance(one, str) and one)
    return QuestionReply(labels=labels, text=text if isinstance(text, str) else "")


def _path(uri: str) -> str:
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else uri
