"""The error tree, split by which side can act on an error.

    ChatdError(code)
      RequestError            the caller can fix it
        NotFound              404
        InvalidInput          400
        Forbidden             403
        UnsupportedFile       415
        QueueFull             429
        TooManyUploads        429
        Conflict              409
          TransitionNotAllowed  the transition is not legal in this state
          ChatBusy              the request was sent with `reject`
          QueuedMessageGone     the message is no longer in the queue
          NothingToCompact
          UsageLimit
          TooManyFiles          the messages of a chat name too many files
          RequestReused         an idempotency key was sent again with another body
      StaleFence              the chat has changed since: the worker stops, writes nothing
      Unavailable             database or peer unreachable: back off, retry
      TitleFailed             no model gave a usable title: 502
      ProviderError           a model's API failed: `model.classify` says how (model.protocol)
      ToolError               the model can act: becomes a tool result
      InvariantBroken         a bug in chatd: the task stops and the error is logged

Exceptions of libraries are converted to these at the call that raises them, nowhere else.
"""

from datetime import datetime
from typing import Final


class ChatdError(Exception):
    """Clients branch on `code` (stable); `message` is for people."""

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


class UnsupportedFile(RequestError):
    """A file of a type that is not stored."""

    code = "unsupported_file_type"


class QueueFull(RequestError):
    code = "queue_full"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The queue is full: at most {limit} messages can wait.")
        self.limit = limit


class TooManyUploads(RequestError):
    code = "too_many_uploads"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} uploads of yours are running. Wait until one has ended.")


class Conflict(RequestError):
    code = "conflict"


# By the first letter of a state.
_STATE_NAMES: Final = {
    "W": "waiting for a message",
    "E": "in error",
    "P": "pending",
    "R": "running",
    "I": "being interrupted",
    "A": "waiting for an answer",
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


class CallNotWaiting(Conflict):
    """The call was answered before, or its chat does not wait for it."""

    code = "call_not_waiting"

    def __init__(self, tool_call_id: str, who: str = "") -> None:
        super().__init__(
            who or f"The chat does not wait for an answer to the tool call {tool_call_id!r}."
        )
        self.tool_call_id = tool_call_id


class TooManyRules(Conflict):
    code = "too_many_rules"

    def __init__(self) -> None:
        super().__init__("The chat's tool policy is full. Approve the call once, or remove rules.")


class NothingToCompact(Conflict):
    code = "nothing_to_compact"


class UsageLimit(Conflict):
    """The user's spend limit or the chat's budget is reached."""

    code = "usage_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        spent_micros: int | None = None,
        limit_micros: int | None = None,
        resets_at: datetime | None = None,
    ) -> None:
        super().__init__(message)
        self.spent_micros = spent_micros
        self.limit_micros = limit_micros
        self.resets_at = resets_at


class TooManyFiles(Conflict):
    code = "too_many_files"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The messages of a chat can name at most {limit} files.")


class RequestReused(Conflict):
    code = "idempotency_key_reused"


class StaleFence(ChatdError):
    code = "stale_fence"


class Unavailable(ChatdError):
    """`maybe_applied`: a statement was sent and its reply was lost."""

    code = "unavailable"

    def __init__(
        self, message: str, *, code: str | None = None, maybe_applied: bool = False
    ) -> None:
        super().__init__(message, code=code)
        self.maybe_applied = maybe_applied


class TitleFailed(ChatdError):
    code = "title_failed"


class ToolError(ChatdError):
    """The model reads the message: what was wrong with the call, and what to do."""

    code = "tool_error"


class InvariantBroken(ChatdError):
    code = "invariant_broken"
