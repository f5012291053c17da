"""Facts about Claude models by name, and the thinking settings of a request.

A field that one model requires is an error on another. A model with an unknown name is taken for
one that accepts every field.
"""

import re
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.model.protocol import DEFAULT_MAX_OUTPUT_TOKENS, Effort, ForcedTool, ModelRequest
from chatd.providers.anthropic.anthropic_blocks import BlockBinding, ThinkingConfig
from chatd.providers.options import (
    MIN_THINKING_BUDGET_TOKENS,
    AnthropicOptions,
    lower_effort,
    thinking_budget_tokens,
)

Platform = Literal["anthropic", "bedrock"]
ThinkingOff = Literal["omit", "disabled", "between_tools", "impossible"]
"""How a request disables thinking."""

TOOLSET: Final = "computer_toolset_20260801"
ZOOMING_TOOL: Final = "computer_20251124"
"""It has the action `zoom`, which the request switches on."""

_NAMED: Final = re.compile(
    r"claude-(?P<family>opus|sonnet|haiku|fable|mythos)-(?P<major>\d)(?:[-.](?P<minor>\d{1,2})(?!\d))?"
)
_NUMBERED: Final = re.compile(
    r"claude-(?P<major>\d)(?:[-.](?P<minor>\d{1,2}))?-(?P<family>opus|sonnet|haiku)"
)
_ANCIENT: Final = re.compile(r"claude-(?:instant|v?[12](?!\d))")


class ComputerToolVersion(Struct, frozen=True, kw_only=True):
    """The type of the computer tool, and the beta feature that it needs."""

    type: str
    beta: str | None = None


class ClaudeFacts(Struct, frozen=True, kw_only=True):
    family: str
    version: tuple[int, int]

    @property
    def _newest_rules(self) -> bool:
        """These versions bind thinking to its history and cannot be forced to call a tool."""
        since = (5, 1) if self.family in ("fable", "mythos") else (5, 5)
        return self.version >= since

    @property
    def can_think(self) -> bool:
        return self.version >= (3, 7)

    @property
    def has_thinking_budget(self) -> bool:
        """Takes a thinking budget in tokens."""
        return (3, 7) <= self.version <= (4, 6)

    @property
    def has_adaptive_thinking(self) -> bool:
        """Chooses how long to think, guided by an effort."""
        return self.version >= (4, 6)

    @property
    def thinks_by_default(self) -> bool:
        return self.version >= (5, 0)

    @property
    def hides_thinking(self) -> bool:
        """Omits the text of thinking unless the request asks for it."""
        return self.version >= (4, 7)

    @property
    def thinking_off(self) -> ThinkingOff:
        if not self.thinks_by_default:
            return "omit"
        if self.family in ("fable", "mythos") or (self.family == "opus" and self._newest_rules):
            return "impossible"
        if self.family == "sonnet" and self._newest_rules:
            return "between_tools"
        return "disabled"

    @property
    def efforts(self) -> tuple[Effort, ...]:
        if self.version == (4, 6):
            return ("low", "medium", "high", "max")
        return ("low", "medium", "high", "xhigh", "max")

    @property
    def has_sampling(self) -> bool:
        """Takes temperature, top_p and top_k."""
        return self.version < (4, 7)

    @property
    def has_one_sampling_value(self) -> bool:
        """Takes temperature or top_p, not both."""
        return bool(self.family) and self.version >= (4, 1)

    @property
    def can_force_tools(self) -> bool:
        return not self._newest_rules

    @property
    def binds_thinking(self) -> bool:
        """Rejects thinking after changed history, unless the request allows dropping it."""
        return self._newest_rules

    @property
    def has_output_schemas(self) -> bool:
        """Takes a JSON schema for the answer."""
        return self.version >= (4, 5)

    @property
    def has_prompt_cache(self) -> bool:
        return self.version >= (3, 5)

    @property
    def takes_prefill(self) -> bool:
        """Goes on from an assistant's message at the end. Later versions refuse it."""
        return bool(self.family) and self.version < (4, 6)

    @property
    def default_max_tokens(self) -> int:
        if self.version < (3, 5):
            return 4096
        return 8192 if self.version < (3, 7) else DEFAULT_MAX_OUTPUT_TOKENS

    def computer_tool(self, platform: Platform) -> ComputerToolVersion:
        if self.version >= (5, 5) or (self.family in ("fable", "mythos") and self._newest_rules):
            if platform == "anthropic":
                return ComputerToolVersion(type=TOOLSET)
        elif self.version < (3, 7):
            return ComputerToolVersion(type="computer_20241022", beta="computer-use-2024-10-22")
        elif self.version < (4, 5) or (self.version == (4, 5) and self.family != "opus"):
            return ComputerToolVersion(type="computer_20250124", beta="computer-use-2025-01-24")
        return ComputerToolVersion(type=ZOOMING_TOOL, beta="computer-use-2025-11-24")


# A model behind a gateway: thinks on request and takes all fields.
UNKNOWN_CLAUDE: Final = ClaudeFacts(family="", version=(4, 6))


