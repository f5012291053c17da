"""Encode a history as the messages of a completion.

The texts of a message are joined, because many servers take no lists. Images of tool results follow
all results of their step, because a tool message takes no image and no other message may stand
between a call and its result.
"""

from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from chatd.domain.model.protocol import (
    AcceptedFiles,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.text import Json
from chatd.providers.file_inputs import (
    DocumentInput,
    ImageInput,
    MediaInput,
    NoteInput,
    TextFileInput,
    data_url,
    file_text,
    fit_file,
)
from chatd.providers.openai.chat_dialect import ChatDialect
from chatd.providers.openai.chat_wire import ChatMetadata, unpack_metadata
from chatd.providers.openai.openai_tools import fit_call_id
from chatd.providers.tool_schema import ToolNames


class _Typed(Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class CacheControl(Struct, frozen=True):
    type: str = "ephemeral"


class TextPart(_Typed, frozen=True, kw_only=True, tag="text"):
    text: str
    cache_control: CacheControl | UnsetType = UNSET


class Url(Struct, frozen=True):
    url: Raw


class ImagePart(_Typed, frozen=True, kw_only=True, tag="image_url"):
    image_url: Url


class FileData(Struct, frozen=True, kw_only=True):
    filename: str
    file_data: Raw


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
    prefix: bool | UnsetType = UNSET


SKIP_SIGNATURE_CONTENT: Final = Raw(
    b'{"google":{"thought_signature":"skip_thought_signature_validator"}}'
)
"""Google's documented signature for calls that another model has made."""


class ChatMessageBuilder:
    """Builds the messages of one request. `signed`: the model requires signatures on calls.
    `marks_cache`: the gateway caches up to marked texts only."""

    def __init__(
        self,
        origin: str,
        names: ToolNames,
        dialect: ChatDialect,
        *,
        system_role: str,
        signed: bool,
        marks_cache: bool = False,
    ) -> None:
        self.messages: list[Message] = []
        self._origin = origin
        self._names = names
        self._dialect = dialect
        self._system_role = system_role
        self._signed = signed
        self._marks_cache = marks_cache
        self._media: list[ContentPart] = []
        self.is_tool_turn = False

    def add(self, message: PromptMessage, *, current: bool) -> None:
        """`current`: the message belongs to the current turn."""
        if message.role != "tool":
            self._add_media()
        match message.role:
            case "system":
                self._system(_joined(message))
            case "user":
                self.is_tool_turn = False
                self._user(_content(message, self._dialect.accepted_files))
            case "assistant":
                self._assistant(message, current=current)
            case "tool":
                for part in message.parts:
                    if isinstance(part, PromptResult) and not part.provider_executed:
                        self._result(part)

    def build(self) -> list[Message]:
        self._add_media()
        return _mark_cache(self.messages) if self._marks_cache else self.messages

    def _system(self, text: str) -> None:
        """Merges leading system messages, because many models take only one."""
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
        self.is_tool_turn = self.is_tool_turn or bool(sent)
        reasoning = self._reasoning(message)
        text = _tagged(reasoning) + text
        self.messages.append(
            Message(
                role="assistant",
                content=text or UNSET,
                tool_calls=sent or UNSET,
                reasoning_content=reasoning.get("reasoning_content", UNSET),
                reasoning=reasoning.get("reasoning", UNSET),
                reasoning_details=self._details(message) or UNSET,
            )
        )

    def _call(self, part: PromptCall) -> CallPart:
        metadata = unpack_metadata(part.provider_metadata, self._origin) or ChatMetadata(origin="")
        arguments = bytes(part.input).decode("utf-8", "replace")
        return CallPart(
            id=fit_call_id(part.id),
            function=FunctionPart(name=self._names.to_wire(part.name), arguments=arguments),
            extra_content=metadata.extra,
        )

    def _reasoning(self, message: PromptMessage) -> dict[str, str]:
        """The reasoning that the server expects back, by field."""
        replay = self._dialect.reasoning_replay
        if replay == "none" or (replay == "tool_turns" and not self.is_tool_turn):
            return {}
        texts: dict[str, str] = {}
        for part in message.parts:
            if isinstance(part, PromptReasoning):
                metadata = unpack_metadata(part.provider_metadata, self._origin)
                if metadata is not None and metadata.field:
                    texts[metadata.field] = texts.get(metadata.field, "") + part.text
        missing = self._dialect.missing_reasoning
        if missing is not None and self.is_tool_turn and not any(texts.values()):
            return {"reasoning_content": missing}
        return texts

    def _details(self, message: PromptMessage) -> list[Raw]:
        details: list[Raw] = []
        for part in message.parts:
            if isinstance(part, PromptReasoning):
                metadata = unpack_metadata(part.provider_metadata, self._origin)
                details.extend(() if metadata is None else metadata.details)
        return details

    def _result(self, part: PromptResult) -> None:
        text = part.text
        if part.media is not None:
            shown = _part(part.media, self._dialect.accepted_files)
            if isinstance(shown, TextPart):
                text = "\n\n".join(piece for piece in (text, shown.text) if piece)
            else:
                label = f"[Output of the call {fit_call_id(part.id)} of {part.name}:]"
                self._media += [TextPart(text=label), shown]
                text = text or "[The output follows as an image.]"
        self.messages.append(Message(role="tool", tool_call_id=fit_call_id(part.id), content=text))

    def _add_media(self) -> None:
        if self._media:
            media, self._media = self._media, []
            self._user(media)


def is_sent(answer: PromptMessage) -> bool:
    """An answer that consists of reasoning only is left out."""
    return bool(_joined(answer)) or any(
        isinstance(part, PromptCall) and not part.provider_executed for part in answer.parts
    )


def _joined(message: PromptMessage) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText))


