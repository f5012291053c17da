"""Keys of messages. The message that an answer becomes when it is committed keeps the key that its
live parts had, so that its rows stay where they are, unfolded as they were. So does the next
attempt at the answer if it goes on with the same text."""

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.state import LiveAnswer, ShownChat
from chatd.domain.chat.parts import TextPart


class _Answer(Struct, frozen=True, kw_only=True):
    episode: str
    key: str
    after_id: int
    live: LiveAnswer


class LiveKeys:
    def __init__(self) -> None:
        self._aliases: dict[int, str] = {}
        self._used: set[str] = set()
        self._answer: _Answer | None = None

    def follow(self, chat: ShownChat) -> str | None:
        """The key of the live answer, if there is one."""
        self._adopt(chat)
        if chat.live is None:
            return None
        version, answer = chat.live.episode, self._answer
        episode = f"live-{version.history_version}-{version.attempt}"
        if answer is not None and (answer.episode == episode or _continues(chat.live, answer.live)):
            self._answer = replace(answer, episode=episode, live=chat.live)
        else:
            last_id = chat.messages[-1].id if chat.messages else 0
            key = f"{episode}-{last_id}" if episode in self._used else episode
            self._used.add(key)
            self._answer = _Answer(episode=episode, key=key, after_id=last_id, live=chat.live)
        return self._answer.key

    def of(self, message_id: int) -> str:
        return self._aliases.get(message_id, f"m{message_id}")

    def _adopt(self, chat: ShownChat) -> None:
        """The first answer after the live one began is what it became."""
        answer = self._answer
        if answer is None or not chat.messages or chat.messages[-1].id <= answer.after_id:
            return
        first = None
        for message in reversed(chat.messages):
            if message.id <= answer.after_id:
                break
            if message.role != "system":  # a notice may stand before the answer
                first = message
        if first is not None and first.role == "assistant":
            self._aliases[first.id] = answer.key
        self._answer = None


def _continues(live: LiveAnswer, before: LiveAnswer) -> bool:
    """Another worker leaves out white space at the end, until the model says it again."""
    if live.episode.history_version != before.episode.history_version or len(before.parts) != 1:
        return False
    first, now = before.parts[0], live.parts[0] if live.parts else None
    return (
        isinstance(first, TextPart)
        and isinstance(now, TextPart)
        and now.text.startswith(first.text.rstrip())
    )