def claude_facts(model: str) -> ClaudeFacts:
    name = model.lower()
    if match := _NAMED.search(name) or _NUMBERED.search(name):
        version = (int(match["major"]), int(match["minor"] or 0))
        return ClaudeFacts(family=match["family"], version=version)
    if "claude-mythos" in name:
        return ClaudeFacts(family="mythos", version=(4, 7))
    if _ANCIENT.search(name):
        return ClaudeFacts(family="", version=(2, 0))
    return UNKNOWN_CLAUDE


_BEDROCK_REGION: Final = re.compile(r"^(?:us|eu|apac|jp|au|ca|sa|me|af|global|us-gov)\.")
_BEDROCK_VENDOR: Final = re.compile(r"^(?P<vendor>[a-z0-9-]+)\.[a-z]")


def bedrock_objection(model: str) -> str | None:
    """Why Bedrock's Messages API cannot serve a model. None for Claude, and for a name that says
    no vendor, such as the ARN of an inference profile."""
    name = _BEDROCK_REGION.sub("", model.lower().rsplit("/", 1)[-1])
    found = _BEDROCK_VENDOR.match(name)
    if found is None or found["vendor"] == "anthropic":
        return None
    return (
        f"{model} is not a Claude model, and chatd calls only Claude on Bedrock: use a gateway with"
        " OpenAI's API for it, as a provider of kind openai-compat"
    )


BINDING_BETA = "thinking-binding-controls-2026-08-01"


class ThinkingPlan(Struct, frozen=True, kw_only=True):
    """`is_off`: the request disables thinking, so earlier thinking is left out too."""

    config: ThinkingConfig | None = None
    effort: str | None = None
    is_off: bool = False

    @property
    def is_on(self) -> bool:
        return self.config is not None and self.config.type in ("enabled", "adaptive")


def forces_tool(request: ModelRequest) -> bool:
    choice = request.tool_choice
    return bool(request.tools) and (choice == "required" or isinstance(choice, ForcedTool))


def plan_thinking(
    request: ModelRequest, options: AnthropicOptions, claude: ClaudeFacts, max_tokens: int
) -> ThinkingPlan:
    effort = request.reasoning_effort or options.effort
    if not claude.can_think:
        return ThinkingPlan()
    # The API does not combine thinking with a forced tool.
    if effort == "none" or (forces_tool(request) and claude.can_force_tools):
        return _off(claude)
    if claude.has_thinking_budget and (
        options.thinking is not None or not claude.has_adaptive_thinking
    ):
        wanted = options.thinking and options.thinking.budget_tokens
        budget = wanted or (thinking_budget_tokens(effort, max_tokens) if effort else None)
        return _budgeted(budget, options, max_tokens)
    if effort is None and options.thinking is None and not claude.thinks_by_default:
        return ThinkingPlan()
    display = options.thinking_display or ("summarized" if claude.hides_thinking else None)
    return ThinkingPlan(
        config=ThinkingConfig(type="adaptive", display=display),
        effort=effort and lower_effort(effort, claude.efforts),
    )


def _budgeted(budget: int | None, options: AnthropicOptions, max_tokens: int) -> ThinkingPlan:
    """The budget must leave tokens for the answer; no thinking without enough tokens for both."""
    if budget is None or max_tokens <= MIN_THINKING_BUDGET_TOKENS:
        return ThinkingPlan()
    return ThinkingPlan(
        config=ThinkingConfig(
            type="enabled",
            budget_tokens=min(budget, max_tokens - 1),
            display=options.thinking_display,
        )
    )


def _off(claude: ClaudeFacts) -> ThinkingPlan:
    match claude.thinking_off:
        case "omit":
            return ThinkingPlan(is_off=True)
        case "impossible":
            return ThinkingPlan(effort="low")
        case "disabled":
            return ThinkingPlan(config=ThinkingConfig(type="disabled"), is_off=True)
        case "between_tools":
            # The model still thinks between tool calls, and wants that thinking back.
            return ThinkingPlan(config=ThinkingConfig(type="between_tools"))


def drop_budget(thinking: ThinkingPlan, claude: ClaudeFacts) -> ThinkingPlan:
    if thinking.config is None or thinking.config.type != "enabled":
        return thinking
    return (
        ThinkingPlan(config=ThinkingConfig(type="adaptive"))
        if claude.has_adaptive_thinking
        else ThinkingPlan()
    )


def bind_thinking(thinking: ThinkingPlan, claude: ClaudeFacts) -> ThinkingPlan:
    """Let the API drop thinking after changed history, for models that bind it. It has no such
    field if the model thinks only between tool calls."""
    config = thinking.config
    is_between = config is not None and config.type == "between_tools"
    if not claude.binds_thinking or thinking.is_off or is_between:
        return thinking
    was = thinking.config or ThinkingConfig(type="adaptive", display="summarized")
    config = ThinkingConfig(type=was.type, display=was.display, block_binding=BlockBinding())
    return ThinkingPlan(config=config, effort=thinking.effort)
