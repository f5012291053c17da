"""Vendor-neutral model requests, model events, and the configuration and capabilities of models.

`prompt` builds a `ModelRequest`, a provider encodes it and decodes the response to `ModelEvent`s,
and `answer` assembles those. Vendor data travels as opaque `provider_metadata` on its part.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, Struct
from msgspec.structs import replace

from chatd.domain.chat.messages import Role, TokenUsage
from chatd.domain.computer_use import Screen
from chatd.domain.description import describe
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ModelConfigId, ToolCallId
from chatd.domain.text import Json

# Which files a model takes unchanged, and how large they may be.

BYTES_PER_MIB: Final = 1024 * 1024

FileInputKind = Literal["image", "pdf"]
"""What a model can be configured to take. Text is always sent as text."""


class AcceptedFiles(Struct, frozen=True, kw_only=True):
    """The media types that one API takes unchanged. A type may end in `/*`. `max_total_bytes` is of
    all files of a request, which the request contains in base64. The side of an image is in
    pixels; None: no limit."""

    images: frozenset[str] = frozenset()
    documents: frozenset[str] = frozenset()
    media: frozenset[str] = frozenset()
    max_image_bytes: int = 20 * BYTES_PER_MIB
    max_document_bytes: int = 32 * BYTES_PER_MIB
    max_total_bytes: int = 22 * BYTES_PER_MIB
    max_image_side_px: int | None = None

    def takes(self, kind: str) -> bool:
        return any(has_type(kind, kinds) for kinds in (self.images, self.documents, self.media))

    def max_bytes(self, kind: str) -> int:
        """Limit for one file. A file of exactly this size is already too large."""
        return self.max_image_bytes if has_type(kind, self.images) else self.max_document_bytes

    def limited_to(self, inputs: tuple[FileInputKind, ...] | None) -> "AcceptedFiles":
        """The files that a model takes by its configuration. `inputs` None: all of these."""
        if inputs is None:
            return self
        return replace(
            self,
            images=self.images if "image" in inputs else frozenset(),
            documents=self.documents if "pdf" in inputs else frozenset(),
            media=frozenset(),
        )


ANY_IMAGE_OR_PDF: Final = AcceptedFiles(
    images=frozenset({"image/*"}), documents=frozenset({"application/pdf"})
)
"""For a provider that states nothing."""


def has_type(kind: str, accepted: frozenset[str]) -> bool:
    return kind in accepted or f"{kind.partition('/')[0]}/*" in accepted


FinishReason = Literal[
    "stop",
    "length",
    "content-filter",
    "refusal",
    "tool-calls",
    "pause",
    "error",
    "other",
    "unknown",
]
"""`length`: the output limit cut the answer. `content-filter`: the provider's filter cut it.
`refusal`: the model declined. `pause`: the provider continues it when it is sent back."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ToolChoice = Literal["auto", "none", "required"]

DEFAULT_MAX_OUTPUT_TOKENS = 32_000


# Requests


class PromptText(Struct, frozen=True, kw_only=True):
    text: str
    provider_metadata: Json = UNSET


class PromptReasoning(Struct, frozen=True, kw_only=True):
    """Sent back unchanged, because vendors sign it."""

    text: str
    provider_metadata: Json = UNSET


class PromptFile(Struct, frozen=True, kw_only=True):
    """`data` is the file itself, not base64."""

    media_type: str
    data: bytes
    name: str | None = None


class PromptCall(Struct, frozen=True, kw_only=True):
    """`input` is always a JSON object."""

    id: ToolCallId
    name: str
    input: Raw
    provider_executed: bool = False
    provider_metadata: Json = UNSET


class PromptResult(Struct, frozen=True, kw_only=True):
    """`text` is what the model reads, `media` a file that the tool returned.

    A provider-executed result keeps the vendor's own JSON in `raw`.
    """

    id: ToolCallId
    name: str
    text: str
    is_error: bool = False
    media: PromptFile | None = None
    provider_executed: bool = False
    raw: Json = UNSET
    provider_metadata: Json = UNSET


PromptPart = PromptText | PromptReasoning | PromptFile | PromptCall | PromptResult


class PromptMessage(Struct, frozen=True, kw_only=True):
    role: Role
    parts: tuple[PromptPart, ...]


class ToolSpec(Struct, frozen=True, kw_only=True):
    """`input_schema` is a JSON schema of an object. A tool that acts on a `screen` is sent as
    `ModelRequest.computer`."""

    name: str
    description: str
    input_schema: Raw
    screen: Screen | None = None


class ComputerTool(Struct, frozen=True, kw_only=True):
    """The vendor's own tool for pictures of a screen of this size. `function` is the same as a
    plain tool, for models whose vendor has none."""

    width_px: int
    height_px: int
    function: ToolSpec | None = None


class ForcedTool(Struct, frozen=True, kw_only=True):
    """The model must call this tool."""

    name: str


