"""What a failover to an older state of the database may lose, and how.

The lost commits are the last ones: of the messages of a chat that were acknowledged before the
database stopped, none is stored that is later than a lost one.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from msgspec import Struct

LONGEST_FREEZE_S: Final = 60.0
"""A frozen replica may act that late on a commit of the lost past."""


class SentInChat(Protocol):
    text: str
    acked: bool
    may_vanish: bool
    asked_at: float
    acked_at: float


class Crash(Struct, frozen=True, kw_only=True):
    """The database died between these times of the event loop's clock. What it had confirmed is
    kept, but for commits that do not wait for the disk."""

    earliest: float
    latest: float


class LostPast(Struct, frozen=True, kw_only=True):
    """The database went back to its state of `copied_at`. It stopped at `stopped_at` and could be
    used again at `back_at`. All by the event loop's clock."""

    copied_at: float
    stopped_at: float
    back_at: float

    def may_lose(self, sent: SentInChat) -> bool:
        """A replica may send a reply late, so the time of the request counts too."""
        return self.copied_at < sent.acked_at and sent.asked_at < self.back_at

    def may_repeat(self, first_run_at: float) -> bool:
        """Whether the mark of a tool that must not run twice may be lost."""
        return self.copied_at < first_run_at < self.back_at + LONGEST_FREEZE_S

    def check_order(self, sent_in_chat: Iterable[SentInChat], stored: Iterable[str]) -> None:
        """Lost as a whole: nothing later than a lost message is stored."""
        lost, kept = None, set(stored)
        certain = [
            sent
            for sent in sent_in_chat
            if sent.acked and self.copied_at < sent.acked_at < self.stopped_at
        ]
        for sent in sorted(certain, key=lambda sent: sent.acked_at):
            if sent.text in kept:
                assert lost is None, f"mixed: {sent} is stored, but the earlier {lost} is lost"
            elif not sent.may_vanish:
                lost = sent
