"""From a request to the body and the beta features of a Messages API call. Pure."""

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ForcedTool, ModelRequest
from chatd.providers.anthropic import prompt, thinking
from chatd.providers.anthropic.blocks import Wording
from chatd.providers.anthropic.models import TOOLSET, Claude, Platform, facts
from chatd.providers.anthropic.request import (
    Body,
    ComputerTool,
    FunctionTool,
    OutputConfig,
    OutputFormat,
    Tool,
    ToolChoice,
    WebSearchTool,
)
from chatd.providers.options import AnthropicOptions, parse
from chatd.providers.schema import ToolNames, by_name, closed, normalised

VERSION = "2023-06-01"
BEDROCK_VERSION = "bedrock-2023-05-31"
CONTEXT_1M_BETA = "context-1m-2025-08-07"


class Encoded(Struct, frozen=True, kw_only=True):
    """`names` is what the decoder needs to find the tools again."""

    body: bytes
    betas: tuple[str, ...]
    names: ToolNames


def encode(request: ModelRequest, platform: Platform = "anthropic") -> Encoded:
    """Raises InvalidInput, naming the option that is wrong."""
    options = parse(AnthropicOptions, request.options)
    if platform == "bedrock" and options.web_search_enabled:
        raise InvalidInput("options.web_search_enabled", "Bedrock does not search the web")
    claude = facts(request.model)
    names = _names(request, options)
    max_tokens = request.max_output_tokens or claude.default_max_tokens
    plan = thinking.plan(request, options, claude, max_tokens)
    computer = claude.computer(platform)
    messages = prompt.wire_messages(
        request.messages,
        Wording(
            names=names,
            thoughts=options.send_reasoning and not plan.off,
            toolset=request.computer is not None and computer.type == TOOLSET,
        ),
    )
    if prompt.breaks_thinking(messages):
        plan = thinking.without_budget(plan, claude)
    if prompt.has_thoughts(messages):
        plan = thinking.bound(plan, claude)
    system = prompt.system_blocks(request.messages)
    betas = _betas(request, options, plan, computer.beta)
    tools = _tools(request, options, computer.type, names)
    samples = claude.samples and not plan.on
    body = Body(
        model=request.model if platform == "anthropic" else UNSET,
        stream=True if platform == "anthropic" else UNSET,
        anthropic_version=BEDROCK_VERSION if platform == "bedrock" else UNSET,
        anthropic_beta=betas if platform == "bedrock" and betas else UNSET,
        max_tokens=max_tokens,
        tools=tools or UNSET,
        system=(prompt.cached_system(system) if claude.caches else system) or UNSET,
        messages=prompt.cached_messages(messages) if claude.caches else tuple(messages),
        tool_choice=_tool_choice(request, options, claude, names) if tools else None,
        thinking=plan.config,
        output_config=_output_config(request, plan, claude),
        temperature=request.temperature if samples else None,
        top_p=_top_p(request, claude) if samples else None,
        top_k=request.top_k if samples else None,
    )
    return Encoded(body=msgspec.json.encode(body), betas=betas, names=names)


def _names(request: ModelRequest, options: AnthropicOptions) -> ToolNames:
    reserved: set[str] = set()
    if request.computer is not None:
        reserved.add("computer")
    if options.web_search_enabled:
        reserved.add("web_search")
    return ToolNames((tool.name for tool in request.tools), reserved=reserved)


def _betas(
    request: ModelRequest, options: AnthropicOptions, plan: thinking.Plan, computer: str | None
) -> tuple[str, ...]:
    betas: list[str] = []
    if options.context_1m_enabled:
        betas.append(CONTEXT_1M_BETA)
    if request.computer is not None and computer is not None:
        betas.append(computer)
    if plan.config is not None and plan.config.block_binding is not None:
        betas.append(thinking.BINDING_BETA)
    return tuple(betas)


def _tools(
    request: ModelRequest, options: AnthropicOptions, computer: str, names: ToolNames
) -> tuple[Tool, ...]:
    tools: list[Tool] = [
        FunctionTool(
            name=names.wire(tool.name),
            description=tool.description,
            input_schema=normalised(tool.input_schema),
        )
        for tool in by_name(request.tools)
    ]
    if request.computer is not None:
        tools.append(
            ComputerTool(type=computer)
            if computer == TOOLSET
            else ComputerTool(
                type=computer,
                name="computer",
                display_width_px=request.computer.width_px,
                display_height_px=request.computer.height_px,
            )
        )
    # An answer in a schema cannot cite, so it cannot search either.
    if options.web_search_enabled and request.output_schema is UNSET:
        tools.append(
            WebSearchTool(
                name="web_search",
                allowed_domains=options.allowed_domains or None,
                blocked_domains=options.blocked_domains or None,
            )
        )
    return tuple(tools)


def _tool_choice(
    request: ModelRequest, options: AnthropicOptions, claude: Claude, names: ToolNames
) -> ToolChoice | None:
    single = options.disable_parallel_tool_use
    choice = request.tool_choice
    if choice == "none":
        return ToolChoice(type="none")
    if choice == "auto" or not claude.can_be_forced or not thinking.is_forced(request):
        return None if single is None else ToolChoice(type="auto", disable_parallel_tool_use=single)
    if isinstance(choice, ForcedTool):
        name = names.wire(choice.name)
        return ToolChoice(type="tool", name=name, disable_parallel_tool_use=single)
    return ToolChoice(type="any", disable_parallel_tool_use=single)


def _output_config(
    request: ModelRequest, plan: thinking.Plan, claude: Claude
) -> OutputConfig | None:
    schema = None
    if request.output_schema is not UNSET and claude.writes_schemas:
        schema = OutputFormat(schema=closed(request.output_schema))
    if plan.effort is None and schema is None:
        return None
    return OutputConfig(effort=plan.effort, format=schema)


def _top_p(request: ModelRequest, claude: Claude) -> float | None:
    is_one_too_many = request.temperature is not None and claude.one_sampling_value
    return None if is_one_too_many else request.top_p
