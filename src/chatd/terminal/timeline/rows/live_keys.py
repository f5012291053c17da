"""Keys of messages. The message that an answer becomes when it is committed keeps the key that its
live parts had, so that its rows stay where they are, unfolded as they were."""

from msgspec import Struct

from chatd.client.state import ShownChat


class _Answer(Struct, frozen=True, kw_only=True):
    episode: str
    key: str
    after_id: int


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
        version = chat.live.episode
        episode = f"live-{version.history_version}-{version.attempt}"
        if self._answer is None or self._answer.episode != episode:
            last_id = chat.messages[-1].id if chat.messages else 0
            key = f"{episode}-{last_id}" if episode in self._used else episode
            self._used.add(key)
            self._answer = _Answer(episode=episode, key=key, after_id=last_id)
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
