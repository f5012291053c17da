"""Values derived from a model's configuration: reasoning effort, cost, context limit (also one that
refusals teach), where a key may be sent; and the notices for a model or effort that is not used.
"""

import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final, get_args

import msgspec
from msgspec import Struct

from chatd.domain.chat.messages import Draft, Message, NoticeCode, TokenUsage, notice_draft
from chatd.domain.chat.parts import NoticePart
from chatd.domain.model.failures import ClassifiedFailure, RemovedModel
from chatd.domain.model.protocol import Effort, EffortRange, ModelConfig, Prices, PriceTier
from chatd.domain.text import Json, parse_json

EFFORT_LEVELS: Final[tuple[Effort, ...]] = get_args(Effort)


def resolve_effort(
    requested: str | None, configured: EffortRange | None, efforts: Sequence[Effort] | None = None
) -> Effort | None:
    """The requested effort if it is valid, else the default; at most the maximum. `efforts` are
    those that the model takes, None if they are unknown: then a configured range says that it takes
    them. None for a model that takes none, or of which nothing is known: the chat may have had its
    effort from another model."""
    if not _takes_effort(configured, efforts):
        return None
    limits = configured or EffortRange()
    valid: list[Effort] = [effort for effort in EFFORT_LEVELS if effort == requested]
    effort = valid[0] if valid else limits.default
    if effort is None or limits.max is None:
        return effort
    return EFFORT_LEVELS[min(EFFORT_LEVELS.index(effort), EFFORT_LEVELS.index(limits.max))]


def _takes_effort(configured: EffortRange | None, efforts: Sequence[Effort] | None) -> bool:
    if efforts is not None:
        return bool(efforts)
    return configured is not None and (configured.default or configured.max) is not None


def is_effort_range_empty(given: EffortRange) -> bool:
    """Whether the default is above the maximum."""
    if given.default is None or given.max is None:
        return False
    return EFFORT_LEVELS.index(given.default) > EFFORT_LEVELS.index(given.max)


def effort_objection(
    model: str, effort: str | None, efforts: Sequence[Effort] | None
) -> str | None:
    """Why a model cannot be asked for that effort; None if it can. The provider adapts a level that
    the model lacks, and a model that does not reason has the effort `none`."""
    if effort in (None, "", "none") or efforts is None or efforts:
        return None
    return f"the model {model} takes no reasoning effort: leave it out or choose another model"


def effort_notice(
    history: Sequence[Message],
    requested: str | None,
    now: ModelConfig,
    efforts: Sequence[Effort] | None,
) -> Draft | None:
    """The notice that the chat's effort is not sent to the answering model, once for each model and
    effort. A model that does not reason has the effort `none`."""
    if requested not in EFFORT_LEVELS or _takes_effort(now.reasoning_effort, efforts):
        return None
    if requested == "none" and efforts is not None:
        return None
    pair = {"model_config_id": str(now.id), "reasoning_effort": requested}
    if any(part.detail == pair for row in history for part in _notices(row, "effort_not_sent")):
        return None
    text = f"{now.name} takes no reasoning effort: the effort {requested} of this chat is not sent."
    if efforts is None:
        text = (
            f"Whether {now.name} takes a reasoning effort is not known: the effort {requested} of"
            " this chat is not sent. An administrator can set the efforts of the model."
        )
    return notice_draft("effort_not_sent", text, pair)


def replacement_notice(
    history: Sequence[Message], removed: RemovedModel | None, now: ModelConfig
) -> Draft | None:
    """The notice that a replacement answers for a removed model, once for each change: None if it
    was given since the removed model last answered."""
    if removed is None:
        return None
    pair = {"removed_model_config_id": str(removed.id), "model_config_id": str(now.id)}
    has_answered = has_summary = False
    for row in reversed(history):
        if row.deleted:
            continue
        if row.role == "assistant" and row.model_config_id == removed.id and not row.compressed:
            break
        if any(part.detail == pair for part in _notices(row, "model_replaced")):
            return None
        has_summary = has_summary or row.compressed
        has_answered = has_answered or (row.role == "assistant" and row.model_config_id == now.id)
    else:
        if has_summary and has_answered:  # the notice is older than the summary
            return None
    text = f"{removed.name} was removed; {now.name} answers now."
    return notice_draft("model_replaced", text, pair)


def _notices(row: Message, code: NoticeCode) -> list[NoticePart]:
    parts = () if row.deleted else row.content
    return [part for part in parts if isinstance(part, NoticePart) and part.code == code]


_TOKENS_PER_SEARCH: Final = 1_000
"""Prices are per million tokens but per thousand searches."""


COST_REPORTING_KINDS: Final = frozenset({"openrouter"})
"""Providers that report the cost of each call."""


def is_priced(prices: Prices | None, kind: str) -> bool:
    """Whether a call of a provider of that kind costs a known amount, which may be 0."""
    if kind in COST_REPORTING_KINDS:
        return True
    known = () if prices is None else (prices.input, prices.output)
    return any(_price(text) is not None for text in known)


