"""A new chat and a message to it, as changes and operations ready to be written."""

from uuid import UUID

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import CreateChat, SendMessage
from chatd.domain.chat.user_transitions import create, send_message
from chatd.domain.ids import ChangeId, ChatId
from chatd.store.chat.chats import LoadedChat
from chatd.store.chat.transactor import AppliedChange, Operation
from tests.support.factories import CHAT, OWNER, WORKER, prompt


def new_chat(number: int, parent: ChatId | None = None) -> Change:
    """With the number for an id, and taken by the worker whose replica was asked."""
    command = CreateChat(
        id=ChatId(UUID(int=number)),
        owner_id=OWNER,
        title="A chat",
        prompt=prompt(f"hello {number}"),
        parent_chat_id=parent,
        root_chat_id=parent,
    )
    return create(command, WORKER)


def sending(words: str, change_id: ChangeId, chat_id: ChatId = CHAT) -> Operation:
    def decide(loaded: LoadedChat) -> Change:
        return send_message(loaded.chat, SendMessage(prompt=prompt(words)), None)

    return Operation(chat_id=chat_id, change_id=change_id, decide=decide)


def tell_nobody(applied: AppliedChange) -> None:
    """For tests in which nobody listens."""
