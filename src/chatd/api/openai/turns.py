"""A turn of a chat as a response: its output, its status, its usage, and its numbered events. Pure.

The events are a function of the output alone, not of how its text arrived: the number of an event
holds how far the output is and a checksum of it. So a client resumes after any event, on any
replica, and a client whose text was replaced by another attempt of the model is told so.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, Literal, cast
from zlib import crc32

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from chatd.api.openai.protocol import CallId, ErrorDetail, Json, TurnId, turn_error
from chatd.client.state import ShownChat
from chatd.domain.chat.messages import PublicMessage, TokenUsage
from chatd.domain.chat.parts import (
    SUMMARY_TOOL_NAME,
    KnownPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ToolCallId
from chatd.domain.text import parse_json

MAX_SHOWN_ARGUMENTS: Final = 200
"""Of a call that the server runs, in the line of reasoning that tells of it."""
SEPARATOR: Final = "\n\n"
"""Between the texts of two steps, where the client gets one text."""

ItemKind = Literal["message", "reasoning", "function_call", "mcp_approval_request"]
TurnStatus = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]

_BUSY: Final = frozenset({"pending", "running", "interrupting"})


class OutputItem(Struct, frozen=True, kw_only=True):
    """`text` is what the model said or thought, or the arguments of a call. It grows until the item
    is done. `call_id` and `name` are those of a call."""

    kind: ItemKind
    text: str
    is_done: bool
    call_id: ToolCallId = ToolCallId("")
    name: str = ""


class Turn(Struct, frozen=True, kw_only=True):
    """What follows the message that asked, up to the next one that asks. `is_past`: another turn
    has begun. `asks_here`: the protocol can ask for an approval; else the client waits until a
    person gives it elsewhere. `items` is the output."""

    id: TurnId
    shown: ShownChat
    messages: tuple[PublicMessage, ...]
    is_past: bool
    asks_here: bool
    items: tuple[OutputItem, ...] = ()
    began_at: datetime | None = None

    @property
    def status(self) -> TurnStatus:
        if not self.is_past:
            if self.shown.status in _BUSY:
                return "in_progress"
            if self.shown.status == "requires_action":
                answered_here = {"client", "approval"} if self.asks_here else {"client"}
                kinds = {call.kind for call in self.shown.requested_calls}
                return "completed" if kinds <= answered_here else "in_progress"
            if self.shown.status == "error":
                return "failed"
        last = next((one for one in reversed(self.messages) if one.role != "system"), None)
        if last is None or _is_interrupted(last):
            return "cancelled"
        cut = last.finish_reason in ("length", "content-filter")
        return "incomplete" if cut else "completed"

    @property
    def is_over(self) -> bool:
        return self.status != "in_progress"

    @property
    def finish_reason(self) -> str | None:
        answers = [one for one in self.messages if one.role == "assistant"]
        return answers[-1].finish_reason if answers else None

    @property
    def error(self) -> ErrorDetail | None:
        if self.status != "failed":
            return None
        error = self.shown.error
        if error is None:
            return turn_error("generic", "The chat has stopped.")
        return turn_error(error.kind, error.message)

    def usage(self) -> TokenUsage | None:
        """Of all steps together."""
        found = [one.usage for one in self.messages if one.usage is not None]
        if not found:
            return None
        return TokenUsage(
            input_tokens=sum(
                one.input_tokens + one.cache_read_tokens + one.cache_creation_tokens
                for one in found
            ),
            output_tokens=sum(one.output_tokens for one in found),
            reasoning_tokens=sum(one.reasoning_tokens for one in found),
            cache_read_tokens=sum(one.cache_read_tokens for one in found),
            cache_creation_tokens=sum(one.cache_creation_tokens for one in found),
        )


class TurnReader:
    """Makes turns of the states of one chat. The items of committed messages are made once."""

    def __init__(self, turn: TurnId, client_tools: frozenset[str], *, asks_here: bool) -> None:
        self.id = turn
        self.client_tools = client_tools
        self._asks_here = asks_here
        self._known: dict[int, tuple[PublicMessage, list[OutputItem]]] = {}

    def read(self, shown: ShownChat) -> Turn:
        messages, is_past = cut_turn(shown.messages, self.id.anchor, self.client_tools)
        items: list[OutputItem] = []
        for message in messages:
            if message.role == "assistant":
                items += self._items(message)
        items = _as_decided(items, messages, None if is_past else shown)
        if not is_past:
            items += self._newest(shown)
        return Turn(
            id=self.id,
            shown=shown,
            messages=messages,
            is_past=is_past,
            asks_here=self._asks_here,
            items=tuple(items),
            began_at=next(
                (one.created_at for one in shown.messages if one.id == self.id.anchor), None
            ),
        )

    def _items(self, message: PublicMessage) -> list[OutputItem]:
        known = self._known.get(message.id)
        if known is None or known[0] is not message:
            known = (message, list_items(message.content, self.client_tools, is_done=True))
            self._known[message.id] = known
        return known[1]

    def _newest(self, shown: ShownChat) -> list[OutputItem]:
        """What is not in a message yet."""
        if shown.live is not None and shown.status in _BUSY:
            return list_items(shown.live.parts, self.client_tools, is_done=False)
        if not self._asks_here or shown.status != "requires_action":
            return []
        return [
            OutputItem(
                kind="mcp_approval_request",
                text="{}" if call.args is UNSET else bytes(call.args).decode(errors="replace"),
                is_done=True,
                call_id=call.tool_call_id,
                name=call.tool_name,
            )
            for call in shown.requested_calls
            if call.kind == "approval"
        ]


def cut_turn(
    messages: Sequence[PublicMessage], anchor: int, client_tools: frozenset[str]
) -> tuple[tuple[PublicMessage, ...], bool]:
    """The messages of the turn after this one, and whether a further turn follows."""
    found: list[PublicMessage] = []
    for message in messages:
        if message.id <= anchor:
            continue
        if asks(message, client_tools):
            return tuple(found), True
        found.append(message)
    return tuple(found), False


def _as_decided(
    items: list[OutputItem], messages: Sequence[PublicMessage], shown: ShownChat | None
) -> list[OutputItem]:
    """The client's functions run only when the chat waits for them, with the arguments for which it
    waits: a policy, a hook or a person may still deny a call, and a hook may change it. One that
    was denied has a result here, and is none of the client's. `shown`: of the newest turn."""
    denied = {
        part.tool_call_id
        for message in messages
        for part in message.content
        if isinstance(part, ToolResultPart)
    }
    requested = () if shown is None else shown.requested_calls
    waiting = {call.tool_call_id: call for call in requested if call.kind == "client"}
    is_open = shown is not None and (shown.status in _BUSY or shown.status == "requires_action")
    found: list[OutputItem] = []
    for item in items:
        if item.kind != "function_call":
            found.append(item)
        elif item.call_id in denied:
            continue
        elif (call := waiting.get(item.call_id)) is not None:
            is_same = parse_json(call.args) in (UNSET, parse_json(item.text))
            text = "" if is_same else bytes(cast("Raw", call.args)).decode(errors="replace")
            found.append(replace(item, text=text or item.text))
        elif is_open:
            break
        else:
            found.append(item)
    return found


