"""A chat as JSON lines, for `--format stream-json` and `chatd chats tail`.

The types of lines are those of the API's events; `delta` is text of the answer that is being
written. Each line says what is new since the lines before: a reconnect repeats nothing.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Raw

from chatd.client.state import LiveEpisode, ShownChat
from chatd.domain.chat.parts import ReasoningPart, TextPart
from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.ids import MessageId

Line = dict[str, object]


class EventLines:
    """`after`: messages up to this id are known and not told."""

    def __init__(self, after: int = 0, *, deltas: bool = True) -> None:
        self._after = after
        self._deltas = deltas
        self._was: ShownChat | None = None
        self._messages: dict[MessageId, PublicMessage] = {}
        self._episode: LiveEpisode | None = None
        self._told_chars: dict[int, int] = {}

    def lines(self, shown: ShownChat) -> list[Line]:
        if not shown.is_loaded:
            return []
        found = [*self._message_lines(shown), *self._state_lines(shown), *self._live_lines(shown)]
        self._was = shown
        return [{"type": line.pop("type"), "chat_id": str(shown.chat_id), **line} for line in found]

    def _message_lines(self, shown: ShownChat) -> Iterator[Line]:
        now = {one.id: one for one in shown.messages if one.id > self._after}
        # Messages below the oldest shown one are not gone: they are on an older page.
        oldest = shown.messages[0].id if shown.messages and shown.has_older else 0
        if gone := [key for key in self._messages if key not in now and key >= oldest]:
            yield {"type": "messages_deleted", "ids": gone}
        for key, message in now.items():
            if self._messages.get(key) != message:
                yield {"type": "message", "message": _raw(message)}
        self._messages = now

    def _state_lines(self, shown: ShownChat) -> Iterator[Line]:
        was = self._was
        if was is None or was.status != shown.status:
            yield {"type": "status", "status": shown.status}
        if shown.queue != (() if was is None else was.queue):
            yield {"type": "queue_update", "queued_messages": _raw(shown.queue)}
        for name in ("retry", "error", "takeover"):
            value: object = getattr(shown, name)
            if value is not None and (was is None or getattr(was, name) != value):
                yield {"type": name, name: _raw(value)}
        if shown.requested_calls and (was is None or was.requested_calls != shown.requested_calls):
            calls = _raw(shown.requested_calls)
            yield {"type": "action_required", "tool_calls": calls}

    def _live_lines(self, shown: ShownChat) -> Iterator[Line]:
        """Text since the last line. An answer that is begun again begins with `preview_reset`."""
        live = shown.live
        if not self._deltas or live is None:
            return
        if live.episode != self._episode:
            if self._told_chars:
                yield {"type": "preview_reset"}
            self._episode, self._told_chars = live.episode, {}
        for at, part in enumerate(live.parts):
            if not isinstance(part, TextPart | ReasoningPart):
                continue
            told = self._told_chars.get(at, 0)
            if len(part.text) > told:
                kind = "text" if isinstance(part, TextPart) else "reasoning"
                yield {"type": "delta", "kind": kind, "text": part.text[told:]}
                self._told_chars[at] = len(part.text)


def _raw(value: object) -> Raw:
    """Also of values that have raw JSON of tools in them."""
    return Raw(msgspec.json.encode(value))
