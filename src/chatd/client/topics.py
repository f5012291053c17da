"""Which topics a socket should follow, and which it does: `due` says what to send next.

The wish outlives connections: after each one all topics are subscribed again, from their cursors.
"""

import random
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from chatd.aio import Backoff
from chatd.client.frames import Refused, Subscribe, Subscribed, TopicEvent, Unsubscribe

GONE_CODES: Final = frozenset({"not_found", "forbidden", "missing_scope", "invalid_input"})
_ANSWERED_CODES: Final = frozenset({None, "already_subscribed", "not_subscribed"})
_BACKOFF: Final = Backoff(first_delay_s=1.0, max_delay_s=30.0)


class TopicHandler(Struct, frozen=True, kw_only=True):
    """`cursor` says where to continue. `restart`: events from there on follow, and what was half
    received is void. `gone`: the topic does not exist or may not be read."""

    cursor: Callable[[], str | None]
    restart: Callable[[], None]
    gone: Callable[[], None]


class _Wish(Struct, kw_only=True):
    handler: TopicHandler
    failures: int = 0
    not_before: float = 0.0


class Topics:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._wanted: dict[str, _Wish] = {}
        self._asked: set[str] = set()

    def follow(self, topic: str, handler: TopicHandler) -> None:
        self._wanted[topic] = _Wish(handler=handler)

    def leave(self, topic: str) -> None:
        self._wanted.pop(topic, None)

    def on_lost(self) -> None:
        """Nothing is subscribed any more."""
        self._asked.clear()
        for wish in self._wanted.values():
            wish.not_before = 0.0
            wish.handler.restart()

    def due(self) -> Iterator[Subscribe | Unsubscribe]:
        """What must be sent now; it counts as sent."""
        for topic in [one for one in self._asked if one not in self._wanted]:
            self._asked.discard(topic)
            yield Unsubscribe(topic=topic)
        now = self._now()
        for topic, wish in list(self._wanted.items()):
            if topic not in self._asked and wish.not_before <= now:
                self._asked.add(topic)
                yield Subscribe(topic=topic, after=wish.handler.cursor() or None)

    def next_retry_s(self) -> float | None:
        """Until a refused topic is asked for again."""
        waits = [
            wish.not_before for topic, wish in self._wanted.items() if topic not in self._asked
        ]
        return max(0.0, min(waits) - self._now()) if waits else None

    def on_event(self, event: TopicEvent) -> None:
        wish = None if event.topic is None else self._wanted.get(event.topic)
        if wish is None or event.topic is None:
            return
        match event:
            case Subscribed():
                wish.failures = 0
                wish.handler.restart()
            case Refused(code=code) if code in GONE_CODES:
                self._end(event.topic, wish)
            case _ if event.code in _ANSWERED_CODES:
                return
            case _ if event.code in GONE_CODES:
                self._end(event.topic, wish)
            case _:
                self._asked.discard(event.topic)
                wish.failures += 1
                wish.not_before = self._now() + _BACKOFF.delay(wish.failures, random.random)

    def _end(self, topic: str, wish: _Wish) -> None:
        self._asked.discard(topic)
        del self._wanted[topic]
        wish.handler.gone()
