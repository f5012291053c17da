"""Which models and efforts can be chosen, and how they are written. Pure; the page has the same
rules in `ui/src/composer/model-choice.ts`."""

from collections.abc import Sequence
from typing import Final, get_args

from chatd.client.resources import ModelChoice
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import Effort
from chatd.terminal.safe_text import safe_line

EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
"""All efforts, lowest first."""
EFFORT_NAMES: Final[dict[Effort, str]] = {
    "none": "Off",
    "minimal": "Minimal",
    "low": "Low",
    "medium": "Medium",
    "high": "High",
    "xhigh": "Very high",
    "max": "Max",
}
_MAX_NAME_CELLS: Final = 40


def model_name(model: ModelChoice) -> str:
    return safe_line(model.display_name or model.name, _MAX_NAME_CELLS) or "Unnamed model"


def efforts_of(model: ModelChoice) -> tuple[Effort, ...]:
    """Up to the model's highest."""
    offered = set(model.capabilities.efforts or ())
    highest = None if model.reasoning_effort is None else model.reasoning_effort.max
    top = EFFORTS.index(highest) if highest in EFFORTS else len(EFFORTS) - 1
    return tuple(one for one in EFFORTS[: top + 1] if one in offered)


def effort_for(model: ModelChoice | None, wanted: str | None) -> Effort | None:
    """What is used when nothing was chosen: the chat's, the model's own, the middle one."""
    if model is None:
        return None
    efforts = efforts_of(model)
    default = None if model.reasoning_effort is None else model.reasoning_effort.default
    for one in (wanted, default):
        if one in efforts:
            return one
    return efforts[len(efforts) // 2] if efforts else None


def refusal_of_model(model: ModelChoice) -> str:
    """Why it cannot be chosen; empty: it can."""
    if model.deleted:
        return "deleted"
    return "" if model.enabled else "disabled by an administrator"


def pick_model(
    models: Sequence[ModelChoice],
    drafted: ModelConfigId | None,
    last_used: ModelConfigId | None,
) -> ModelChoice | None:
    """What was chosen, else what the chat used, else the default."""
    for wanted in (drafted, last_used):
        for model in models:
            if model.id == wanted and not refusal_of_model(model):
                return model
    return next((one for one in models if one.is_default and not refusal_of_model(one)), None)


def find_model(models: Sequence[ModelChoice], words: str) -> ModelChoice | None:
    """The model with this name, or the only one that matches."""
    wanted = words.strip().lower()
    usable = [one for one in models if not refusal_of_model(one)]
    for model in usable:
        if wanted in (model.name.lower(), model.display_name.lower(), model.model.lower()):
            return model
    fitting = [one for one in usable if fits(one, wanted)]
    return fitting[0] if len(fitting) == 1 else None


def fits(model: ModelChoice, query: str) -> bool:
    text = f"{model.display_name} {model.name} {model.model} {model.provider}".lower()
    return all(word in text for word in query.lower().split())


def context_limit_of(model: ModelChoice | None) -> int | None:
    if model is None:
        return None
    return model.context_limit or model.capabilities.context_limit


def size_text(tokens: int) -> str:
    """812, 12k, 1.5M."""
    if tokens >= 1_000_000:
        return f"{round(tokens / 1_000_000, 1):g}M"
    return f"{round(tokens / 1000)}k" if tokens >= 1000 else str(tokens)


def price_text(model: ModelChoice) -> str:
    """Per million tokens."""
    prices = model.prices
    if prices is None or (prices.input is None and prices.output is None):
        return "price unknown" if model.unpriced else ""
    cost_in, cost_out = _number(prices.input), _number(prices.output)
    return "free" if cost_in == cost_out == 0 else f"${cost_in:g} in, ${cost_out:g} out"


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def dollars(micros: int) -> str:
    value = micros / 1_000_000
    return f"${value:.4f}" if 0 < value < 0.01 else f"${value:.2f}"