def asks(message: PublicMessage, client_tools: frozenset[str]) -> bool:
    """Whether a client sent it: a message of a user, or the result of a client tool. A result that
    chatd gives such a call, because it is denied, has a time."""
    if message.role == "user":
        return True
    return message.role == "tool" and any(
        isinstance(part, ToolResultPart)
        and part.tool_name in client_tools
        and part.created_at is None
        for part in message.content
    )


def _is_interrupted(last: PublicMessage) -> bool:
    if last.role == "assistant":
        return last.finish_reason is None
    return any(isinstance(part, ToolResultPart) and part.interrupted for part in last.content)


def list_items(
    parts: Iterable[KnownPart], client_tools: frozenset[str], *, is_done: bool
) -> list[OutputItem]:
    """Texts that follow each other are one item: live parts are joined likewise. Items after a call
    with incomplete arguments wait for it, so that the order stays."""
    found: list[OutputItem] = []
    for part in parts:
        match part:
            case TextPart() | ReasoningPart():
                kind: ItemKind = "message" if isinstance(part, TextPart) else "reasoning"
                if not part.text:
                    continue
                last = found[-1] if found else None
                if last is not None and last.kind == kind and not last.call_id:
                    found[-1] = OutputItem(kind=kind, text=last.text + part.text, is_done=is_done)
                    continue
                found = [_done(one) for one in found]
                found.append(OutputItem(kind=kind, text=part.text, is_done=is_done))
            case ToolCallPart() if part.cut or part.tool_name == SUMMARY_TOOL_NAME:
                continue
            case ToolCallPart():
                if not is_done and part.tool_name in client_tools:
                    break  # Its commit may give it another id.
                if isinstance(part.args, UnsetType) and part.args_text is None:
                    if is_done:
                        continue
                    break
                found = [_done(one) for one in found]
                found.append(_call_item(part, client_tools))
            case _:
                continue
    return found


