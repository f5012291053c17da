"""The error tree, split by who can act on an error.

    ChatdError(code)
      RequestError            the caller can fix it
        NotFound              404
        InvalidInput          400
        Forbidden             403
        QueueFull             429
        Conflict              409
          TransitionNotAllowed  the move is not legal in this state
          ChatBusy              the sender asked to be refused rather than wait
          QueuedMessageGone     the queued message has left the queue meanwhile
          NothingToCompact
          UsageLimit
          RequestReused         an idempotency key came back with another body
      StaleFence              someone else moved the chat: leave quietly
      Unavailable             database or peer gone: back off, try again
      ProviderFailed          a model's API failed: `classify` says what that means
      ToolError               the model can act: becomes a tool result
      InvariantBroken         our bug: stop the task, a human must look

Foreign exceptions are translated into these where they enter, nowhere else.
"""

from typing import Final


class ChatdError(Exception):
    """`code` is for machines and never changes meaning; the message is for people."""

    code = "internal"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class RequestError(ChatdError):
    code = "bad_request"


class NotFound(RequestError):
    code = "not_found"


class InvalidInput(RequestError):
    code = "invalid_input"

    def __init__(self, field: str, detail: str, *, code: str | None = None) -> None:
        super().__init__(f"{field}: {detail}", code=code)
        self.field = field
        self.detail = detail


class Forbidden(RequestError):
    code = "forbidden"


class QueueFull(RequestError):
    code = "queue_full"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The queue is full: at most {limit} messages can wait.")
        self.limit = limit


class Conflict(RequestError):
    code = "conflict"


# By the first letter of a state: what people call it.
_STATE_NAMES: Final = {
    "W": "waiting for a message",
    "E": "in error",
    "P": "pending",
    "R": "running",
    "I": "being interrupted",
    "A": "waiting for tool results",
    "X": "archived",
}


class TransitionNotAllowed(Conflict):
    code = "invalid_state"

    def __init__(self, transition: str, state: str, *, archived: bool = False) -> None:
        what = "send a message" if transition.startswith("send_") else transition.replace("_", " ")
        text = f"Cannot {what} while the chat is {_STATE_NAMES.get(state[:1], state)}."
        super().__init__(text, code="chat_archived" if archived else None)
        self.transition = transition
        self.state = state


class ChatBusy(Conflict):
    code = "chat_busy"


class QueuedMessageGone(Conflict):
    code = "queued_message_gone"


class NothingToCompact(Conflict):
    code = "nothing_to_compact"


class UsageLimit(Conflict):
    code = "usage_limit_exceeded"


class RequestReused(Conflict):
    code = "idempotency_key_reused"


class StaleFence(ChatdError):
    code = "stale_fence"


class Unavailable(ChatdError):
    """`maybe_applied` says whether a statement had been sent when the reply was lost."""

    code = "unavailable"

    def __init__(
        self, message: str, *, code: str | None = None, maybe_applied: bool = False
    ) -> None:
        super().__init__(message, code=code)
        self.maybe_applied = maybe_applied


class ToolError(ChatdError):
    """The message is what the model reads: what was wrong with the call, and what to do."""

    code = "tool_error"


class InvariantBroken(ChatdError):
    code = "invariant_broken"
