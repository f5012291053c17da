"""Whether and how a model is asked to think, in the words its generation understands."""

from msgspec import Struct

from chatd.domain.model.protocol import ForcedTool, ModelRequest
from chatd.providers.anthropic.models import Claude
from chatd.providers.anthropic.request import BlockBinding, ThinkingConfig
from chatd.providers.effort import MIN_BUDGET_TOKENS, budget_tokens, lowered
from chatd.providers.options import AnthropicOptions

BINDING_BETA = "thinking-binding-controls-2026-08-01"


class Plan(Struct, frozen=True, kw_only=True):
    """`off` was wished for, as opposed to nobody having asked; earlier thoughts are then left
    out as well."""

    config: ThinkingConfig | None = None
    effort: str | None = None
    off: bool = False

    @property
    def on(self) -> bool:
        return self.config is not None and self.config.type in ("enabled", "adaptive")


def is_forced(request: ModelRequest) -> bool:
    choice = request.tool_choice
    return bool(request.tools) and (choice == "required" or isinstance(choice, ForcedTool))


def plan(request: ModelRequest, options: AnthropicOptions, claude: Claude, max_tokens: int) -> Plan:
    effort = request.reasoning_effort or options.effort
    if not claude.thinks:
        return Plan()
    # A model that must call a tool must not think first.
    if effort == "none" or (is_forced(request) and claude.can_be_forced):
        return _off(claude)
    if claude.takes_budget and (options.thinking is not None or not claude.adapts):
        wanted = options.thinking and options.thinking.budget_tokens
        budget = wanted or (budget_tokens(effort, max_tokens) if effort else None)
        return _budgeted(budget, options, max_tokens)
    if effort is None and options.thinking is None and not claude.thinks_unasked:
        return Plan()
    display = options.thinking_display or ("summarized" if claude.hides_thoughts else None)
    return Plan(
        config=ThinkingConfig(type="adaptive", display=display),
        effort=effort and lowered(effort, claude.efforts),
    )


def _budgeted(budget: int | None, options: AnthropicOptions, max_tokens: int) -> Plan:
    """Something must be left to say after thinking; without room for both there is no thinking."""
    if budget is None or max_tokens <= MIN_BUDGET_TOKENS:
        return Plan()
    return Plan(
        config=ThinkingConfig(
            type="enabled",
            budget_tokens=min(budget, max_tokens - 1),
            display=options.thinking_display,
        )
    )


def _off(claude: Claude) -> Plan:
    match claude.off:
        case "omit":
            return Plan(off=True)
        case "impossible":
            return Plan(effort="low")
        case "disabled" | "between_tools" as kind:
            return Plan(config=ThinkingConfig(type=kind), off=True)


def without_budget(thinking: Plan, claude: Claude) -> Plan:
    if thinking.config is None or thinking.config.type != "enabled":
        return thinking
    return Plan(config=ThinkingConfig(type="adaptive")) if claude.adapts else Plan()


def bound(thinking: Plan, claude: Claude) -> Plan:
    """The same, for a conversation that has thoughts in it, on a model that minds them."""
    if not claude.binds_thoughts or thinking.off:
        return thinking
    was = thinking.config or ThinkingConfig(type="adaptive", display="summarized")
    config = ThinkingConfig(type=was.type, display=was.display, block_binding=BlockBinding())
    return Plan(config=config, effort=thinking.effort)
