"""Usage of a model call: what the provider reported, completed by estimates."""

from typing import Final, Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart, ToolCallPart
from chatd.domain.model.protocol import (
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
    ToolSpec,
)
from chatd.domain.text import Json

BYTES_PER_TOKEN: Final = 4
IMAGE_TOKENS: Final = 1_600
"""The most that a vendor charges for an image of usual size."""
MIN_LEARNED_TOKENS: Final = 200
"""In a smaller prompt, what a provider adds to every request counts more than the text."""
_MIN_INPUT_RATIO: Final = 0.5
_MAX_INPUT_RATIO: Final = 3.0
_NEWEST_SHARE: Final = 0.25
_FILE_BYTES_PER_TOKEN: Final = 40
_PART_OVERHEAD_BYTES: Final = 16


def merge_usage(old: TokenUsage, new: TokenUsage) -> TokenUsage:
    """Replace the counts that `new` has."""
    told = {
        name: value
        for name in TokenUsage.__struct_fields__
        if (value := getattr(new, name)) not in (0, None, False)
    }
    return replace(old, **told)


def complete_usage(
    told: TokenUsage, *, is_final: bool, expected: TokenUsage, output_tokens: int
) -> TokenUsage:
    """Fill in the estimates of the input (`expected`) and of `output_tokens` where the provider
    reported nothing.

    Before the end a provider may have reported part of the output, so the larger number counts. A
    request always has input tokens: a count of 0 means that it is not known.
    """
    has_input = told.input_tokens + told.cache_read_tokens + told.cache_creation_tokens > 0
    has_output = is_final and (told.output_tokens > 0 or output_tokens == 0)
    if has_input and has_output:
        return told
    if not has_input:
        read, cached = expected.input_tokens, expected.cache_read_tokens
        told = replace(told, input_tokens=read, cache_read_tokens=cached)
    written = told.output_tokens if has_output else max(told.output_tokens, output_tokens)
    read = told.input_tokens + told.cache_read_tokens + told.cache_creation_tokens
    return replace(told, output_tokens=written, total_tokens=read + written, estimated=True)


def expected_input(tokens: int, before: TokenUsage | None) -> TokenUsage:
    """Estimate how the input of a call is billed if its provider does not report it. `before` is
    the usage of the answer before it, if the provider still has its prompt: what that call read
    from or wrote to the provider's cache is read from the cache again."""
    kept = 0 if before is None else before.cache_read_tokens + before.cache_creation_tokens
    cached = min(tokens, kept)
    return TokenUsage(input_tokens=tokens - cached, cache_read_tokens=cached)


def estimate_input_tokens(request: ModelRequest) -> int:
    """Count messages with the system prompt, tools and their schemas by their lengths alone."""
    counted = sum(_prompt_bytes(part) for message in request.messages for part in message.parts)
    counted += sum(_tool_bytes(tool) for tool in request.tools)
    counted += utf8_size(request.continues or "")
    return max(1, _tokens(counted))


def learn_input_ratio(ratio: float, estimated: int, told: TokenUsage) -> float:
    """How many input tokens a provider counts for one that `estimate_input_tokens` gives, after a
    call whose input it reported. 1.0 at first."""
    counted = told.context_tokens or (
        told.input_tokens + told.cache_read_tokens + told.cache_creation_tokens
    )
    if told.estimated or counted == 0 or estimated < MIN_LEARNED_TOKENS:
        return ratio
    seen = min(max(counted / estimated, _MIN_INPUT_RATIO), _MAX_INPUT_RATIO)
    return seen if ratio == 1.0 else ratio + (seen - ratio) * _NEWEST_SHARE


class PrefixLoss(Struct, frozen=True, kw_only=True):
    """What a request repeats of the previous one, and so what the provider's cache is good for.
    `cause` is the first difference; `tokens` of the previous request are lost, as an estimate."""

    cause: Literal["none", "tools", "settings", "history"]
    tokens: int


def prefix_loss(before: ModelRequest, after: ModelRequest) -> PrefixLoss:
    """Compare two requests of one chat. Texts that history still holds are compared by identity."""
    if before.tools != after.tools:
        return PrefixLoss(cause="tools", tokens=estimate_input_tokens(before))
    if _settings(before) != _settings(after):
        return PrefixLoss(cause="settings", tokens=estimate_input_tokens(before))
    same = 0
    for one, other in zip(before.messages, after.messages, strict=False):
        if one != other:
            break
        same += 1
    if same == len(before.messages):
        return PrefixLoss(cause="none", tokens=0)
    lost = sum(_prompt_bytes(part) for one in before.messages[same:] for part in one.parts)
    return PrefixLoss(cause="history", tokens=_tokens(lost))


def has_files(request: ModelRequest) -> bool:
    return any(
        isinstance(part, PromptFile) or (isinstance(part, PromptResult) and part.media is not None)
        for message in request.messages
        for part in message.parts
    )


def _settings(request: ModelRequest) -> tuple[object, ...]:
    """What providers put before the messages, or what changes how they read them."""
    return request.model, request.reasoning_effort, request.tool_choice, request.computer


def estimate_output_tokens(size: int) -> int:
    """Estimate the tokens of that many streamed bytes."""
    return _tokens(size)


def streamed_bytes(part: Part) -> int:
    """The size of a live part as far as a model wrote it."""
    match part:
        case TextPart() | ReasoningPart():
            return utf8_size(part.text)
        case ToolCallPart():
            return utf8_size(part.args_delta or "")
        case _:
            return 0


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _prompt_bytes(part: PromptPart) -> int:
    match part:
        case PromptText() | PromptReasoning():
            size = utf8_size(part.text)
        case PromptFile():
            size = _file_bytes(part)
        case PromptCall():
            size = len(part.name) + _json_bytes(part.input)
        case PromptResult():
            media = 0 if part.media is None else _file_bytes(part.media)
            size = utf8_size(part.text) + _json_bytes(part.raw) + media
    return size + _PART_OVERHEAD_BYTES


def _file_bytes(file: PromptFile) -> int:
    if file.media_type.startswith("text/"):
        return len(file.data)
    if file.media_type.startswith("image/"):
        return IMAGE_TOKENS * BYTES_PER_TOKEN
    return len(file.data) * BYTES_PER_TOKEN // _FILE_BYTES_PER_TOKEN


def _tool_bytes(tool: ToolSpec) -> int:
    sizes = (len(tool.name), utf8_size(tool.description), _json_bytes(tool.input_schema))
    return sum(sizes) + _PART_OVERHEAD_BYTES


def _json_bytes(raw: Json) -> int:
    return 0 if raw is UNSET else memoryview(raw).nbytes
