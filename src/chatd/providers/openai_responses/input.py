"""A conversation as the input items of a response.

Everything is sent in full, each time: nothing depends on what the API may have
stored. What came from it goes back as it came, as long as it still stands
together, which is the business of `drafts`.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.providers.files import RESPONSES, Document, Image, Media, Note, TextFile, as_text, fit
from chatd.providers.openai_responses import wire
from chatd.providers.openai_responses.drafts import DraftItem, standing_together
from chatd.providers.openai_responses.sent import (
    ComputerCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputContent,
    InputFile,
    InputImage,
    InputItem,
    InputText,
    Message,
    OutputMessage,
    OutputText,
    Refusal,
    Screenshot,
    data_url,
)
from chatd.providers.openai_responses.tools import given
from chatd.providers.openai_responses.wire import Kept, unpack
from chatd.providers.openai_tools import wire_call_id
from chatd.providers.reading import UNREADABLE, read
from chatd.providers.schema import ToolNames

# A computer call must be answered with a picture, also if there is none.
_NO_PICTURE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class InputBuilder:
    """Builds the items of one request. `system_role` is what the model calls our system."""

    def __init__(self, origin: str, names: ToolNames, system_role: str) -> None:
        self.items: list[InputItem] = []
        self._origin = origin
        self._names = names
        self._system_role = system_role
        self._computer_calls: dict[ToolCallId, wire.Item] = {}
        self._screen = _NO_PICTURE

    def add(self, message: PromptMessage) -> None:
        match message.role:
            case "system":
                if text := "\n\n".join(p.text for p in message.parts if isinstance(p, PromptText)):
                    self.items.append(Message(role=self._system_role, content=text))
            case "user":
                if content := _user_content(message):
                    self.items.append(Message(role="user", content=content))
            case "assistant":
                self.items.extend(standing_together(self._drafts(message)))
            case "tool":
                for part in message.parts:
                    if isinstance(part, PromptResult) and not part.provider_executed:
                        self._result(part)

    # What the model said

    def _drafts(self, message: PromptMessage) -> list[DraftItem]:
        drafts: list[DraftItem] = []
        said: list[tuple[PromptText, Kept]] = []
        for part in message.parts:
            if isinstance(part, PromptText):
                kept = unpack(part.provider_metadata, self._origin) or Kept(origin="")
                if said and said[-1][1].id != kept.id:
                    drafts.extend(_messages(said))
                    said = []
                said.append((part, kept))
                continue
            drafts.extend(_messages(said))
            said = []
            draft = None
            if isinstance(part, PromptReasoning):
                draft = self._reasoning(part)
            elif isinstance(part, PromptCall):
                draft = self._search(part) if part.provider_executed else self._call(part)
            if draft is not None:
                drafts.append(draft)
        drafts.extend(_messages(said))
        return drafts

    def _reasoning(self, part: PromptReasoning) -> DraftItem | None:
        """Reasoning, or an item of a kind that we do not know and only carry."""
        kept = unpack(part.provider_metadata, self._origin)
        if kept is None or kept.item is UNSET:
            return None
        try:
            if read(wire.HEAD, kept.item).type != "reasoning":
                return DraftItem(item=kept.item, bare=None, after=kept.after)
            sealed = read(_SEALED, kept.item)
        except UNREADABLE:
            return None
        if not sealed.encrypted_content and not sealed.content:
            return None
        return DraftItem(item=kept.item, bare=None, id=kept.id, after=kept.after, reasoning=True)

    def _search(self, part: PromptCall) -> DraftItem | None:
        kept = unpack(part.provider_metadata, self._origin)
        if kept is None or kept.item is UNSET:
            return None
        return DraftItem(item=kept.item, bare=None, after=kept.after)

    def _call(self, part: PromptCall) -> DraftItem:
        kept = unpack(part.provider_metadata, self._origin)
        if kept is not None and kept.item is not UNSET:
            computer = _computer_call(kept.item)
            if computer is not None:
                self._computer_calls[part.id] = computer
                bare = _without_id(kept.item)
                return DraftItem(item=kept.item, bare=bare, after=kept.after)
        bare = FunctionCall(
            call_id=wire_call_id(part.id),
            name=self._names.wire(part.name),
            arguments=bytes(part.input).decode("utf-8", "replace"),
        )
        if kept is None:
            return DraftItem(item=bare, bare=bare)
        # The API refuses an id that does not say what it is the id of.
        own = kept.id if kept.id is not None and kept.id.startswith("fc") else UNSET
        item = msgspec.structs.replace(bare, id=own)
        return DraftItem(item=item, bare=bare, after=kept.after)

    # What the tools answered

    def _result(self, part: PromptResult) -> None:
        call = self._computer_calls.get(part.id)
        if call is not None:
            self._screenshot(part, call)
            return
        output: str | list[InputContent] = part.text
        if part.media is not None:
            output = [InputText(text=part.text)] if part.text else []
            output.append(_file(part.media))
        self.items.append(FunctionCallOutput(call_id=wire_call_id(part.id), output=output))

    def _screenshot(self, part: PromptResult, call: wire.Item) -> None:
        """Somebody has run the action, or refused to: the checks have been seen."""
        shown = None if part.media is None else _file(part.media)
        if isinstance(shown, InputImage):
            self._screen = shown.image_url
        checks = call.pending_safety_checks
        self.items.append(
            ComputerCallOutput(
                call_id=call.call_id or part.id,
                output=Screenshot(image_url=self._screen, detail="original"),
                acknowledged_safety_checks=checks if given(checks) else UNSET,
            )
        )
        if not isinstance(shown, InputImage):
            text = f"[The action on the computer gave no picture: {part.text}]"
            self.items.append(Message(role="user", content=[InputText(text=text)]))


def _user_content(message: PromptMessage) -> list[InputContent]:
    content: list[InputContent] = []
    for part in message.parts:
        if isinstance(part, PromptText):
            content.append(InputText(text=part.text))
        elif isinstance(part, PromptFile):
            content.append(_file(part))
    return content


def _file(file: PromptFile) -> InputContent:
    fitted = fit(file, RESPONSES)
    match fitted:
        case Image():
            url = data_url(fitted.media_type, fitted.data)
            return InputImage(image_url=url, detail="auto")
        case Document():
            url = data_url(fitted.media_type, fitted.data)
            return InputFile(filename=fitted.name or "document.pdf", file_data=url)
        case TextFile():
            return InputText(text=as_text(fitted))
        case Note():
            return InputText(text=fitted.text)
        case Media():
            return InputText(text=f"[A file ({fitted.media_type}) is not shown.]")


def _messages(said: list[tuple[PromptText, Kept]]) -> list[DraftItem]:
    """Texts that were one message become one again."""
    if not said:
        return []
    kept = said[0][1]
    phase = kept.phase or UNSET
    whole = "\n\n".join(part.text for part, _ in said)
    bare = Message(role="assistant", content=whole, phase=phase)
    if kept.id is None or not kept.id.startswith("msg"):
        return [DraftItem(item=bare, bare=bare, after=kept.after)]
    content: list[OutputText | Refusal] = [
        Refusal(refusal=part.text) if of.refusal else OutputText(text=part.text, annotations=[])
        for part, of in said
    ]
    item = OutputMessage(
        id=kept.id, role="assistant", status="completed", content=content, phase=phase
    )
    return [DraftItem(item=item, bare=bare, after=kept.after)]


class _Sealed(Struct, frozen=True):
    encrypted_content: str | None = None
    content: list[Raw] | None = None


_SEALED: Final = msgspec.json.Decoder(_Sealed)
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])


def _computer_call(raw: Raw) -> wire.Item | None:
    try:
        item = read(wire.ITEM, raw)
    except UNREADABLE:
        return None
    return item if item.type == "computer_call" else None


def _without_id(raw: Raw) -> Raw:
    fields = read(_FIELDS, raw)
    fields.pop("id", None)
    return Raw(msgspec.json.encode(fields))
