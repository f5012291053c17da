"""What the tools and their server say to the client's model."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

INSTRUCTIONS: Final = (
    "chatd runs AI agent chats that go on by themselves, also while no client is connected. Begin"
    " with start_chat, then call wait_for_chat until `done` is true; if the time is over, call it"
    " again. send_message continues a chat, and read_chat shows its history. If no reply came to"
    " start_chat, send_message or fork_chat, repeat the call with the same `key`: nothing happens"
    " twice. To stop waiting does not stop a chat: interrupt_chat does."
)

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "start_chat": (
        "Start a chat with its first message. An AI agent begins to work on it at once and goes on"
        " by itself. Returns the chat_id without waiting: call wait_for_chat for the answer."
    ),
    "send_message": (
        "Send a message to a chat. A chat that waits begins to answer at once; when_busy decides"
        " what happens in one that works. Call wait_for_chat for the answer."
    ),
    "wait_for_chat": (
        "Wait until a chat has answered, has failed or needs results, and return its answer. The"
        " time is bounded: with done=false the chat still works, so call it again. A wait reads"
        " only: to cancel it does not stop the chat."
    ),
    "read_chat": (
        "Read messages of a chat as text, the newest ones first to come. Long messages are cut;"
        " message_id and offset read the rest."
    ),
    "interrupt_chat": (
        "Stop what a chat does now. What it has said so far is kept, and a message continues it."
    ),
    "fork_chat": (
        "Copy a chat, up to a message, into a new one that waits for a message. The first one is"
        " not changed."
    ),
    "list_chats": "List your chats, or search them.",
    "submit_results": (
        "Give a chat with the status requires_action the results of all its pending_calls of the"
        " kind client, which wait_for_chat lists. The chat then goes on."
    ),
    "answer_calls": (
        "Approve or deny calls of a chat (pending_calls of the kind approval), or answer its"
        " questions (kind question). They are meant for a person: ask your user first. The chat"
        " goes on when no call waits."
    ),
}

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