def _content(message: PromptMessage, accepts: AcceptedFiles) -> list[ContentPart]:
    content: list[ContentPart] = []
    for part in message.parts:
        if isinstance(part, PromptText):
            content.append(TextPart(text=part.text))
        elif isinstance(part, PromptFile):
            content.append(_part(part, accepts))
    return content


def _part(file: PromptFile, accepts: AcceptedFiles) -> ContentPart:
    fitted = fit_file(file, accepts)
    match fitted:
        case ImageInput():
            return ImagePart(image_url=Url(data_url(fitted)))
        case DocumentInput():
            data = data_url(fitted)
            return FilePart(file=FileData(filename=fitted.name or "document.pdf", file_data=data))
        case TextFileInput():
            return TextPart(text=file_text(fitted))
        case NoteInput():
            return TextPart(text=fitted.text)
        case MediaInput():
            return TextPart(text=f"[A file ({fitted.media_type}) is not shown.]")


def _signed(calls: list[CallPart]) -> list[CallPart]:
    """One signature is enough for all calls of a step."""
    if any(call.extra_content is not UNSET for call in calls):
        return calls
    first = calls[0]
    signed = CallPart(id=first.id, function=first.function, extra_content=SKIP_SIGNATURE_CONTENT)
    return [signed, *calls[1:]]


def _tagged(reasoning: dict[str, str]) -> str:
    """Reasoning that came in the text, as it came."""
    return "".join(
        f"{field}{text}</{field[1:]}" for field, text in reasoning.items() if field[0] == "<"
    )


def _mark_cache(messages: list[Message]) -> list[Message]:
    """Mark the system message, the end of the request and the end of the request before it.

    All texts become lists, so that a request differs from the next one in its marks only.
    """
    last = len(messages) - 1
    ends = [
        number
        for number, message in enumerate(messages)
        if message.role in ("user", "tool")
        and (number == last or messages[number + 1].role == "assistant")
    ]
    marked = {0, *ends[-2:]}
    return [
        message
        if message.role == "assistant"
        else structs.replace(message, content=_as_parts(message.content, mark=number in marked))
        for number, message in enumerate(messages)
    ]


def _as_parts(content: str | list[ContentPart] | UnsetType, *, mark: bool) -> list[ContentPart]:
    if content is UNSET:
        return []
    parts: list[ContentPart] = [TextPart(text=content)] if isinstance(content, str) else [*content]
    texts = [n for n, part in enumerate(parts) if isinstance(part, TextPart) and part.text.strip()]
    if mark and texts:
        part = parts[texts[-1]]
        assert isinstance(part, TextPart)
        parts[texts[-1]] = structs.replace(part, cache_control=CacheControl())
    return parts
