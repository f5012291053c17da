"""Replies and streams of both endpoints, made of turns. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from chatd.api.openai.protocol import CallId, ErrorDetail, Json, TurnId, encode_line
from chatd.api.openai.turns import (
    SEPARATOR,
    ItemEvents,
    NumberedEvent,
    OutputItem,
    Turn,
    answer_text,
    item_json,
)
from chatd.api.request import ApiReply, reply
from chatd.domain.chat.messages import TokenUsage

_DONE: Final = b"data: [DONE]\n\n"
_FINISH_REASONS: Final[Mapping[str | None, str]] = {
    "length": "length",
    "content-filter": "content_filter",
}


def response_json(head: Json, turn: Turn) -> Json:
    status, error = turn.status, turn.error
    incomplete = None
    if status == "incomplete":
        is_filter = turn.finish_reason == "content-filter"
        incomplete = {"reason": "content_filter" if is_filter else "max_output_tokens"}
    usage = turn.usage()
    return {
        **head,
        **_created(turn),
        "status": status,
        "error": None if error is None else {"code": error.code, "message": error.message},
        "incomplete_details": incomplete,
        "output": [
            item_json(turn.id, index, item) for index, item in enumerate(turn.items) if item.is_done
        ],
        "usage": None if usage is None else _response_usage(usage),
    }


def _created(turn: Turn) -> Json:
    return {} if turn.began_at is None else {"created_at": int(turn.began_at.timestamp())}


def _response_usage(usage: TokenUsage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_creation_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def response_reply(head: Json, turn: Turn) -> ApiReply:
    return reply(response_json(head, turn))


def _completion_usage(usage: TokenUsage | None) -> Json | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _finish_reason(turn: Turn) -> str:
    if any(item.kind == "function_call" for item in turn.items) and not turn.is_past:
        return "tool_calls"
    return _FINISH_REASONS.get(turn.finish_reason, "stop")


def _call_json(turn: Turn, item: OutputItem) -> Json:
    return {
        "id": str(CallId(turn.id.chat_id, item.call_id)),
        "type": "function",
        "function": {"name": item.name, "arguments": item.text},
    }


def completion_reply(head: Json, turn: Turn) -> ApiReply:
    if (error := turn.error) is not None:
        # Repeated as it is, the request would begin another chat.
        return reply({"error": error}, 502, {"x-should-retry": "false"})
    calls = [_call_json(turn, item) for item in turn.items if item.kind == "function_call"]
    text = answer_text(turn.items)
    thought = SEPARATOR.join(item.text for item in turn.items if item.kind == "reasoning")
    message: Json = {
        "role": "assistant",
        "content": text if text or not calls else None,
        "refusal": None,
        "annotations": [],
    }
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish_reason(turn),
    }
    usage = _completion_usage(turn.usage())
    body = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return reply(body)


# Streams


class CompletionWriter:
    """Chunks of Chat Completions."""

    def __init__(self, head: Json, *, with_usage: bool) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}
        self._with_usage = with_usage
        self._events: ItemEvents | None = None
        self._texts = 0
        self._thoughts = 0
        self._calls = 0

    def write(self, turn: Turn) -> bytes:
        found: list[bytes] = []
        if self._events is None:
            self._events = ItemEvents(turn.id)
            found.append(self._chunk({"role": "assistant", "content": ""}))
        deltas = (self._delta(turn, event) for event in self._events.advance(turn.items))
        found += [self._chunk(delta) for delta in deltas if delta is not None]
        if not turn.is_over:
            return b"".join(found)
        if (error := turn.error) is not None:
            return b"".join((*found, self.fail(error)))
        found.append(self._chunk({}, _finish_reason(turn)))
        if self._with_usage:
            usage = _completion_usage(turn.usage()) or _completion_usage(TokenUsage())
            last: Json = {**self._head, "choices": [], "usage": usage}
            found.append(b"data: " + encode_line(last) + b"\n\n")
        return b"".join((*found, _DONE))

    def fail(self, detail: ErrorDetail) -> bytes:
        return b"data: " + encode_line({"error": detail}) + b"\n\n"

    def _delta(self, turn: Turn, event: NumberedEvent) -> Json | None:
        """A second text begins after an empty line, as in the reply without a stream."""
        fields = event.fields
        match event.type:
            case "response.content_part.added":
                self._texts += 1
                return {"content": SEPARATOR} if self._texts > 1 else None
            case "response.output_text.delta":
                return {"content": fields["delta"]}
            case "response.reasoning_summary_part.added":
                self._thoughts += 1
                return {"reasoning_content": SEPARATOR} if self._thoughts > 1 else None
            case "response.reasoning_summary_text.delta":
                return {"reasoning_content": fields["delta"]}
            case "response.function_call_arguments.done":
                index, place = self._calls, msgspec.convert(fields["output_index"], int)
                self._calls += 1
                return {"tool_calls": [{"index": index, **_call_json(turn, turn.items[place])}]}
            case _:
                return None

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        body: Json = {**self._head, "choices": [choice]}
        if self._with_usage:
            body["usage"] = None
        return b"data: " + encode_line(body) + b"\n\n"


_LAST_EVENTS: Final[Mapping[str, str]] = {
    "completed": "response.completed",
    "failed": "response.failed",
    "incomplete": "response.incomplete",
    # There is no event of its own for it.
    "cancelled": "response.incomplete",
}


class ResponseWriter:
    """Events of a response, from the one after `after` on."""

    def __init__(self, turn: TurnId, head: Json, after: int | None = None) -> None:
        self._head = head
        self._events = ItemEvents(turn, after)
        self._has_begun = False

    def write(self, turn: Turn) -> bytes:
        found: list[NumberedEvent] = []
        if not self._has_begun:
            self._has_begun = True
            shown: Json = {
                **self._head,
                **_created(turn),
                "status": "in_progress",
                "error": None,
                "incomplete_details": None,
                "output": [],
                "usage": None,
            }
            found += self._events.begin(shown)
        found += self._events.advance(turn.items)
        if turn.is_over:
            found += self._events.end(_LAST_EVENTS[turn.status], response_json(self._head, turn))
        return b"".join(_encode_event(event) for event in found)

    def fail(self, detail: ErrorDetail) -> bytes:
        fields: Json = {"code": detail.code, "message": detail.message, "param": detail.param}
        return _encode_event(
            NumberedEvent(type="error", number=max(0, self._events.number), fields=fields)
        )


TurnWriter = CompletionWriter | ResponseWriter


def _encode_event(event: NumberedEvent) -> bytes:
    body = {"type": event.type, "sequence_number": event.number, **event.fields}
    return b"event: " + event.type.encode() + b"\ndata: " + encode_line(body) + b"\n\n"
