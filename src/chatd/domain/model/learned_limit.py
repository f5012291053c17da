"""The context limit that a model's refusals teach: the number that the provider names, else the
size of the request that it refused as too long."""

import re
from typing import Final

from msgspec import Struct

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.config import MAX_CONTEXT_LIMIT_TOKENS
from chatd.domain.model.failures import ClassifiedFailure

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
    counts only if nothing better is known. Status 413 is about bytes, 429 about a minute.
    `by_user_key`: a vendor may give one user's key a smaller window than all others have, so that
    it only teaches what nobody knows."""
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