def cost_micros(usage: TokenUsage | None, prices: Prices | None) -> int | None:
    """The cost in micro-dollars: tokens times USD per million tokens, the sum rounded up once.

    None means unpriced, not free: no prices, no usage, or no price for any kind of token used.
    Reasoning tokens are part of the output. A cost that the provider reported wins.
    """
    if usage is None:
        return None
    if usage.provider_cost_micros is not None:
        return usage.provider_cost_micros
    if prices is None:
        return None
    applied = _applied_prices(usage, prices)
    lines = (
        (usage.input_tokens, _price(applied.input)),
        (usage.output_tokens, _price(applied.output)),
        (usage.cache_read_tokens, _price(applied.cache_read)),
        (usage.cache_creation_tokens - usage.cache_creation_1h_tokens, _price(applied.cache_write)),
        (usage.cache_creation_1h_tokens, _hour_price(applied)),
        (usage.web_searches * _TOKENS_PER_SEARCH, _price(prices.web_search)),
    )
    priced = [(tokens, price) for tokens, price in lines if price is not None]
    if not priced:
        return None
    used = any(tokens for tokens, _ in lines)
    if used and not any(tokens for tokens, _ in priced):
        return None
    total = sum((tokens * price for tokens, price in priced), Decimal(0))
    return int(total.to_integral_value(rounding=ROUND_CEILING))


def _hour_price(prices: Prices | PriceTier) -> Decimal | None:
    """The price of tokens cached for an hour: as listed, else twice the input price."""
    listed, read = _price(prices.cache_write_1h), _price(prices.input)
    return 2 * read if listed is None and read is not None else listed


def _applied_prices(usage: TokenUsage, prices: Prices) -> Prices | PriceTier:
    """A long prompt moves the whole call to a higher price tier."""
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens
    reached = [tier for tier in prices.tiers if read > tier.above]
    return max(reached, key=lambda tier: tier.above, default=prices)


def _price(text: str | None) -> Decimal | None:
    """None for an invalid price: it must not fail the answer."""
    try:
        price = Decimal(text or "")
    except InvalidOperation:
        return None
    return price if price.is_finite() and price >= 0 else None


MAX_CONTEXT_LIMIT_TOKENS: Final = 1_000_000_000
"""No model has a larger context window, so a larger number is a mistake."""

