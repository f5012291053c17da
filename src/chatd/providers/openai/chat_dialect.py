"""Dialects of Chat Completions: how the servers of this API differ.

A dialect follows from the kind of the provider, then from the host, then from the model's name,
because a gateway passes on a vendor's rules. All of it is data: a new vendor is a new row.
"""

from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct, structs

from chatd.domain.model.protocol import AcceptedFiles
from chatd.providers.file_inputs import CHAT_COMPLETIONS_FILES
from chatd.providers.file_inputs import COMPATIBLE_FILES as IMAGES_ONLY
from chatd.providers.openai.chat_answer import GEMINI_TAGS, THINK_TAGS
from chatd.providers.openai.openai_models import model_family
from chatd.providers.provider_config import ProviderKind

ReasoningReplay = Literal["tool_turns", "all", "none"]
"""Which reasoning goes back to the server: that of turns with tool calls, all, or none. The choice
depends on earlier messages only, so that each request extends the one before it."""


ContinueStyle = Literal["trailing", "prefix", "continue_final_message"]
"""How a server is told to go on from an assistant's message at the end: by the message alone
(llama.cpp, OpenRouter), by its field `prefix`, or by fields of the request (vLLM)."""


class ChatDialect(Struct, frozen=True, kw_only=True):
    """`has_named_choice`: a request may require one of several tools. `merges_users`: models often
    reject two user messages in a row. `is_gemini`: Google's compatible endpoint.
    `missing_reasoning` is sent for tool calls without reasoning, if the server requires some.
    `thought_tags` are around thoughts in the text. `marks_cache`: prompts for Claude carry the
    marks of Anthropic's cache. `has_cache_key`: a request may carry the `prompt_cache_key`.
    `continues`: how an answer is continued; None: not known to be possible. `continue_path`: where
    the server takes such requests, if not at the usual path. `echoes_prefix`: the answer may begin
    with the text that it continues."""

    has_developer_role: bool = False
    has_named_choice: bool = True
    merges_users: bool = True
    has_top_k: bool = False
    is_gemini: bool = False
    accepted_files: AcceptedFiles = CHAT_COMPLETIONS_FILES
    reasoning_replay: ReasoningReplay = "tool_turns"
    missing_reasoning: str | None = None
    thought_tags: tuple[tuple[str, str], ...] = ()
    marks_cache: bool = False
    has_cache_key: bool = False
    continues: ContinueStyle | None = None
    continue_path: str | None = None
    echoes_prefix: bool = False


OPENAI_DIALECT: Final = ChatDialect(has_developer_role=True, merges_users=False, has_cache_key=True)
OPENROUTER_DIALECT: Final = ChatDialect(has_top_k=True, marks_cache=True)
# Its own `caching: auto` marks the system prompt only.
VERCEL_DIALECT: Final = ChatDialect(marks_cache=True)
# Many local servers leave the thoughts of a model in its text.
COMPATIBLE_DIALECT: Final = ChatDialect(
    has_named_choice=False,
    has_top_k=True,
    accepted_files=IMAGES_ONLY,
    thought_tags=THINK_TAGS,
)
GOOGLE_DIALECT: Final = ChatDialect(
    has_named_choice=False, is_gemini=True, accepted_files=IMAGES_ONLY, thought_tags=GEMINI_TAGS
)
# DeepSeek refuses a request without the reasoning of earlier tool turns.
DEEPSEEK_DIALECT: Final = structs.replace(COMPATIBLE_DIALECT, missing_reasoning="")
# Kimi refuses empty reasoning as missing.
KIMI_DIALECT: Final = structs.replace(
    COMPATIBLE_DIALECT, reasoning_replay="all", missing_reasoning=" ", has_cache_key=True
)
# These lose their prompt cache without the reasoning of earlier answers.
REPLAYING_DIALECT: Final = structs.replace(COMPATIBLE_DIALECT, reasoning_replay="all")

# Both know the field `prefix`; DeepSeek under another path only.
DEEPSEEK_API_DIALECT: Final = structs.replace(
    DEEPSEEK_DIALECT, continues="prefix", continue_path="/beta"
)
MISTRAL_DIALECT: Final = structs.replace(COMPATIBLE_DIALECT, continues="prefix", echoes_prefix=True)

_BY_HOST: Final[dict[str, ChatDialect]] = {
    "googleapis.com": GOOGLE_DIALECT,
    "deepseek.com": DEEPSEEK_API_DIALECT,
    "moonshot.ai": KIMI_DIALECT,
    "moonshot.cn": KIMI_DIALECT,
    "kimi.com": KIMI_DIALECT,
    "z.ai": REPLAYING_DIALECT,
    "bigmodel.cn": REPLAYING_DIALECT,
    "x.ai": REPLAYING_DIALECT,
    "minimax.io": REPLAYING_DIALECT,
    "minimaxi.com": REPLAYING_DIALECT,
    # These refuse fields that they do not know, also for models of the vendors below.
    "groq.com": COMPATIBLE_DIALECT,
    "cerebras.ai": COMPATIBLE_DIALECT,
    "mistral.ai": MISTRAL_DIALECT,
}
_BY_MODEL: Final[dict[str, ChatDialect]] = {
    "deepseek-": DEEPSEEK_DIALECT,
    "kimi-": KIMI_DIALECT,
    "glm-": REPLAYING_DIALECT,
    "grok-": REPLAYING_DIALECT,
    "minimax-": REPLAYING_DIALECT,
}


def choose_dialect(kind: ProviderKind, base: str, model: str = "") -> ChatDialect:
    match kind:
        case "openrouter":
            return OPENROUTER_DIALECT
        case "vercel":
            return VERCEL_DIALECT
        case "openai-compat":
            return _compatible(urlsplit(base).hostname or "", model_family(model))
        case _:
            return OPENAI_DIALECT


def _compatible(host: str, model: str) -> ChatDialect:
    for domain, dialect in _BY_HOST.items():
        if host == domain or host.endswith(f".{domain}"):
            return dialect
    named = (dialect for prefix, dialect in _BY_MODEL.items() if model.startswith(prefix))
    return next(named, COMPATIBLE_DIALECT)
