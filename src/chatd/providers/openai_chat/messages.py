"""A conversation as the messages of a completion.

Texts of one message are joined, because many servers take no lists; pictures
that tools made follow all results of their step, because a tool's message can
hold none and nothing may stand between a call and its result.
"""

import base64
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.domain.chat.parts import Json
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.providers.files import Accepts, Document, Image, Media, Note, TextFile, as_text, fit
from chatd.providers.openai_chat.dialect import Dialect
from chatd.providers.openai_chat.wire import Kept, unpack
from chatd.providers.openai_tools import wire_call_id
from chatd.providers.schema import ToolNames


class _Typed(Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class TextPart(_Typed, frozen=True, kw_only=True, tag="text"):
    text: str


class Url(Struct, frozen=True):
    url: str


class ImagePart(_Typed, frozen=True, kw_only=True, tag="image_url"):
    image_url: Url


class FileData(Struct, frozen=True, kw_only=True):
    filename: str
    file_data: str


class FilePart(_Typed, frozen=True, kw_only=True, tag="file"):
    file: FileData


ContentPart = TextPart | ImagePart | FilePart


class FunctionPart(Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class CallPart(Struct, frozen=True, kw_only=True):
    id: str
    function: FunctionPart
    type: str = "function"
    extra_content: Json = UNSET


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str
    content: str | list[ContentPart] | UnsetType = UNSET
    tool_calls: list[CallPart] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_details: list[Raw] | UnsetType = UNSET


SIGNATURE: Final = Raw(b'{"google":{"thought_signature":"skip_thought_signature_validator"}}')
"""Google's own word for a call that it did not sign."""


class Conversation:
    """Builds the messages of one request. `signed`: the model wants its calls signed."""

    def __init__(
        self, origin: str, names: ToolNames, dialect: Dialect, *, system_role: str, signed: bool
    ) -> None:
        self.messages: list[Message] = []
        self._origin = origin
        self._names = names
        self._dialect = dialect
        self._system_role = system_role
        self._signed = signed
        self._pictures: list[ContentPart] = []

    def add(self, message: PromptMessage, *, current: bool) -> None:
        """`current`: it belongs to the turn that goes on."""
        if message.role != "tool":
            self._show_pictures()
        match message.role:
            case "system":
                self._system(_joined(message))
            case "user":
                self._user(_content(message, self._dialect.accepts))
            case "assistant":
                self._assistant(message, current=current)
            case "tool":
                for part in message.parts:
                    if isinstance(part, PromptResult) and not part.provider_executed:
                        self._result(part)

    def end(self) -> list[Message]:
        self._show_pictures()
        return self.messages

    def _system(self, text: str) -> None:
        """Those at the beginning become one: many models take no second."""
        if not text:
            return
        if len(self.messages) == 1 and self.messages[0].role == self._system_role:
            text = f"{self.messages.pop().content}\n\n{text}"
        self.messages.append(Message(role=self._system_role, content=text))

    def _user(self, content: list[ContentPart]) -> None:
        if not content:
            return
        last = self.messages[-1] if self.messages else None
        if self._dialect.merges_users and last is not None and last.role == "user":
            before = last.content
            earlier = before if isinstance(before, list) else [TextPart(text=before or "")]
            content = [*earlier, *content]
            self.messages.pop()
        texts = [part.text for part in content if isinstance(part, TextPart)]
        plain = len(texts) == len(content)
        self.messages.append(Message(role="user", content="\n\n".join(texts) if plain else content))

    def _assistant(self, message: PromptMessage, *, current: bool) -> None:
        text = _joined(message)
        calls = [part for part in message.parts if isinstance(part, PromptCall)]
        sent = [self._call(part) for part in calls if not part.provider_executed]
        if not text and not sent:
            return
        if current and self._signed and sent:
            sent = _signed(sent)
        kept = self._thoughts(message)
        replay = current and bool(sent)
        self.messages.append(
            Message(
                role="assistant",
                content=text or UNSET,
                tool_calls=sent or UNSET,
                reasoning_content=kept.get("reasoning_content", UNSET) if replay else UNSET,
                reasoning=kept.get("reasoning", UNSET) if replay else UNSET,
                reasoning_details=self._details(message) or UNSET,
            )
        )

    def _call(self, part: PromptCall) -> CallPart:
        kept = unpack(part.provider_metadata, self._origin) or Kept(origin="")
        arguments = bytes(part.input).decode("utf-8", "replace")
        return CallPart(
            id=wire_call_id(part.id),
            function=FunctionPart(name=self._names.wire(part.name), arguments=arguments),
            extra_content=kept.extra,
        )

    def _thoughts(self, message: PromptMessage) -> dict[str, str]:
        """Between the calls of one turn a server wants its own thoughts back, if any; later it
        would refuse or ignore them."""
        thoughts: dict[str, str] = {}
        for part in message.parts:
            if isinstance(part, PromptReasoning):
                kept = unpack(part.provider_metadata, self._origin)
                if kept is not None and kept.field:
                    thoughts[kept.field] = thoughts.get(kept.field, "") + part.text
        return thoughts

    def _details(self, message: PromptMessage) -> list[Raw]:
        details: list[Raw] = []
        for part in message.parts:
            if isinstance(part, PromptReasoning):
                kept = unpack(part.provider_metadata, self._origin)
                details.extend(() if kept is None else kept.details)
        return details

    def _result(self, part: PromptResult) -> None:
        text = part.text
        if part.media is not None:
            shown = _part(part.media, self._dialect.accepts)
            if isinstance(shown, TextPart):
                text = "\n\n".join(piece for piece in (text, shown.text) if piece)
            else:
                label = f"[What the call {wire_call_id(part.id)} of {part.name} gave:]"
                self._pictures += [TextPart(text=label), shown]
                text = text or "[The output follows as a picture.]"
        self.messages.append(Message(role="tool", tool_call_id=wire_call_id(part.id), content=text))

    def _show_pictures(self) -> None:
        if self._pictures:
            pictures, self._pictures = self._pictures, []
            self._user(pictures)


def _joined(message: PromptMessage) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText))


def _content(message: PromptMessage, accepts: Accepts) -> list[ContentPart]:
    content: list[ContentPart] = []
    for part in message.parts:
        if isinstance(part, PromptText):
            content.append(TextPart(text=part.text))
        elif isinstance(part, PromptFile):
            content.append(_part(part, accepts))
    return content


def _part(file: PromptFile, accepts: Accepts) -> ContentPart:
    fitted = fit(file, accepts)
    match fitted:
        case Image():
            return ImagePart(image_url=Url(_data_url(fitted.media_type, fitted.data)))
        case Document():
            data = _data_url(fitted.media_type, fitted.data)
            return FilePart(file=FileData(filename=fitted.name or "document.pdf", file_data=data))
        case TextFile():
            return TextPart(text=as_text(fitted))
        case Note():
            return TextPart(text=fitted.text)
        case Media():
            return TextPart(text=f"[A file ({fitted.media_type}) is not shown.]")


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _signed(calls: list[CallPart]) -> list[CallPart]:
    """One signature is enough for the calls of a step."""
    if any(call.extra_content is not UNSET for call in calls):
        return calls
    first = calls[0]
    signed = CallPart(id=first.id, function=first.function, extra_content=SIGNATURE)
    return [signed, *calls[1:]]