_LIMIT_NAMES: Final = frozenset(
    {
        "contextlimit",
        "contextwindow",
        "contextlength",
        "maxcontext",
        "maxcontexttokens",
        "maxinputtokens",
        "maxinputtoken",
        "inputtokenlimit",
    }
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LIMIT_WORDS: Final = (
    frozenset({"limit"}),
    frozenset({"window", "size"}),
    frozenset({"window", "max"}),
    frozenset({"length", "max"}),
    frozenset({"token", "max"}),
    frozenset({"tokens", "max"}),
    frozenset({"token", "limit"}),
    frozenset({"tokens", "limit"}),
)
# Names with these words are about use of the context, not its size.
_USE_WORDS: Final = frozenset({"used", "usage", "remaining", "left", "exceeded", "version"})


def effective_context_limit(metadata: Json, configured: int | None) -> int | None:
    """The limit that the provider reported, else the configured one."""
    found = read_context_limit(metadata)
    if found is not None:
        return found
    return configured if configured is not None and configured > 0 else None


def read_context_limit(metadata: Json) -> int | None:
    """The largest number under any name that means the context size.

    Vendors and gateways report it in different places under different names.
    """
    found = 0
    todo: list[object] = [parse_json(metadata)]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo.extend(msgspec.convert(value, list[object]))
        elif isinstance(value, dict):
            for key, item in msgspec.convert(value, dict[str, object]).items():
                todo.append(item)
                if _means_limit(key):
                    found = max(found, _number(item))
    return found or None


def _means_limit(key: str) -> bool:
    if re.sub(r"[^a-z0-9]", "", key.lower()) in _LIMIT_NAMES:
        return True
    words = {word.lower() for word in _WORD.findall(key)}
    sized = any(size <= words for size in _LIMIT_WORDS)
    return "context" in words and sized and not words & _USE_WORDS


def _number(value: object) -> int:
    """0 unless it is a whole number from 1 to MAX_CONTEXT_LIMIT_TOKENS."""
    match value:
        case bool():
            return 0
        case int():
            number = value
        case float():
            number = int(value) if value.is_integer() else 0
        case str():
            digits = value.strip()
            number = int(digits) if re.fullmatch(r"[0-9]{1,12}", digits) else 0
        case _:
            return 0
    return number if 0 < number <= MAX_CONTEXT_LIMIT_TOKENS else 0


# The context limit that a model's refusals teach: the number that the provider names, else the
# size of the request that it refused as too long.

MIN_LEARNED_LIMIT_TOKENS: Final = 1_000
"""No model that can hold a chat has a smaller context window, so a smaller number is a mistake, or
stands in a text of the chat that the error quotes."""

_NUMBER: Final = r"(\d[\d,_]{2,13})"

# The first that matches counts. The text is in lower case.
_STATED_LIMITS: Final = tuple(
    re.compile(pattern.replace("NUMBER", _NUMBER))
    for pattern in (
        # llama.cpp and LM Studio
        r"\bn_ctx\\?\"?\s*[:=]\s*NUMBER",
        r"context length of only NUMBER",
        # Anthropic
        r"prompt is too long: [\d,]+ tokens > NUMBER",
        r"context limit: [\d,]+ \+ [\d,]+ > NUMBER",
        # OpenAI, Azure, DeepSeek, OpenRouter, vLLM, xAI, Fireworks
        r"maximum (?:context|prompt) length(?: is|:| of)? NUMBER",
        r"maximum model length(?: is|:| of)? NUMBER",
        r"context window of NUMBER tokens",
        # Mistral
        r"model with NUMBER maximum context length",
        # Gemini, GitHub
        r"maximum number of tokens allowed \(?NUMBER",
        r"token count of [\d,]+ exceeds the limit of NUMBER",
        # Moonshot, SGLang, Cerebras
        r"exceeded model token limit: NUMBER",
        r"context length \(NUMBER tokens\)",
        r"current length is [\d,]+ while limit is NUMBER",
        # Text Generation Inference, Together
        r"tokens \+ `?max_new_tokens`? must be <= NUMBER",
    )
)


class LearnedLimit(Struct, frozen=True, kw_only=True):
    """`is_bound`: the provider named no number. The window is smaller than `tokens`, which is an
    estimate: it decides when a chat is summarized, and never that it is too long."""

    tokens: int
    is_bound: bool = False

    def supersedes(self, known: "LearnedLimit | None") -> bool:
        """The newest number that the provider named counts; of estimates the smallest."""
        if known is None or not self.is_bound:
            return known != self
        return known.is_bound and self.tokens < known.tokens


def read_stated_limit(text: str) -> int | None:
    """The context window that the text of an error names, in tokens. The text is in lower case."""
    for pattern in _STATED_LIMITS:
        if (found := pattern.search(text)) is None:
            continue
        tokens = int(found[1].replace(",", "").replace("_", ""))
        if MIN_LEARNED_LIMIT_TOKENS <= tokens <= MAX_CONTEXT_LIMIT_TOKENS:
            return tokens
    return None


def learn_limit(
    failed: ClassifiedFailure,
    *,
    known: int | None,
    request_tokens: int | None,
    by_user_key: bool = False,
) -> LearnedLimit | None:
    """What a failed call teaches. `known` is the limit that the model is used with, and
    `request_tokens` the estimated size of the request; None if files make it unknown. The size
    counts only if nothing better is known, and not with status 413 (bytes) or 429 (rate).
    `by_user_key`: a vendor may give one user's key a smaller window than all others have, so it
    counts only while no limit is known."""
    if failed.kind != "context_overflow" or (by_user_key and known is not None):
        return None
    if failed.context_limit is not None:
        return LearnedLimit(tokens=failed.context_limit)
    if known is not None or request_tokens is None or failed.error.status_code in (413, 429):
        return None
    if request_tokens < MIN_LEARNED_LIMIT_TOKENS:
        return None
    return LearnedLimit(tokens=request_tokens, is_bound=True)


def is_refuted(learned: LearnedLimit, told: TokenUsage | None) -> bool:
    """Whether the model has answered a prompt that is longer than its learned limit."""
    if told is None or told.estimated:
        return False
    read = told.input_tokens + told.cache_read_tokens + told.cache_creation_tokens
    return (read if told.context_tokens is None else told.context_tokens) > learned.tokens


# Where a provider's keys are sent. A key is bound to the destination that it was given for, and is
# sent to no other: an administrator who changes an address cannot read the keys of users.

VENDOR: Final = "vendor"
"""The address of the provider's vendor, which no administrator chooses."""
NO_PROXY: Final = "none"
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_ORIGIN: Final = re.compile(r"(https?)://([^/?#]+)", re.IGNORECASE)


def origin_of(address: str) -> str:
    """Scheme, host and port, in one form. An address of another form stays whole: two different
    hosts never share an origin."""
    text = re.sub(r"[\t\r\n]", "", address).strip()
    if (found := _ORIGIN.match(text)) is None:
        return text
    scheme, host = found[1].lower(), found[2].rpartition("@")[2].lower()
    return f"{scheme}://{host.removesuffix(_DEFAULT_PORTS[scheme])}"


def proxy_origin(proxy: str | None) -> str | None:
    """The proxy's origin, without its password."""
    return None if proxy is None or proxy == NO_PROXY else origin_of(proxy)


def key_destination(base_url: str | None, proxy: str | None, ca_file: str | None) -> str:
    """The destination that a key is bound to. `proxy` is an origin: a proxy can read keys sent to a
    plain address, and those sent to an encrypted one only if an administrator also names a trusted
    authority."""
    origin = VENDOR if not base_url else origin_of(base_url)
    if proxy is None or (ca_file is None and not origin.startswith("http:")):
        return origin
    return f"{origin} through {proxy}" + ("" if ca_file is None else f" trusting {ca_file}")