class WireForm(Struct, frozen=True, kw_only=True):
    """The encoded first `count` messages of a request: elements of a JSON array without the
    brackets. `state` is what the encoder needs to continue after them."""

    count: int = 0
    body: bytes = b""
    state: bool = False


class KeptWire(Struct, frozen=True, kw_only=True, eq=False):
    """The next request of the chat is likely to begin with the first `count` messages of this one.
    A provider keeps their encoded form in `forms`, keyed by what else it depends on."""

    count: int
    forms: dict[object, WireForm]

    def __eq__(self, other: object) -> bool:
        """All are equal: they say nothing that the messages do not."""
        return other is None or isinstance(other, KeptWire)

    def __hash__(self) -> int:
        return 0

    def keep(self, key: object, form: WireForm) -> None:
        """Keep one form: a chat that changes its provider or its tools seldom changes back."""
        if key not in self.forms:
            self.forms.clear()
        self.forms[key] = form


CALL_ID_NAMES: Final = ("owner_id", "chat_id", "root_chat_id", "workspace_id")


class ModelRequest(Struct, frozen=True, kw_only=True):
    """`model` is sent unchanged. `options` are the provider's own, validated by its schema.
    `continues` is the beginning of the answer, which the model goes on from: only for a request
    that the provider can continue.

    Requests with the same `cache_key` begin alike, so a provider may send them where it has cached
    the beginning.

    `ids` say for whom the call is made, by `CALL_ID_NAMES`. They leave chatd only in headers that
    an administrator has configured with their names."""

    model: str
    messages: tuple[PromptMessage, ...]
    continues: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    computer: ComputerTool | None = None
    tool_choice: ToolChoice | ForcedTool = "auto"
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: Effort | None = None
    options: Json = UNSET
    output_schema: Json = UNSET
    cache_key: str | None = None
    ids: Mapping[str, str] = {}
    kept_wire: KeptWire | None = None


def as_function(request: ModelRequest) -> ModelRequest:
    """The request with the computer as a plain tool."""
    computer = request.computer
    if computer is None or computer.function is None:
        return request
    return replace(request, tools=(*request.tools, computer.function), computer=None)


# Events


class TextStart(Struct, frozen=True, kw_only=True):
    id: str


class TextDelta(Struct, frozen=True, kw_only=True):
    id: str
    delta: str


class TextEnd(Struct, frozen=True, kw_only=True):
    id: str
    provider_metadata: Json = UNSET


class ReasoningStart(Struct, frozen=True, kw_only=True):
    id: str
    text: str = ""
    provider_metadata: Json = UNSET


class ReasoningDelta(Struct, frozen=True, kw_only=True):
    """Metadata replaces earlier metadata; absent metadata leaves it unchanged."""

    id: str
    delta: str
    provider_metadata: Json = UNSET


class ReasoningEnd(Struct, frozen=True, kw_only=True):
    id: str
    provider_metadata: Json = UNSET


class ToolCallStart(Struct, frozen=True, kw_only=True):
    id: ToolCallId
    name: str
    provider_executed: bool = False


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """A piece of the call's JSON input."""

    id: ToolCallId
    delta: str


class ToolCallDone(Struct, frozen=True, kw_only=True):
    """The complete call. `input` is the text as sent, which may be invalid JSON."""

    id: ToolCallId
    name: str
    input: str
    provider_executed: bool = False
    provider_metadata: Json = UNSET


class ToolResultDone(Struct, frozen=True, kw_only=True):
    """The result of a provider-executed tool."""

    id: ToolCallId
    name: str
    result: Raw
    is_error: bool = False
    provider_metadata: Json = UNSET


class SourceFound(Struct, frozen=True, kw_only=True):
    url: str
    id: str | None = None
    title: str | None = None


class UsageReported(Struct, frozen=True, kw_only=True):
    """The usage so far, as soon as the provider reports any of it. A later report corrects the
    kinds of tokens that it contains."""

    usage: TokenUsage


class Finished(Struct, frozen=True, kw_only=True):
    """The provider reported the end. `explanation` says why content was filtered."""

    reason: FinishReason
    usage: TokenUsage
    response_id: str | None = None
    explanation: str | None = None
    provider_metadata: Json = UNSET


TransportFault = Literal["refused", "reset", "timeout", "tls", "dns", "unreachable"]
"""`timeout`: on an open connection. `unreachable`: no connection was made in time."""


class ProviderFault(Struct, frozen=True, kw_only=True):
    """The facts of a failure before it is classified. Contains no secrets.

    `type` is the vendor's error type, `body` the beginning of the response. `hint` says what the
    operator can check. `never_answered`: the provider has not answered since the process started.
    """

    message: str
    provider: str = ""
    status_code: int | None = None
    type: str | None = None
    body: str | None = None
    retry_after_s: float | None = None
    incomplete: bool = False
    transport: TransportFault | None = None
    never_answered: bool = False
    hint: str | None = None


