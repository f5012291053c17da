"""One model call's contribution to history, and whether it is worth keeping."""

from typing import Final

from msgspec import Struct

from chatd.domain.chat import ChatError
from chatd.domain.error_text import bounded, redact_urls
from chatd.domain.failures import Classified, known_failure
from chatd.domain.heal import is_empty
from chatd.domain.messages import Usage
from chatd.domain.model import Finished
from chatd.domain.parts import Part, Reasoning, Text

_BROKE_OFF: Final = "The provider says that its answer ended in an error."


class Answer(Struct, frozen=True, kw_only=True):
    content: tuple[Part, ...]
    finished: Finished | None = None

    @property
    def usage(self) -> Usage | None:
        return None if self.finished is None else self.finished.usage

    @property
    def said_something(self) -> bool:
        """Anything a person or a tool could act on; reasoning alone is not an answer."""
        return any(not isinstance(part, Reasoning) and not _blank(part) for part in self.content)


class Keep(Struct, frozen=True, kw_only=True):
    """Commit it."""


class Nothing(Struct, frozen=True, kw_only=True):
    """The model had nothing to say: the turn ends, and no message is added."""


class Refused(Struct, frozen=True, kw_only=True):
    """Not an answer but a failure, which must not end the turn in silence."""

    failure: Classified


def judge(answer: Answer, provider: str) -> Keep | Nothing | Refused:
    """What was visibly said is kept, however the model came to stop."""
    reason = None if answer.finished is None else answer.finished.reason
    if not answer.said_something and reason == "content-filter":
        said = "" if answer.finished is None else answer.finished.explanation or ""
        detail = bounded(redact_urls(said))
        return Refused(failure=known_failure("content_filter", provider, detail=detail))
    if not answer.said_something and reason == "error":
        return Refused(failure=_broken_off(provider))
    return Nothing() if all(_blank(part) for part in answer.content) else Keep()


def _broken_off(provider: str) -> Classified:
    error = ChatError(
        message=known_failure("generic", provider).error.message,
        detail=_BROKE_OFF,
        provider=provider or None,
        retryable=True,
    )
    return Classified(kind="generic", error=error)


def _blank(part: Part) -> bool:
    """Of a text or a thought that is blank, only what the vendor attached to it can matter."""
    match part:
        case Text() | Reasoning():
            return not part.text.strip() and is_empty(part.provider_metadata)
        case _:
            return False
