"""Builds the results of the tools, with bounded texts for the client's model to read. Pure."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct, UnsetType

from chatd.api.mcp.tool_schemas import (
    BUSY,
    MAX_MESSAGE_CHARS,
    ChatResult,
    Failure,
    ListedChatResult,
    ListResult,
    ReadChat,
    ReadMessage,
    ReadResult,
    WaitResult,
)
from chatd.api.schemas.chats import ChatPage
from chatd.api.schemas.messages import MessagePage
from chatd.client.state import ShownChat
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import (
    CommandPart,
    FilePart,
    FileReferencePart,
    KnownPart,
    NoticePart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat_views.public_chat import PublicChat
from chatd.domain.text import Json

MAX_ANSWER_CHARS: Final = 20_000
"""Of the answer in the result of a wait."""
MAX_PAGE_CHARS: Final = 40_000
MAX_ARGUMENTS_CHARS: Final = 500
MAX_RESULT_CHARS: Final = 2_000
LAST_WORDS_CHARS: Final = 120


class Excerpt(Struct, frozen=True, kw_only=True):
    """A piece of a text that has `total_chars`. `next_offset` is where the rest begins."""

    text: str
    total_chars: int
    next_offset: int | None = None


def cut(text: str, limit: int, offset: int = 0) -> Excerpt:
    piece = text[offset : offset + limit]
    end = offset + len(piece)
    return Excerpt(text=piece, total_chars=len(text), next_offset=end if end < len(text) else None)


def message_text(parts: Iterable[KnownPart]) -> str:
    """Without reasoning, and with tool calls and results in one line each."""
    return "\n".join(text for part in parts if (text := _part_text(part)))


def spoken_text(parts: Iterable[KnownPart]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart) and part.text)


def answer_text(messages: Sequence[PublicMessage]) -> str:
    """What the model said since the last message of a user."""
    said: list[str] = []
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "assistant" and (text := spoken_text(message.content)):
            said.append(text)
    return "\n\n".join(reversed(said))


def last_words(text: str) -> str:
    line = " ".join(text[-4 * LAST_WORDS_CHARS :].split())
    return line if len(line) <= LAST_WORDS_CHARS else "…" + line[-LAST_WORDS_CHARS:]


def _part_text(part: KnownPart) -> str:
    match part:
        case TextPart():
            return part.text
        case ToolCallPart():
            return f"[calls {part.tool_name} {_clipped(part.args, MAX_ARGUMENTS_CHARS)}]"
        case ToolResultPart():
            word = "failed" if part.is_error else "returned"
            return f"[{part.tool_name} {word} {_clipped(part.result, MAX_RESULT_CHARS)}]"
        case NoticePart():
            return f"[notice: {part.text}]"
        case FilePart():
            return f"[file {part.name or part.file_id or part.media_type}]"
        case CommandPart():
            return f"[the user ran: {part.command}]"
        case FileReferencePart():
            return f"[{part.file_name}:{part.start_line}-{part.end_line}]\n{part.content}"
        case SourcePart():
            return f"[source {part.url}]"
        case _:
            return ""


def _clipped(value: Json, limit: int) -> str:
    text = "" if isinstance(value, UnsetType) else bytes(value).decode(errors="replace")
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


WAIT: Final = "Call wait_for_chat with this chat_id for the answer."
WAIT_AGAIN: Final = "The chat still works: call wait_for_chat again with the same chat_id."
SUBMIT: Final = "The chat needs the results of its pending_calls: call submit_results."
ANSWER: Final = "The chat asks a person, see pending_calls: ask your user, then call answer_calls."
SUBAGENT_ASKS: Final = (
    "A subagent of the chat needs results or answers, see asking_subagents: wait_for_chat with its"
    " chat_id lists its pending_calls. The chat goes on when it has them."
)
LOOK: Final = "The chat needs results or answers: wait_for_chat lists its pending_calls."
READ_MORE: Final = "read_chat shows the history of this chat; send_message continues it."
SEND: Final = "The chat waits for a message: send_message continues it."
SEND_AFTER_ERROR: Final = "The chat has stopped, see error: send_message lets it try again."
ARCHIVED: Final = "The chat is archived and takes no messages: fork_chat copies it."


def next_step(status: str) -> str:
    match status:
        case "waiting":
            return SEND
        case "requires_action":
            return LOOK
        case "error":
            return SEND_AFTER_ERROR
        case "archived":
            return ARCHIVED
        case _:
            return WAIT_AGAIN


def next_action(kinds: AbstractSet[str]) -> str:
    """For a chat that needs an action of these kinds."""
    steps = [SUBMIT] if "client" in kinds else []
    return " ".join([*steps, ANSWER] if kinds - {"client"} else steps) or LOOK


def chat_result(chat: PublicChat, then: str) -> ChatResult:
    return ChatResult(chat_id=str(chat.id), status=chat.status, title=chat.title, next=then)


def wait_result(shown: ShownChat, asking: Sequence[PublicChat] = ()) -> WaitResult:
    answer = answer_text(shown.messages)
    if shown.live is not None and (said := spoken_text(shown.live.parts)):
        answer = f"{answer}\n\n{said}" if answer else said
    piece, error = cut(answer, MAX_ANSWER_CHARS), shown.error
    return WaitResult(
        chat_id=str(shown.chat_id),
        status=shown.status,
        done=shown.status not in BUSY,
        answer=piece.text,
        answer_is_cut=piece.next_offset is not None,
        error=None if error is None else Failure(kind=error.kind, message=error.message),
        pending_calls=shown.requested_calls,
        asking_subagents=tuple(_listed(chat) for chat in asking),
        queue_len=len(shown.queue),
        last_message_id=shown.messages[-1].id if shown.messages else None,
        next=SUBAGENT_ASKS if asking else _next(shown),
    )


def _next(shown: ShownChat) -> str:
    if shown.status == "requires_action":
        return next_action({call.kind for call in shown.requested_calls})
    return next_step(shown.status)


def read_result(chat: PublicChat, page: MessagePage, given: ReadChat) -> ReadResult:
    """Messages of the page as far as the budget goes; the first one always."""
    shown: list[ReadMessage] = []
    left = MAX_PAGE_CHARS
    for message in page.items:
        limit = MAX_PAGE_CHARS if given.message_id is not None else min(MAX_MESSAGE_CHARS, left)
        if shown and limit <= 0:
            break
        piece = cut(message_text(message.content), limit, given.offset)
        left -= len(piece.text)
        shown.append(
            ReadMessage(
                id=message.id, role=message.role, text=piece.text, next_offset=piece.next_offset
            )
        )
    is_forward = given.after is not None
    has_more = given.message_id is None and (page.has_more or len(shown) < len(page.items))
    last = shown[-1].id if shown and has_more else None
    return ReadResult(
        chat_id=str(chat.id),
        status=chat.status,
        messages=sorted(shown, key=lambda message: message.id),
        queued=tuple(cut(message_text(one.content), 500).text for one in page.queued_messages),
        before=None if is_forward else last,
        after=last if is_forward else None,
        next=next_step(chat.status),
    )


def list_result(page: ChatPage) -> ListResult:
    chats = [
        _listed(chat, match="" if chat.match is None else chat.match.text) for chat in page.items
    ]
    return ListResult(chats=chats, next_cursor=page.next_cursor)


def _listed(chat: PublicChat, match: str = "") -> ListedChatResult:
    return ListedChatResult(
        chat_id=str(chat.id),
        title=chat.title,
        status=chat.status,
        updated_at=chat.updated_at,
        queue_len=chat.queue_len,
        waits_for="" if chat.action is None else chat.action.summary,
        match=match,
    )