def _done(item: OutputItem) -> OutputItem:
    if item.is_done:
        return item
    return OutputItem(
        kind=item.kind, text=item.text, is_done=True, call_id=item.call_id, name=item.name
    )


def _call_item(part: ToolCallPart, client_tools: frozenset[str]) -> OutputItem:
    arguments = part.args_text if part.args is UNSET else bytes(part.args).decode(errors="replace")
    text = arguments or "{}"
    if part.tool_name in client_tools:
        return OutputItem(
            kind="function_call",
            text=text,
            is_done=True,
            call_id=part.tool_call_id,
            name=part.tool_name,
        )
    shown = text if len(text) <= MAX_SHOWN_ARGUMENTS else f"{text[:MAX_SHOWN_ARGUMENTS]}…"
    return OutputItem(
        kind="reasoning",
        text=f"[{part.tool_name} {shown}]",
        is_done=True,
        call_id=part.tool_call_id,
        name=part.tool_name,
    )


def answer_text(items: Iterable[OutputItem]) -> str:
    return SEPARATOR.join(item.text for item in items if item.kind == "message")


# Items and events as the wire has them


def item_json(turn: TurnId, index: int, item: OutputItem, *, is_done: bool = True) -> Json:
    status = "completed" if is_done else "in_progress"
    text = item.text if is_done else ""
    match item.kind:
        case "message":
            content = [_text_part(text)] if is_done else []
            return {
                "id": f"msg_{turn}_{index}",
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": content,
            }
        case "reasoning":
            summary = [{"type": "summary_text", "text": text}] if is_done else []
            return {"id": f"rs_{turn}_{index}", "type": "reasoning", "summary": summary}
        case "function_call":
            return {
                "id": f"fc_{turn}_{index}",
                "type": "function_call",
                "status": status,
                "call_id": str(CallId(turn.chat_id, item.call_id)),
                "name": item.name,
                "arguments": text,
            }
        case "mcp_approval_request":
            return {
                "id": CallId(turn.chat_id, item.call_id).approval,
                "type": "mcp_approval_request",
                "server_label": "chatd",
                "name": item.name,
                "arguments": item.text,
            }


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


CHECKSUM_BITS: Final = 16
_CHECKSUM_MASK: Final = 2**CHECKSUM_BITS - 1


class AnswerReplaced(ChatdError):
    """Another attempt of the model said something else than the client has read."""

    code = "answer_replaced"

    def __init__(self) -> None:
        super().__init__(
            "The model began this answer anew, so the stream cannot be continued. Retrieve the"
            " response to read it whole."
        )


class NumberedEvent(Struct, frozen=True, kw_only=True):
    """An event with its number. Its JSON has both."""

    type: str
    number: int
    fields: Json


class EventNumbers:
    """Counts events and the characters of texts, with a checksum of the texts."""

    def __init__(self, after: int | None) -> None:
        self._after = after
        self._place = -1
        self._checksum = 0

    @property
    def number(self) -> int:
        """That of the last event."""
        return self._place << CHECKSUM_BITS | (self._checksum & _CHECKSUM_MASK)

    @property
    def is_behind(self) -> bool:
        """Whether the client has read further than the events so far."""
        return self._after is not None and self._place < self._after >> CHECKSUM_BITS

    def event(self, type_: str, **fields: object) -> Iterator[NumberedEvent]:
        was_behind = self.is_behind
        self._place += 1
        if not self._is_known(was_behind=was_behind):
            yield NumberedEvent(type=type_, number=self.number, fields=fields)

    def delta(self, type_: str, text: str, **fields: object) -> Iterator[NumberedEvent]:
        """Of the text only what the client does not have."""
        if not text:
            return
        if self.is_behind and self._after is not None:
            known = min((self._after >> CHECKSUM_BITS) - self._place, len(text))
            self._add(text[:known])
            self._is_known(was_behind=True)
            text = text[known:]
            if not text:
                return
        self._add(text)
        yield NumberedEvent(type=type_, number=self.number, fields={**fields, "delta": text})

    def _add(self, text: str) -> None:
        self._place += len(text)
        self._checksum = crc32(text.encode(errors="surrogatepass"), self._checksum)

    def _is_known(self, *, was_behind: bool) -> bool:
        """Raises AnswerReplaced at the place that the client has reached with another text."""
        if was_behind and not self.is_behind and self.number != self._after:
            raise AnswerReplaced
        return was_behind


