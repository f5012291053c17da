"""Which chat answers a request, and how it begins: a new chat, or the next turn of one.

A request continues a chat if it names a response or a conversation, if it has the outputs of calls
that the chat waits for, or if its messages are exactly those of the chat and one more. In all other
cases it begins a new chat with the messages that it has. Chats of this API are not listed, and have
no title of a model.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct, UnsetType
from msgspec.structs import replace

from chatd.api import validation
from chatd.api.deps import ApiDeps
from chatd.api.mcp.toolset import Requester, RouteCall, RouteCalls
from chatd.api.openai.given import (
    Asked,
    GivenFile,
    GivenMessage,
    History,
    hash_text,
    plain_call_id,
    read_history,
    said_by_client,
    seed_drafts,
)
from chatd.api.openai.protocol import (
    DEFAULT_MODEL,
    Refused,
    TurnId,
    not_found,
    read_call_id,
)
from chatd.api.openai.turns import cut_turn
from chatd.api.operations import create_chat, run_operation
from chatd.api.request import KEY_HEADER, ApiCaller, ApiRequest, Message, header
from chatd.api.routes.administration.models import check_effort
from chatd.api.routes.chat.messages import build_content
from chatd.api.routes.uploads import FileUpload
from chatd.api.schemas.chats import ClientTool
from chatd.api.schemas.messages import InputFile, InputPart, InputText
from chatd.domain.access.permissions import Permission, require_permission
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import (
    AnswerCalls,
    CallAnswer,
    ClientResult,
    CreateChat,
    SendMessage,
    SubmitToolResults,
)
from chatd.domain.chat.messages import Draft, PublicMessage, UserInput, public_message
from chatd.domain.chat.parts import Part, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.public_chat import UNLISTED, PublicChat
from chatd.domain.errors import ChatBusy, Conflict, NotFound, RequestReused
from chatd.domain.ids import ChatId, FileId, MessageId, ModelConfigId, RequestId, ToolCallId
from chatd.domain.prompt.titles import fallback_title, title_input
from chatd.store.chat import chats, message_pages
from chatd.store.chat.chats import ChatListFilter
from chatd.store.chat.message_pages import MessageRange
from chatd.store.chat.operation import AppliedChange, OperationOutcome, find_replay

MAX_CANDIDATES: Final = 3
"""Of chats that begin with the same message, as many are compared with a request."""
MAX_COMPARED_MESSAGES: Final = 2_000
"""A longer chat is continued only by name."""
PAGE_SIZE: Final = 200
THREAD_LABEL: Final = "openai/thread"
INSTRUCTIONS_LABEL: Final = "openai/instructions"
TOOLS_LABEL: Final = "openai/tools"
TITLE_PREFIX: Final = "API: "
"""A title that is not the default one, so that no model is asked for a better one."""
RETRY_HEADER: Final = b"x-stainless-retry-count"
"""The packages of OpenAI tell so that they send a request again."""

_KEYS: Final = UUID("f4b9c0a1-2c38-5d1a-8c36-6a4a4a0de7b5")
_OPERATION: Final = "openai"
_CLIENT_TOOLS: Final = msgspec.json.Decoder(tuple[ClientTool, ...])


class BegunTurn(Struct, frozen=True, kw_only=True):
    """A turn that was asked for. `is_new`: with its chat, by this request."""

    id: TurnId
    chat: Chat
    is_new: bool = False


def list_client_tools(chat: Chat) -> tuple[ClientTool, ...]:
    return (
        () if isinstance(chat.client_tools, UnsetType) else _CLIENT_TOOLS.decode(chat.client_tools)
    )


def client_tool_names(chat: Chat) -> frozenset[str]:
    return frozenset(tool.name for tool in list_client_tools(chat))


class Conversations:
    def __init__(self, deps: ApiDeps, routes: RouteCalls) -> None:
        self._deps = deps
        self._routes = routes

    async def begin(self, by: Requester, asked: Asked) -> BegunTurn:
        """Raises Refused, and what the commands to the chat raise."""
        key = header(by.scope, KEY_HEADER.encode())
        if key is not None:
            key = validation.check_idempotency_key(key)
        begin = _Begin(self._deps, self._routes, by, asked, key)
        if (earlier := await begin.find_earlier()) is not None:
            return earlier
        if asked.approvals:
            return await begin.answer()
        if asked.previous is not None:
            return await begin.follow(asked.previous)
        if asked.conversation is not None:
            return await begin.continue_chat(asked.conversation)
        return await begin.find_or_create()

    async def require(self, caller: ApiCaller, turn: TurnId) -> BegunTurn:
        """The turn with this id. Raises Refused (404)."""
        which = MessageRange(after=MessageId(turn.anchor - 1), limit=1)
        page = None
        if turn.anchor > 0:
            page = await self._deps.read(message_pages.load_page, caller.actor, turn.chat_id, which)
        if page is None or not page.messages or page.messages[0].id != turn.anchor:
            raise not_found("There is no such response.")
        return BegunTurn(id=turn, chat=page.chat)


class _Begin:
    """One request. Its operations have the client's key, or one that follows from the place in the
    chat: the same place is continued once."""

    def __init__(
        self, deps: ApiDeps, routes: RouteCalls, by: Requester, asked: Asked, key: str | None
    ) -> None:
        self._deps = deps
        self._routes = routes
        self._by = by
        self._caller = by.caller
        self._asked = asked
        self._key = key
        self._is_retry = (header(by.scope, RETRY_HEADER) or "0") != "0"

    def _request_key(self, otherwise: str | None, *, is_own: bool = False) -> IdempotencyKey | None:
        """`is_own`: not the client's, which another operation of this request has."""
        name = otherwise if self._key is None or is_own else f"key:{self._key}"
        if name is None:
            return None
        user = self._caller.user_id
        return IdempotencyKey(
            scope=user,
            id=RequestId(uuid5(_KEYS, f"{user}:{name}")),
            op=_OPERATION,
            fingerprint=sha256(msgspec.json.encode(self._asked)).hexdigest(),
        )

    async def find_earlier(self) -> BegunTurn | None:
        """What the first request with this key began."""
        if self._key is None:
            return None
        deps, key = self._deps, self._request_key(None)
        found = await deps.retry(lambda: find_replay(deps.pool, self._caller.actor, key))
        return None if found is None else await self._begun(found)

    async def _begun(self, outcome: OperationOutcome) -> BegunTurn:
        chat = outcome.chat
        record = outcome.request if isinstance(outcome, AppliedChange) else None
        if record is not None and record.message_id is not None:
            return BegunTurn(id=TurnId(chat.id, record.message_id), chat=chat)
        if record is None and isinstance(outcome, AppliedChange) and outcome.messages:
            anchor = outcome.messages[-1].id
            return BegunTurn(id=TurnId(chat.id, anchor), chat=chat)
        return await self._find_output(chat)

    async def _find_output(self, chat: Chat) -> BegunTurn:
        """The turn that these outputs or approvals began, which were stored earlier."""
        outputs = {plain_call_id(one.call_id) for one in self._asked.outputs}
        approved = {one.call.call_id for one in self._asked.approvals}
        page = await self._load(chat.id, MessageRange(limit=PAGE_SIZE))
        for message in page[1]:
            parts = [part for part in message.content if isinstance(part, ToolResultPart)]
            if any(part.tool_call_id in outputs for part in parts) or (
                not outputs and _calls(message) & approved
            ):
                return BegunTurn(id=TurnId(chat.id, message.id), chat=page[0])
        raise not_found("The response that this request began is no longer in its chat.")

    # Continue a chat that the request names

    async def answer(self) -> BegunTurn:
        """Approve or deny calls; then the outputs of functions, if the request has some too."""
        approvals = self._asked.approvals
        chat_id = approvals[0].call.chat_id
        if any(one.call.chat_id != chat_id for one in approvals) or any(
            one.role != "tool" for one in self._asked.messages
        ):
            raise Refused("Approvals of one chat come alone, or with outputs of its functions.")
        self._require("chats.write")
        answers = tuple(
            CallAnswer(
                tool_call_id=one.call.call_id,
                decision="approve" if one.approve else "deny",
                reason=one.reason[:1000],
            )
            for one in approvals
        )
        chat, messages = await self._load(chat_id, MessageRange(limit=PAGE_SIZE))
        wanted = {one.call.call_id for one in approvals}
        anchor = next((one.id for one in messages if _calls(one) & wanted), None)
        if anchor is None:
            raise not_found("There is no such approval request.")
        command = AnswerCalls(answered_by=self._caller.user_id, answers=answers)
        name = f"answer:{chat_id}:{sorted(wanted)}"
        key = self._request_key(name, is_own=bool(self._asked.messages))
        await run_operation(self._deps, self._caller, chat_id, command, key)
        if self._asked.messages:
            return await self._submit(chat_id)
        return BegunTurn(id=TurnId(chat_id, anchor), chat=chat)

    async def follow(self, previous: TurnId) -> BegunTurn:
        """After that response: in its chat if it is the last one, else in a copy of the chat."""
        chat, messages = await self._load_from(previous)
        tools = client_tool_names(chat)
        turn, is_past = cut_turn(messages, previous.anchor, tools)
        if self._is_output_alone:
            return await self._submit(chat.id)
        self._check_setup(chat)
        if not is_past:
            self._check_free(chat)
            last = turn[-1].id if turn else previous.anchor
            message = self._merged(await self._with_files())
            return await self._send(chat.id, message, f"after:{chat.id}:{last}")
        if self._is_retry and (again := await self._find_again(chat, messages, turn)) is not None:
            return again
        message = self._merged(await self._with_files())
        last = turn[-1].id if turn else previous.anchor
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/fork",
            path={"chat_id": str(chat.id)},
            body={"message_id": last},
            key=None if self._key is None else f"openai:{self._key}",
        )
        copy = await self._routes.fetch(self._by, wanted, PublicChat)
        return await self._send(copy.id, message, None)

    async def _find_again(
        self, chat: Chat, messages: Sequence[PublicMessage], turn: Sequence[PublicMessage]
    ) -> BegunTurn | None:
        """The turn that the first try of this request began."""
        after = turn[-1].id if turn else messages[0].id
        rest = [one for one in messages if one.id > after]
        history = read_history(chat.id, rest, client_tool_names(chat))
        given = said_by_client(await self._with_files())
        if history.said[: len(given)] == given:
            return BegunTurn(id=TurnId(chat.id, history.ids[len(given) - 1]), chat=chat)
        return None

    async def continue_chat(self, chat_id: ChatId) -> BegunTurn:
        chat, _ = await self._load(chat_id, MessageRange(limit=1))
        if self._is_output_alone:
            return await self._submit(chat_id)
        self._check_setup(chat)
        self._check_free(chat)
        return await self._send(chat_id, self._merged(await self._with_files()), None)

    @property
    def _is_output_alone(self) -> bool:
        messages = self._asked.messages
        return bool(messages) and len(self._asked.outputs) == len(messages)

    def _check_setup(self, chat: Chat) -> None:
        """The model's instructions and the client's tools stay those with which a chat began."""
        asked = self._asked
        was = chat.labels.get(INSTRUCTIONS_LABEL, hash_text(""))
        if asked.instructions is not None and hash_text(asked.instructions) != was:
            raise Refused(
                "The instructions differ from those with which the chat began. Leave them out, or"
                " send the conversation as input of a new response.",
                code="instructions_changed",
                param="instructions",
            )
        had = chat.labels.get(TOOLS_LABEL, hash_text(()))
        if asked.tools is not None and hash_text(asked.tools) != had:
            raise Refused(
                "The tools differ from those with which the chat began. Leave them out, or send"
                " the conversation as input of a new response.",
                code="tools_changed",
                param="tools",
            )

    def _check_free(self, chat: Chat) -> None:
        waiting = [call for call in chat.pending_calls if call.client]
        if chat.public_status == "requires_action" and waiting:
            raise Refused(
                f"No output was given for the function call {waiting[0].name}.",
                code="missing_output",
                param="input",
            )

    # Continue a chat that has the same messages, or begin a new one

    async def find_or_create(self) -> BegunTurn:
        asked = self._asked
        if asked.outputs:
            call = read_call_id(asked.outputs[0].call_id)
            if call is not None:
                try:
                    return await self._submit(call.chat_id)
                except (Conflict, NotFound):
                    pass  # The chat no longer waits for it: begin anew with the same history.
            self._asked = replace(asked, messages=await self._with_files())
            return await self._create(None)
        self._asked = replace(asked, messages=await self._with_files())
        thread = self._thread()
        found = await self._find_extended(thread)
        return found or await self._create(thread)

    def _thread(self) -> str:
        """Chats that begin alike have the same."""
        asked = self._asked
        first = next(one for one in asked.messages if one.role == "user")
        said = said_by_client([first])
        return hash_text(asked.instructions or "", asked.tools or (), said)

    async def _find_extended(self, thread: str) -> BegunTurn | None:
        """The turn in a chat that has exactly the messages before the last one."""
        given = said_by_client(self._asked.messages)
        if len(given) == 1 and not self._is_retry:
            return None
        which = ChatListFilter(labels={THREAD_LABEL: thread}, limit=MAX_CANDIDATES)
        found = await self._deps.read(chats.list_roots, self._caller.actor, which)
        for chat in found:
            history = await self._load_history(chat)
            if history is None:
                continue
            if self._is_retry and history.said[: len(given)] == given:
                return BegunTurn(id=TurnId(chat.id, history.ids[len(given) - 1]), chat=chat)
            if history.said == given[:-1]:
                try:
                    place = f"after:{chat.id}:{history.ids[-1]}"
                    return await self._send(chat.id, self._asked.messages[-1], place)
                except (ChatBusy, RequestReused):
                    return None  # Another request has continued it.
        return None

    async def _load_history(self, chat: Chat) -> History | None:
        messages: list[PublicMessage] = []
        after = MessageId(0)
        while len(messages) < MAX_COMPARED_MESSAGES:
            which = MessageRange(after=after, limit=PAGE_SIZE)
            page = await self._deps.read(
                message_pages.load_page, self._caller.actor, chat.id, which
            )
            if page is None or (page.has_more and not page.messages):
                return None
            seen = (public_message(chat.id, row) for row in page.messages)
            messages += [one for one in seen if one is not None]
            if not page.has_more:
                return read_history(chat.id, messages, client_tool_names(chat))
            after = page.messages[-1].id
        return None

    async def _create(self, thread: str | None) -> BegunTurn:
        deps, caller, asked = self._deps, self._caller, self._asked
        self._require("chats.create")
        deps.accounts.limits.take(caller, "chats")
        model = await self._model() or await self._default_model()
        await check_effort(deps.models, model, asked.effort)
        contents = {
            index: await self._content(one)
            for index, one in enumerate(asked.messages)
            if one.role == "user"
        }
        messages, prompt = asked.messages, None
        if messages[-1].role == "user":
            prompt = UserInput(
                content=contents[len(messages) - 1],
                created_by=caller.user_id,
                model_config_id=model,
                reasoning_effort=asked.effort,
            )
            messages = messages[:-1]
        system = validation.clean_system_prompt(asked.instructions)
        before = seed_drafts(messages, contents, caller.user_id)
        if system is not None:
            told = Draft(role="system", content=(TextPart(text=system),), visibility="model")
            before = (told, *before)
        labels = {
            **UNLISTED,
            INSTRUCTIONS_LABEL: hash_text(asked.instructions or ""),
            TOOLS_LABEL: hash_text(asked.tools or ()),
        }
        if thread is not None:
            labels[THREAD_LABEL] = thread
        first = next((contents[index] for index in sorted(contents)), ())
        command = CreateChat(
            id=ChatId(deps.env.new_id()),
            owner_id=caller.user_id,
            title=TITLE_PREFIX + fallback_title(title_input(first, {})),
            before=before,
            prompt=prompt,
            model_config_id=model,
            reasoning_effort=asked.effort,
            labels=labels,
            client_tools=validation.check_client_tools(asked.tools or ()),
        )
        outcome = await create_chat(deps, caller, command, self._request_key(None))
        is_replay = isinstance(outcome, AppliedChange) and outcome.request is not None
        return replace(await self._begun(outcome), is_new=not is_replay)

    # Operations

    def _merged(self, messages: Sequence[GivenMessage]) -> GivenMessage:
        """The input of a chat that is named: messages of a user, which become one."""
        if not messages or any(one.role != "user" for one in messages):
            raise Refused("Send messages of a user, or only outputs of functions.", param="input")
        files = tuple(file for one in messages for file in one.files)
        return replace(
            messages[-1], text="\n\n".join(one.text for one in messages if one.text), files=files
        )

    async def _send(self, chat_id: ChatId, message: GivenMessage, place: str | None) -> BegunTurn:
        self._require("chats.write")
        model = await self._model()
        if self._asked.effort is not None:
            await check_effort(self._deps.models, model, self._asked.effort)
        prompt = UserInput(
            content=await self._content(message),
            created_by=self._caller.user_id,
            model_config_id=model,
            reasoning_effort=self._asked.effort,
        )
        command = SendMessage(prompt=prompt, when_busy="reject")
        outcome = await run_operation(
            self._deps, self._caller, chat_id, command, self._request_key(place)
        )
        return await self._begun(outcome)

    async def _submit(self, chat_id: ChatId) -> BegunTurn:
        self._require("chats.write")
        results: list[ClientResult] = []
        for one in self._asked.outputs:
            call = read_call_id(one.call_id)
            if call is None or call.chat_id != chat_id:
                raise not_found(f"There is no function call {one.call_id!r} in this chat.")
            output = msgspec.json.encode(one.text).decode()
            results.append(ClientResult(tool_call_id=call.call_id, output=output))
        ids = sorted(result.tool_call_id for result in results)
        command = SubmitToolResults(results=tuple(results))
        key = self._request_key(f"outputs:{chat_id}:{ids}")
        outcome = await run_operation(self._deps, self._caller, chat_id, command, key)
        return await self._begun(outcome)

    def _require(self, permission: Permission) -> None:
        require_permission(self._caller.actor, permission)

    async def _model(self) -> ModelConfigId | None:
        """None: the chat's own, or the default."""
        name = self._asked.model
        if name is None:
            return None
        found = await self._deps.models.by_name(name)
        if found is None and name == DEFAULT_MODEL:
            return None
        if found is None or not found.enabled:
            raise not_found(
                f"The model {name!r} does not exist or you do not have access to it.",
                code="model_not_found",
                param="model",
            )
        return found.config.id

    async def _default_model(self) -> ModelConfigId:
        found = await self._deps.models.default()
        if found is None:
            raise not_found(
                "No default model is configured; name a model.",
                code="model_not_found",
                param="model",
            )
        return found.config.id

    async def _content(self, message: GivenMessage) -> tuple[Part, ...]:
        parts: list[InputPart] = [InputText(text=message.text)] if message.text.strip() else []
        parts += [
            InputFile(file_id=file.file_id) for file in message.files if file.file_id is not None
        ]
        return await build_content(self._deps, self._caller, parts)

    async def _with_files(self) -> tuple[GivenMessage, ...]:
        """The messages with all their files uploaded. The same bytes under the same name are stored
        once."""
        found: list[GivenMessage] = []
        for one in self._asked.messages:
            files = [await self._uploaded(file) for file in one.files]
            found.append(replace(one, files=tuple(files)) if files else one)
        return tuple(found)

    async def _uploaded(self, file: GivenFile) -> GivenFile:
        if file.file_id is not None:
            return file
        self._require("files.write")
        key = f"openai:{sha256(file.data).hexdigest()}"
        kind = file.media_type.encode("latin-1", errors="replace")
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(file.data)).encode()),
        ]
        if file.name is not None:
            quoted = "".join(one for one in file.name if one.isalnum() or one in "._- ")[:200]
            headers.append((b"content-disposition", f'attachment; filename="{quoted}"'.encode()))
            key += f":{sha256(quoted.encode()).hexdigest()[:32]}"
        headers.append((KEY_HEADER.encode(), key.encode()))

        async def receive() -> Message:
            return {"type": "http.request", "body": file.data, "more_body": False}

        scope = {**self._by.scope, "headers": headers, "query_string": b""}
        request = ApiRequest(caller=self._caller, path={}, scope=scope, receive=receive)
        limits = self._deps.accounts.limits
        upload = FileUpload(self._deps, request)
        stored = (await upload.run(before_store=lambda: limits.take(self._caller, "files"))).file
        return GivenFile(file_id=FileId(stored.id))

    # Reading

    async def _load(self, chat_id: ChatId, which: MessageRange) -> tuple[Chat, list[PublicMessage]]:
        """Newest first, unless the range begins with a message."""
        page = await self._deps.read(message_pages.load_page, self._caller.actor, chat_id, which)
        if page is None:
            raise not_found("There is no such conversation.")
        seen = (public_message(chat_id, row) for row in page.messages)
        return page.chat, [one for one in seen if one is not None]

    async def _load_from(self, turn: TurnId) -> tuple[Chat, list[PublicMessage]]:
        """The chat and its messages from that of the turn on, as many as a page has."""
        if turn.anchor > 0:
            which = MessageRange(after=MessageId(turn.anchor - 1), limit=PAGE_SIZE)
            chat, messages = await self._load(turn.chat_id, which)
            if messages and messages[0].id == turn.anchor:
                return chat, messages
        raise not_found(
            "There is no such response.",
            code="previous_response_not_found",
            param="previous_response_id",
        )


def _calls(message: PublicMessage) -> set[ToolCallId]:
    return {part.tool_call_id for part in message.content if isinstance(part, ToolCallPart)}