class StreamPing(Struct, frozen=True, kw_only=True):
    """Bytes without content arrived, such as a ping: the provider is not silent."""


class StreamFailed(Struct, frozen=True, kw_only=True):
    """The provider reported an error, or the stream ended without `Finished`."""

    fault: ProviderFault


class ProviderError(ChatdError):
    """A model's API failed; `classify_fault` says what that means."""

    code = "provider_failed"

    def __init__(self, fault: ProviderFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


ModelEvent = (
    TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolCallStart
    | ToolCallDelta
    | ToolCallDone
    | ToolResultDone
    | SourceFound
    | UsageReported
    | Finished
    | StreamPing
    | StreamFailed
)


# Configuration


class PriceTier(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The prices of a whole call that reads more than `above` tokens, cached ones included."""

    above: int
    input: str | None = None
    output: str | None = None
    cache_read: str | None = None
    cache_write: str | None = None
    cache_write_1h: str | None = None


class Prices(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """USD per million tokens, as decimal text because money is never a float. `web_search` is the
    price of 1,000 searches. `cache_write_1h` is for tokens that stay in the cache for an hour;
    without it they cost twice as much as input, which is the rule of Anthropic.

    `source` names the price list they come from; None if they are configured.
    """

    input: str | None = None
    output: str | None = None
    cache_read: str | None = None
    cache_write: str | None = None
    cache_write_1h: str | None = None
    web_search: str | None = None
    tiers: tuple[PriceTier, ...] = ()
    source: str | None = None


class EffortRange(Struct, frozen=True, kw_only=True):
    """The reasoning effort of a model."""

    default: Annotated[Effort | None, describe("The effort if a message gives none.", "medium")] = (
        None
    )
    max: Annotated[
        Effort | None, describe("The highest effort that a message may ask for.", "high")
    ] = None


FallbackReason = Literal["outage", "overload", "access", "refusal", "context"]
"""Why another model answers: the provider does not answer, has no capacity or limits the rate,
refuses the key, the account or the model, refuses the content, or the prompt is too long."""
FALLBACK_REASONS: Final[tuple[FallbackReason, ...]] = get_args(FallbackReason)


class Fallback(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that answers if another one cannot."""

    model: Annotated[str, describe("The name of the model.", "gpt")]
    on: Annotated[
        tuple[FallbackReason, ...],
        describe(
            "For which failures: `outage` (no answer, server errors), `overload` (no capacity, rate"
            " limit), `access` (key, account or model refused), `refusal` (the model or a filter"
            " refused), `context` (the chat is too long). All of them without it.",
            ["outage", "overload"],
        ),
    ] = FALLBACK_REASONS


class ModelConfig(Struct, frozen=True, kw_only=True):
    """A model as configured here: which provider serves it, under what name, with what limits.
    `file_inputs` are the files that it takes; None: all that its API takes. `fallbacks` answer if
    it cannot, in their order."""

    id: ModelConfigId
    name: str
    provider: str
    model: str
    context_limit: int | None = None
    compaction_threshold: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: EffortRange | None = None
    options: Json = UNSET
    prices: Prices | None = None
    file_inputs: tuple[FileInputKind, ...] | None = None
    fallbacks: tuple[Fallback, ...] = ()


# What a model can do: known of the vendor's models, reported by the provider, or set by an
# administrator.

TokenCount = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class ModelCapabilities(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model can do. A field that is missing is unknown."""

    context_limit: Annotated[
        TokenCount | None,
        Meta(description="Size of the context window in tokens.", examples=[200_000]),
    ] = None
    max_output_tokens: Annotated[
        TokenCount | None, Meta(description="The longest answer in tokens.", examples=[64_000])
    ] = None
    efforts: Annotated[
        tuple[Effort, ...] | None,
        Meta(
            description="The reasoning efforts that the model takes; none for a model that does"
            " not reason.",
            examples=[["low", "medium", "high"]],
        ),
    ] = None
    images: Annotated[
        bool | None, Meta(description="Whether the model reads images.", examples=[True])
    ] = None
    pdfs: Annotated[
        bool | None, Meta(description="Whether the model reads PDF files.", examples=[True])
    ] = None
    web_search: Annotated[
        bool | None,
        Meta(description="Whether the provider searches the web for it.", examples=[True]),
    ] = None


def merge_capabilities(*layers: ModelCapabilities | None) -> ModelCapabilities:
    """For each field the first layer that knows it."""
    known: dict[str, object] = {}
    for layer in reversed([one for one in layers if one is not None]):
        for field in ModelCapabilities.__struct_fields__:
            if (value := getattr(layer, field)) is not None:
                known[field] = value
    return msgspec.convert(known, ModelCapabilities, strict=False)
