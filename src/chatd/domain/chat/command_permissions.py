"""The permission that a command on a chat needs."""

from msgspec import UNSET

from chatd.domain.access import Permission
from chatd.domain.chat.commands import (
    ArchiveIdleTree,
    Command,
    CreateChat,
    DeleteTree,
    InterruptChat,
    InterruptTree,
    UpdateChat,
)


def command_permission(command: Command) -> Permission:
    """`chats.control` for what stops a chat or puts it away, so that an administrator can do it to
    another user's chat."""
    match command:
        case CreateChat():
            return "chats.create"
        case InterruptChat() | InterruptTree() | DeleteTree() | ArchiveIdleTree():
            return "chats.control"
        case UpdateChat() if _only_archives(command):
            return "chats.control"
        case _:
            return "chats.write"


def _only_archives(command: UpdateChat) -> bool:
    others = (command.title, command.labels, command.pin_order)
    has_others = command.workspace_id is not UNSET or any(value is not None for value in others)
    return command.archived is not None and not has_others
