"""Facts about OpenAI's models: the API, whether they reason, and the efforts that they take.

A table of names, not of patterns: `gpt-5` is the row of `gpt-5-nano-2026-01-01`, but not of
`gpt-5.1`. A new model is a new row; until then a model of the GPT family has the cautious facts of
the row `gpt`. A name of none of these families, such as a deployment's, has no facts.
"""

from typing import Final, Literal

from msgspec import Struct

from chatd.domain.model.config import EFFORT_LEVELS
from chatd.domain.model.protocol import Effort
from chatd.providers.options import lower_effort, raise_effort

Transport = Literal["responses", "chat"]


class OpenAIModel(Struct, frozen=True, kw_only=True):
    """`reasons`: takes an effort and no temperature. `needs_responses`: the model, or its tools,
    exist in the Responses API only."""

    transport: Transport = "responses"
    reasons: bool = True
    efforts: tuple[Effort, ...] = ("low", "medium", "high")
    needs_responses: bool = False
    searches: bool = False


_PLAIN: Final = OpenAIModel(reasons=False, efforts=())
_CHAT_ONLY: Final = OpenAIModel(transport="chat", reasons=False, efforts=())
_SEARCH: Final = OpenAIModel(transport="chat", reasons=False, efforts=(), searches=True)
_BASIC: Final = OpenAIModel()
_RESPONSES_ONLY: Final = OpenAIModel(needs_responses=True)
_ONE_EFFORT: Final = OpenAIModel(efforts=("medium",))
_WITH_NONE: Final = OpenAIModel(efforts=("none", "low", "medium", "high"))
_TO_XHIGH: Final = OpenAIModel(efforts=("none", "low", "medium", "high", "xhigh"))
_TO_MAX: Final = OpenAIModel(efforts=("none", "low", "medium", "high", "xhigh", "max"))
_ALWAYS_TO_MAX: Final = OpenAIModel(
    efforts=("low", "medium", "high", "xhigh", "max"), needs_responses=True
)
_PRO: Final = OpenAIModel(efforts=("medium", "high", "xhigh"), needs_responses=True)

OPENAI_MODELS: Final[dict[str, OpenAIModel]] = {
    "gpt": _BASIC,
    "gpt-3.5": _CHAT_ONLY,
    "gpt-35": _CHAT_ONLY,  # Azure's name
    "gpt-4": _PLAIN,
    "gpt-4o": _PLAIN,
    "gpt-4o-search": _SEARCH,
    "gpt-4o-mini-search": _SEARCH,
    "gpt-4.1": _PLAIN,
    "gpt-4.5": _PLAIN,
    "gpt-5": OpenAIModel(efforts=("minimal", "low", "medium", "high")),
    "gpt-5-chat": _PLAIN,
    "gpt-5-codex": _RESPONSES_ONLY,
    "gpt-5-pro": OpenAIModel(efforts=("high",), needs_responses=True),
    "gpt-5-search-api": _SEARCH,
    "gpt-5.1": _WITH_NONE,
    "gpt-5.1-chat": _ONE_EFFORT,
    "gpt-5.1-codex": OpenAIModel(efforts=_WITH_NONE.efforts, needs_responses=True),
    "gpt-5.1-codex-max": OpenAIModel(efforts=_TO_XHIGH.efforts, needs_responses=True),
    "gpt-5.2": _TO_XHIGH,
    "gpt-5.2-chat": _ONE_EFFORT,
    "gpt-5.2-pro": _PRO,
    "gpt-5.3": _TO_XHIGH,
    "gpt-5.3-chat": _ONE_EFFORT,
    "gpt-5.3-codex": OpenAIModel(efforts=_TO_XHIGH.efforts, needs_responses=True),
    "gpt-5.4": _TO_XHIGH,
    "gpt-5.4-pro": _PRO,
    "gpt-5.5": _TO_XHIGH,
    "gpt-5.5-pro": _PRO,
    "gpt-5.6": _TO_MAX,
    "gpt-6": _TO_MAX,
    "gpt-6-astra": _ALWAYS_TO_MAX,
    "gpt-6.1": _TO_MAX,
    "gpt-6.1-sol": _ALWAYS_TO_MAX,
    "gpt-oss": OpenAIModel(transport="chat"),
    "chatgpt": _CHAT_ONLY,
    "codex": _RESPONSES_ONLY,
    "computer-use-preview": _RESPONSES_ONLY,
    "o1": _BASIC,
    "o1-pro": _RESPONSES_ONLY,
    "o3": _BASIC,
    "o3-deep-research": _RESPONSES_ONLY,
    "o3-pro": _RESPONSES_ONLY,
    "o4": _BASIC,
    "o4-mini-deep-research": _RESPONSES_ONLY,
}


def model_family(model: str) -> str:
    """The name without parts of gateways and fine-tuning: `openai/gpt-5`, `ft:gpt-4o:us::1`."""
    return model.lower().rsplit("/", 1)[-1].removeprefix("ft:")


def find_model(model: str) -> OpenAIModel | None:
    """The row with the most words of the name. None if the name is of no known family."""
    words = model_family(model).partition(":")[0].split("-")
    names = ("-".join(words[:count]) for count in range(len(words), 0, -1))
    return next((OPENAI_MODELS[name] for name in names if name in OPENAI_MODELS), None)


def choose_transport(model: str, *, use_responses_api: bool | None) -> Transport:
    """As configured, else as the model is known; Chat Completions for an unknown name."""
    if use_responses_api is not None:
        return "responses" if use_responses_api else "chat"
    found = find_model(model)
    return "chat" if found is None else found.transport


def supports_reasoning(model: str) -> bool | None:
    """True if the model takes an effort and no temperature; None if the name is unknown."""
    found = find_model(model)
    return None if found is None else found.reasons


def fit_effort(effort: Effort, model: str) -> Effort:
    """The nearest effort that the model takes. An effort above none never becomes none."""
    found = find_model(model)
    allowed = EFFORT_LEVELS if found is None or not found.efforts else found.efforts
    fitted = lower_effort(effort, allowed)
    return raise_effort(effort, allowed) if fitted == "none" != effort else fitted


def is_claude(model: str) -> bool:
    """Gateways cache a prompt for Claude only if the request asks for it."""
    return model_family(model).startswith("claude")
