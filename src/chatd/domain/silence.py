"""When a stream that says nothing is given up.

Owns the judgement; whoever reads the stream owns the timer and closes the socket. The guard is
armed when the stream is opened and again by every event. Exactly one of two things ends it: the
time runs out, or the reader lets go. Whatever the stream does after the time ran out, an error
or a quiet end, was our own doing and means silence.
"""

from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.failures import Classified, known_failure

SILENCE_S: Final = 600.0


class Silence(Struct, frozen=True, kw_only=True):
    """Times are of one monotonic clock, in seconds."""

    deadline: float
    limit_s: float = SILENCE_S
    settled: Literal["fired", "released"] | None = None

    @staticmethod
    def armed(at: float, limit_s: float = SILENCE_S) -> "Silence":
        return Silence(deadline=at + limit_s, limit_s=limit_s)

    def heard(self, at: float) -> "Silence":
        """The stream is alive. Too late if the time had run out before."""
        if self.settled is not None:
            return self
        return msgspec.structs.replace(self, deadline=at + self.limit_s)

    def checked(self, at: float) -> "Silence":
        """The timer rings. It fires unless something was heard in between."""
        if self.settled is not None or at < self.deadline:
            return self
        return msgspec.structs.replace(self, settled="fired")

    def released(self) -> "Silence":
        """The reader is done, well or not. A guard that has fired stays fired."""
        if self.settled is not None:
            return self
        return msgspec.structs.replace(self, settled="released")

    @property
    def fired(self) -> bool:
        return self.settled == "fired"

    def wait_s(self, at: float) -> float:
        """How long the timer sleeps before it looks again."""
        return max(self.deadline - at, 0.0)

    def failure(self, provider: str, otherwise: Classified | None) -> Classified | None:
        """What ended the stream: silence if the guard fired, else what the stream said itself.
        None: it ended well."""
        return known_failure("stream_silence_timeout", provider) if self.fired else otherwise
