"""Encodes a request as the body of `POST /responses`.

Each request contains the whole history: nothing depends on what the API may have stored. Items of
an answer are sent back unchanged if their group is complete. The API rejects reasoning without the
item that followed it, and an item without the reasoning before it. An item that has lost its
reasoning is sent without its id; a search, which needs its id, is left out.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    ComputerTool,
    ForcedTool,
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.providers.file_inputs import (
    RESPONSES_FILES,
    DocumentInput,
    ImageInput,
    MediaInput,
    NoteInput,
    TextFileInput,
    data_url,
    file_text,
    fit_file,
)
from chatd.providers.http import encode_list
from chatd.providers.openai import responses_wire
from chatd.providers.openai.openai_models import (
    OpenAIOptions,
    fit_effort,
    known_model,
    model_family,
    supports_reasoning,
)
from chatd.providers.openai.openai_tools import (
    COMPUTER,
    OUTPUT_SCHEMA_NAME,
    WEB_SEARCH,
    build_functions,
    build_tool_names,
    fit_call_id,
    is_present,
    is_strict,
)
from chatd.providers.openai.responses_wire import (
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
    ResponsesMetadata,
    Screenshot,
    unpack_metadata,
)
from chatd.providers.options import add_extra_fields
from chatd.providers.sse import DECODE_ERRORS, decode_event
from chatd.providers.tool_schema import ToolNames, normalize_schema

# Input items


class DraftItem(Struct, frozen=True, kw_only=True):
    """An item of an answer. `bare` is the item without its id, None if it needs the id.

    `id` is the id of a reasoning item, `after` the id of the reasoning before this item.
    """

    item: InputItem
    bare: InputItem | None
    after: str | None = None
    id: str | None = None
    reasoning: bool = False


def drop_orphaned_items(drafts: Sequence[DraftItem]) -> list[InputItem]:
    """Walks backwards: reasoning stays if an item after it stays."""
    needed: set[str] = set()
    complete: set[str] = set()
    for draft in reversed(drafts):
        if draft.reasoning and draft.id is not None:
            if draft.id not in needed:
                continue
            complete.add(draft.id)
        if draft.after is not None:
            needed.add(draft.after)
    items: list[InputItem] = []
    for draft in drafts:
        if draft.reasoning:
            item = draft.item if draft.id is None or draft.id in complete else None
        else:
            item = draft.item if draft.after is None or draft.after in complete else draft.bare
        if item is not None:
            items.append(item)
    return items


# The API requires a screenshot as the output of a computer call; this is an empty one.
_EMPTY_SCREENSHOT: Final = Raw(
    b'"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ'
    b'AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="'
)


class InputBuilder:
    """Builds the items of one request. `system_role` is the role of system messages."""

    def __init__(self, origin: str, names: ToolNames, system_role: str) -> None:
        self.items: list[InputItem] = []
        self._origin = origin
        self._names = names
        self._system_role = system_role
        self._computer_calls: dict[ToolCallId, responses_wire.Item] = {}
        self._screen = _EMPTY_SCREENSHOT

    def add(self, message: PromptMessage) -> None:
        match message.role:
            case "system":
                if text := "\n\n".join(p.text for p in message.parts if isinstance(p, PromptText)):
                    self.items.append(Message(role=self._system_role, content=text))
            case "user":
                if content := _user_content(message):
                    self.items.append(Message(role="user", content=content))
            case "assistant":
                self.items.extend(drop_orphaned_items(self._drafts(message)))
            case "tool":
                for part in message.parts:
                    if isinstance(part, PromptResult) and not part.provider_executed:
                        self._result(part)

    # Answers

    def _drafts(self, message: PromptMessage) -> list[DraftItem]:
        drafts: list[DraftItem] = []
        texts: list[tuple[PromptText, ResponsesMetadata]] = []
        for part in message.parts:
            if isinstance(part, PromptText):
                metadata = unpack_metadata(
                    part.provider_metadata, self._origin
                ) or ResponsesMetadata(origin="")
                if texts and texts[-1][1].id != metadata.id:
                    drafts.extend(_messages(texts))
                    texts = []
                texts.append((part, metadata))
                continue
            drafts.extend(_messages(texts))
            texts = []
            draft = None
            if isinstance(part, PromptReasoning):
                draft = self._reasoning(part)
            elif isinstance(part, PromptCall):
                draft = self._search(part) if part.provider_executed else self._call(part)
            if draft is not None:
                drafts.append(draft)
        drafts.extend(_messages(texts))
        return drafts

    def _reasoning(self, part: PromptReasoning) -> DraftItem | None:
        """A reasoning item, or an item of unknown type that is sent back unchanged."""
        metadata = unpack_metadata(part.provider_metadata, self._origin)
        if metadata is None or metadata.item is UNSET:
            return None
        try:
            if decode_event(responses_wire.HEAD, metadata.item).type != "reasoning":
                return DraftItem(item=metadata.item, bare=None, after=metadata.after)
            sealed = decode_event(_SEALED, metadata.item)
        except DECODE_ERRORS:
            return None
        if not sealed.encrypted_content and not sealed.content:
            return None
        return DraftItem(
            item=metadata.item, bare=None, id=metadata.id, after=metadata.after, reasoning=True
        )

    def _search(self, part: PromptCall) -> DraftItem | None:
        metadata = unpack_metadata(part.provider_metadata, self._origin)
        if metadata is None or metadata.item is UNSET:
            return None
        return DraftItem(item=metadata.item, bare=None, after=metadata.after)

    def _call(self, part: PromptCall) -> DraftItem:
        metadata = unpack_metadata(part.provider_metadata, self._origin)
        if metadata is not None and metadata.item is not UNSET:
            computer = _computer_call(metadata.item)
            if computer is not None:
                self._computer_calls[part.id] = computer
                bare = _without_id(metadata.item)
                return DraftItem(item=metadata.item, bare=bare, after=metadata.after)
        bare = FunctionCall(
            call_id=fit_call_id(part.id),
            name=self._names.to_wire(part.name),
            arguments=bytes(part.input).decode("utf-8", "replace"),
        )
        if metadata is None:
            return DraftItem(item=bare, bare=bare)
        # The API rejects an id without the prefix of its item type.
        own = metadata.id if metadata.id is not None and metadata.id.startswith("fc") else UNSET
        item = msgspec.structs.replace(bare, id=own)
        return DraftItem(item=item, bare=bare, after=metadata.after)

    # Tool results

    def _result(self, part: PromptResult) -> None:
        call = self._computer_calls.get(part.id)
        if call is not None:
            self._screenshot(part, call)
            return
        output: str | list[InputContent] = part.text
        if part.media is not None:
            output = [InputText(text=part.text)] if part.text else []
            output.append(_file(part.media))
        self.items.append(FunctionCallOutput(call_id=fit_call_id(part.id), output=output))

    def _screenshot(self, part: PromptResult, call: responses_wire.Item) -> None:
        """Acknowledges the safety checks: the result shows that a user has handled them."""
        shown = None if part.media is None else _file(part.media)
        if isinstance(shown, InputImage):
            self._screen = shown.image_url
        elif not part.is_error:
            self._screen = _EMPTY_SCREENSHOT  # an old one, which has left the prompt
        checks = call.pending_safety_checks
        self.items.append(
            ComputerCallOutput(
                call_id=call.call_id or part.id,
                output=Screenshot(image_url=self._screen, detail="original"),
                acknowledged_safety_checks=checks if is_present(checks) else UNSET,
            )
        )
        if not isinstance(shown, InputImage):
            text = f"[The action on the computer returned no screenshot: {part.text}]"
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
    fitted = fit_file(file, RESPONSES_FILES)
    match fitted:
        case ImageInput():
            url = data_url(fitted)
            return InputImage(image_url=url, detail="auto")
        case DocumentInput():
            url = data_url(fitted)
            return InputFile(filename=fitted.name or "document.pdf", file_data=url)
        case TextFileInput():
            return InputText(text=file_text(fitted))
        case NoteInput():
            return InputText(text=fitted.text)
        case MediaInput():
            return InputText(text=f"[A file ({fitted.media_type}) is not shown.]")


def _messages(texts: list[tuple[PromptText, ResponsesMetadata]]) -> list[DraftItem]:
    """Merge texts that arrived as one message."""
    if not texts:
        return []
    metadata = texts[0][1]
    phase = metadata.phase or UNSET
    whole = "\n\n".join(part.text for part, _ in texts)
    bare = Message(role="assistant", content=whole, phase=phase)
    if metadata.id is None or not metadata.id.startswith("msg"):
        return [DraftItem(item=bare, bare=bare, after=metadata.after)]
    content: list[OutputText | Refusal] = [
        Refusal(refusal=part.text) if own.refusal else OutputText(text=part.text, annotations=[])
        for part, own in texts
    ]
    item = OutputMessage(
        id=metadata.id, role="assistant", status="completed", content=content, phase=phase
    )
    return [DraftItem(item=item, bare=bare, after=metadata.after)]


class _Sealed(Struct, frozen=True):
    encrypted_content: str | None = None
    content: list[Raw] | None = None


_SEALED: Final = msgspec.json.Decoder(_Sealed)
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])


def _computer_call(raw: Raw) -> responses_wire.Item | None:
    try:
        item = decode_event(responses_wire.ITEM, raw)
    except DECODE_ERRORS:
        return None
    return item if item.type == "computer_call" else None


def _without_id(raw: Raw) -> Raw:
    fields = decode_event(_FIELDS, raw)
    fields.pop("id", None)
    return Raw(msgspec.json.encode(fields))


# The body: which parameters a model takes, and in which form.

MIN_OUTPUT_TOKENS: Final = 16
"""The API rejects a smaller output limit."""

Body = dict[str, object]


def responses_tool_names(request: ModelRequest, options: OpenAIOptions) -> ToolNames:
    """A function cannot have the name of a provider-executed tool."""
    reserved = [COMPUTER] if request.computer else []
    if options.web_search_enabled:
        reserved.append(WEB_SEARCH)
    return build_tool_names(request, reserved)


def encode_request(
    request: ModelRequest, options: OpenAIOptions, names: ToolNames, origin: str
) -> bytes:
    """`origin` identifies the account: metadata is sent back only to the account that made it."""
    is_reasoning = _is_reasoning(request, options)
    builder = InputBuilder(origin, names, "developer" if is_reasoning else "system")
    for message in request.messages:
        builder.add(message)
    body: Body = {
        "model": request.model,
        "input": encode_list(builder.items),
        "stream": True,
        "store": options.store is True,
        "include": _include(options, is_reasoning=is_reasoning),
        "instructions": options.instructions,
        "max_output_tokens": _max_output_tokens(request, options),
        "max_tool_calls": options.max_tool_calls,
        "metadata": options.metadata,
        "prompt_cache_key": options.prompt_cache_key or request.cache_key,
        "safety_identifier": options.safety_identifier,
        "service_tier": options.service_tier,
        "user": options.user,
        "text": _text(request, options) or None,
        **(_reasoning(request, options) if is_reasoning else _sampling(request, options)),
        **_tools(request, options, names),
    }
    sent = {name: value for name, value in body.items() if value is not None}
    required = {"model", "input", "stream", "include", "tools"}
    if request.tool_choice != "auto":
        required.add("tool_choice")
    return msgspec.json.encode(add_extra_fields(sent, options.extra_body, required))


def _is_reasoning(request: ModelRequest, options: OpenAIOptions) -> bool:
    """With an unknown name, a configured or requested effort decides."""
    known = supports_reasoning(known_model(request.model, options))
    if known is not None:
        return known
    return request.reasoning_effort is not None or options.reasoning_effort is not None


def _reasoning(request: ModelRequest, options: OpenAIOptions) -> Body:
    effort = request.reasoning_effort or options.reasoning_effort
    reasoning: Body = {}
    if effort is not None:
        reasoning["effort"] = fit_effort(effort, known_model(request.model, options))
    if options.reasoning_summary is not None:
        reasoning["summary"] = options.reasoning_summary
    return {"reasoning": reasoning} if reasoning else {}


def _sampling(request: ModelRequest, options: OpenAIOptions) -> Body:
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_logprobs": options.top_log_probs,
    }


def _include(options: OpenAIOptions, *, is_reasoning: bool) -> list[str] | None:
    """Always encrypted reasoning, because reasoning is lost between turns without it. A model that
    does not reason rejects the field."""
    fields = list(options.include)
    if is_reasoning:
        fields.append("reasoning.encrypted_content")
    elif options.log_probs or options.top_log_probs is not None:
        fields.append("message.output_text.logprobs")
    if options.web_search_enabled:
        fields.append("web_search_call.action.sources")
    return list(dict.fromkeys(fields)) or None


def _max_output_tokens(request: ModelRequest, options: OpenAIOptions) -> int | None:
    limit = options.max_completion_tokens or request.max_output_tokens
    return None if limit is None else max(MIN_OUTPUT_TOKENS, limit)


def _text(request: ModelRequest, options: OpenAIOptions) -> Body:
    text: Body = {}
    if options.text_verbosity is not None:
        text["verbosity"] = options.text_verbosity
    if request.output_schema is not UNSET:
        schema = normalize_schema(request.output_schema)
        strict = options.strict_json_schema and is_strict(schema)
        text["format"] = (
            {"type": "json_schema", "name": OUTPUT_SCHEMA_NAME, "schema": schema, "strict": strict}
            if options.structured_outputs
            else {"type": "json_object"}
        )
    return text


def _tools(request: ModelRequest, options: OpenAIOptions, names: ToolNames) -> Body:
    tools: list[Body] = [
        {"type": "function", **msgspec.structs.asdict(function)}
        for function in build_functions(request, names, strict=options.strict_json_schema)
    ]
    if options.web_search_enabled:
        tools.append(_web_search(options))
    found: Body = {}
    if request.computer is not None:
        tools.append(_computer(request.computer, request.model))
        if _is_preview(request.model):
            found["truncation"] = "auto"
    if not tools:
        return found
    found["tools"] = tools
    found["tool_choice"] = _tool_choice(request, names)
    found["parallel_tool_calls"] = options.parallel_tool_calls
    return found


def _tool_choice(request: ModelRequest, names: ToolNames) -> object:
    choice = request.tool_choice
    if not isinstance(choice, ForcedTool):
        return choice
    if request.computer is not None and choice.name == COMPUTER:
        return {"type": _computer(request.computer, request.model)["type"]}
    return {"type": "function", "name": names.to_wire(choice.name)}


def _web_search(options: OpenAIOptions) -> Body:
    tool: Body = {"type": WEB_SEARCH}
    if options.search_context_size is not None:
        tool["search_context_size"] = options.search_context_size
    if options.allowed_domains:
        tool["filters"] = {"allowed_domains": options.allowed_domains}
    return tool


def _is_preview(model: str) -> bool:
    return model_family(model).startswith("computer-use-preview")


def _computer(tool: ComputerTool, model: str) -> Body:
    """Newer models take the size from the screenshots."""
    if not _is_preview(model):
        return {"type": "computer"}
    return {
        "type": "computer_use_preview",
        "display_width": tool.width_px,
        "display_height": tool.height_px,
        "environment": "linux",
    }
