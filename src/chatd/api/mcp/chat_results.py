"""Builds the results of the tools from replies of the API and from the state of a chat. Pure."""

from collections.abc import Sequence

from chatd.api.mcp import texts
from chatd.api.mcp.arguments import ReadChat
from chatd.api.mcp.chat_waits import BUSY
from chatd.api.mcp.results import (
    ChatResult,
    Failure,
    ListedChatResult,
    ListResult,
    ReadMessage,
    ReadResult,
    WaitResult,
)
from chatd.api.mcp.transcripts import (
    MAX_ANSWER_CHARS,
    MAX_MESSAGE_CHARS,
    MAX_PAGE_CHARS,
    answer_text,
    cut,
    message_text,
    spoken_text,
)
from chatd.api.schemas.chats import ChatPage
from chatd.api.schemas.messages import MessagePage
from chatd.client.state import ShownChat
from chatd.domain.chat_views.public_chat import PublicChat


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
        next=texts.SUBAGENT_ASKS if asking else _next(shown),
    )


def _next(shown: ShownChat) -> str:
    if shown.status == "requires_action":
        return texts.next_action({call.kind for call in shown.requested_calls})
    return texts.next_step(shown.status)


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
        next=texts.next_step(chat.status),
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
