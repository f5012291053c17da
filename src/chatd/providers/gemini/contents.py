"""A conversation as Gemini wants it: turns of user and model, every call answered in the next.

Parts of the model's own answers go back as they came, with their signatures,
as long as the same model is asked. What another model has thought is left out.
"""

import base64
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.domain.chat.parts import validate_json
from chatd.domain.model.protocol import (
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.providers.files import GEMINI, Document, Image, Media, Note, TextFile, as_text, fit
from chatd.providers.gemini.models import Profile
from chatd.providers.gemini.wire import Mark, mark_of
from chatd.providers.schema import ToolNames

Object = dict[str, object]

# What Google documents for calls that it has not made itself, from another model's history.
NO_SIGNATURE: Final = "skip_thought_signature_validator"

_RESULT_MEDIA: Final = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf"})


class Contents(Struct, frozen=True, kw_only=True):
    system: str
    contents: list[Object]


def encode_contents(request: ModelRequest, kind: Profile, names: ToolNames) -> Contents:
    leading = 0
    while leading < len(request.messages) and request.messages[leading].role == "system":
        leading += 1
    texts = [_plain_text(message) for message in request.messages[:leading]]
    writer = _Writer(request.model, kind, names)
    for message in request.messages[leading:]:
        writer.add(message)
    return Contents(system="\n\n".join(text for text in texts if text), contents=writer.finished())


class _Writer:
    """Results are gathered until all that answer one turn are there, then put into the order of
    its calls."""

    def __init__(self, model: str, kind: Profile, names: ToolNames) -> None:
        self._model = model
        self._kind = kind
        self._names = names
        self._contents: list[Object] = []
        self._calls: dict[str, tuple[int, Mark | None]] = {}
        self._results: list[tuple[int, Object]] = []
        self._shown: list[Object] = []

    def add(self, message: PromptMessage) -> None:
        match message.role:
            case "tool":
                for part in message.parts:
                    if isinstance(part, PromptResult) and not part.provider_executed:
                        self._result(part)
            case "assistant":
                self._flush()
                self._calls.clear()
                parts = self._model_parts(message)
                if parts:
                    self._append("model", parts)
            case "user" | "system":
                self._flush()
                parts = [encoded for part in message.parts for encoded in _user_part(part)]
                if parts:
                    self._contents.append({"role": "user", "parts": parts})

    def finished(self) -> list[Object]:
        self._flush()
        return self._contents

    def _append(self, role: str, parts: list[Object]) -> None:
        """Two turns of the model in a row are one: a call must follow the user."""
        last = self._contents[-1] if self._contents else None
        if last is not None and last["role"] == role:
            before = last["parts"]
            assert isinstance(before, list)
            last["parts"] = [*before, *parts]
        else:
            self._contents.append({"role": role, "parts": parts})

    def _flush(self) -> None:
        if self._results:
            ordered = [part for _, part in sorted(self._results, key=lambda pair: pair[0])]
            self._contents.append({"role": "user", "parts": ordered})
        if self._shown:
            self._contents.append({"role": "user", "parts": self._shown})
        self._results, self._shown = [], []

    # The model's turn

    def _model_parts(self, message: PromptMessage) -> list[Object]:
        parts: list[Object] = []
        answered = {part.id for part in message.parts if isinstance(part, PromptResult)}
        for part in message.parts:
            match part:
                case PromptText():
                    parts += _signed(part.text, self._mark(part.provider_metadata))
                case PromptReasoning():
                    # Thoughts are for people, and only summaries; what is signed goes back.
                    mark = self._mark(part.provider_metadata)
                    if mark is not None and mark.spans:
                        parts += [{**piece, "thought": True} for piece in _signed(part.text, mark)]
                case PromptCall() if part.provider_executed:
                    if part.id in answered:
                        parts += self._server_part(part.provider_metadata)
                case PromptCall():
                    parts.append(self._call(part))
                case PromptResult():
                    parts += self._server_part(part.provider_metadata)
                case PromptFile():
                    pass
        if self._kind.strict_signatures:
            _sign_first_call(parts)
        return parts

    def _mark(self, metadata: Raw | UnsetType) -> Mark | None:
        mark = mark_of(metadata)
        return mark if mark is not None and mark.model == self._model else None

    def _call(self, call: PromptCall) -> Object:
        mark = self._mark(call.provider_metadata)
        self._calls[call.id] = (len(self._calls), mark)
        function: Object = {"name": self._names.wire(call.name), "args": call.input}
        if mark is not None and mark.call_id is not None:
            function["id"] = mark.call_id
        part: Object = {"functionCall": function}
        if mark is not None and mark.signature is not None:
            part["thoughtSignature"] = mark.signature
        return part

    def _server_part(self, metadata: Raw | UnsetType) -> list[Object]:
        mark = self._mark(metadata)
        if mark is None or (mark.tool_call is UNSET and mark.tool_response is UNSET):
            return []
        part: Object = {}
        if mark.tool_call is not UNSET:
            part["toolCall"] = mark.tool_call
        if mark.tool_response is not UNSET:
            part["toolResponse"] = mark.tool_response
        if mark.signature is not None:
            part["thoughtSignature"] = mark.signature
        return [part]

    # Results

    def _result(self, result: PromptResult) -> None:
        order, mark = self._calls.get(result.id, (len(self._calls), None))
        response: Object = {
            "name": self._names.wire(result.name),
            "response": _response(result),
        }
        if mark is not None and mark.call_id is not None:
            response["id"] = mark.call_id
        if result.media is not None:
            self._media(result.media, response)
        self._results.append((order, {"functionResponse": response}))

    def _media(self, media: PromptFile, response: Object) -> None:
        [part] = _user_part(media)
        inline = part.get("inlineData")
        if (
            self._kind.media_results
            and isinstance(inline, dict)
            and media.media_type in _RESULT_MEDIA
        ):
            response["parts"] = [part]
        else:
            self._shown.append(part)


def _response(result: PromptResult) -> Object | Raw:
    """An object as it is; anything else under the name the API has for it."""
    if result.is_error:
        return {"error": result.text}
    if result.text.lstrip().startswith("{"):
        try:
            return validate_json(result.text)
        except ValueError:
            pass
    return {"output": result.text}


def _sign_first_call(parts: list[Object]) -> None:
    first = next((part for part in parts if "functionCall" in part), None)
    if first is not None:
        first.setdefault("thoughtSignature", NO_SIGNATURE)


def _signed(text: str, mark: Mark | None) -> list[Object]:
    """The text in the pieces in which it was signed."""
    parts: list[Object] = []
    at = 0
    for span in mark.spans if mark is not None else ():
        if span.start > at:
            parts.append({"text": text[at : span.start]})
        parts.append({"text": text[span.start : span.end], "thoughtSignature": span.signature})
        at = span.end
    if rest := text[at:]:
        parts.append({"text": rest})
    return parts


def _user_part(part: PromptPart) -> list[Object]:
    match part:
        case PromptText():
            return [{"text": part.text}] if part.text else []
        case PromptFile():
            return [_file(part)]
        case _:
            return []


def _file(file: PromptFile) -> Object:
    match fit(file, GEMINI):
        case Image() | Document() | Media() as media:
            data = base64.b64encode(media.data).decode()
            return {"inlineData": {"mimeType": media.media_type, "data": data}}
        case TextFile() as text:
            return {"text": as_text(text)}
        case Note() as note:
            return {"text": note.text}


def _plain_text(message: PromptMessage) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText))