class ItemEvents:
    """Events of the output of one response, for one client. `after` is the number of the last event
    that the client has."""

    def __init__(self, turn: TurnId, after: int | None = None) -> None:
        self._turn = turn
        self._numbers = EventNumbers(after)
        self._closed: list[OutputItem] = []
        self._open_kind: ItemKind | None = None
        self._sent = ""

    @property
    def number(self) -> int:
        return self._numbers.number

    def begin(self, response: Json) -> Iterator[NumberedEvent]:
        yield from self._numbers.event("response.created", response=response)
        yield from self._numbers.event("response.in_progress", response=response)

    def advance(self, items: Sequence[OutputItem]) -> Iterator[NumberedEvent]:
        """The events from what was sent to these items. After a crash another attempt may say the
        same again, and not be as far yet. Raises AnswerReplaced if it says something else."""
        for known, item in zip(self._closed, items, strict=False):
            if (item.kind, item.text) != (known.kind, known.text):
                if (
                    not item.is_done
                    and item.kind == known.kind
                    and known.text.startswith(item.text)
                ):
                    return
                raise AnswerReplaced
        for item in items[len(self._closed) :]:
            if self._open_kind is None:
                self._open_kind, self._sent = item.kind, ""
                yield from self._open(item)
            if item.kind != self._open_kind or not item.text.startswith(self._sent):
                is_same = item.kind == self._open_kind and self._sent.startswith(item.text)
                if is_same and not item.is_done:
                    return
                raise AnswerReplaced
            new, self._sent = item.text[len(self._sent) :], item.text
            yield from self._delta(item, new)
            if not item.is_done:
                return
            yield from self._close(item)
            self._closed.append(item)
            self._open_kind = None

    def end(self, type_: str, response: Json) -> Iterator[NumberedEvent]:
        yield from self._numbers.event(type_, response=response)
        if self._numbers.is_behind:
            raise AnswerReplaced

    @property
    def _place(self) -> Json:
        return {"output_index": len(self._closed)}

    def _open(self, item: OutputItem) -> Iterator[NumberedEvent]:
        shown = item_json(self._turn, len(self._closed), item, is_done=False)
        yield from self._event("response.output_item.added", item=shown, **self._place)
        match item.kind:
            case "message":
                yield from self._event(
                    "response.content_part.added", part=_text_part(""), **self._content(item)
                )
            case "reasoning":
                part = {"type": "summary_text", "text": ""}
                yield from self._event(
                    "response.reasoning_summary_part.added", part=part, **self._content(item)
                )
            case _:
                pass

    def _delta(self, item: OutputItem, text: str) -> Iterator[NumberedEvent]:
        place = self._content(item)
        match item.kind:
            case "message":
                yield from self._numbers.delta(
                    "response.output_text.delta", text, logprobs=[], **place
                )
            case "reasoning":
                yield from self._numbers.delta(
                    "response.reasoning_summary_text.delta", text, **place
                )
            case "function_call":
                yield from self._numbers.delta(
                    "response.function_call_arguments.delta", text, **place
                )
            case "mcp_approval_request":
                pass

    def _close(self, item: OutputItem) -> Iterator[NumberedEvent]:
        place, text = self._content(item), item.text
        match item.kind:
            case "message":
                yield from self._event("response.output_text.done", text=text, logprobs=[], **place)
                part = _text_part(text)
                yield from self._event("response.content_part.done", part=part, **place)
            case "reasoning":
                yield from self._event("response.reasoning_summary_text.done", text=text, **place)
                part = {"type": "summary_text", "text": text}
                yield from self._event("response.reasoning_summary_part.done", part=part, **place)
            case "function_call":
                yield from self._event(
                    "response.function_call_arguments.done",
                    name=item.name,
                    arguments=text,
                    **place,
                )
            case "mcp_approval_request":
                pass
        shown = item_json(self._turn, len(self._closed), item)
        yield from self._event("response.output_item.done", item=shown, **self._place)

    def _content(self, item: OutputItem) -> Json:
        """Where a piece of the item is."""
        found: Json = {
            "item_id": item_json(self._turn, len(self._closed), item, is_done=False)["id"],
            **self._place,
        }
        match item.kind:
            case "message":
                return {**found, "content_index": 0}
            case "reasoning":
                return {**found, "summary_index": 0}
            case _:
                return found

    def _event(self, type_: str, **fields: object) -> Iterator[NumberedEvent]:
        yield from self._numbers.event(type_, **fields)
