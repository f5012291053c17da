"""Encode a request as the body and the beta features of a Messages API call. Pure.

Owns the API's order of messages: the system prompt apart, users and assistants in turn, tool
results before other content of a user, no empty message; and the blocks marked for its cache.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct, structs

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import (
    ForcedTool,
    ModelRequest,
    PromptMessage,
    PromptText,
    as_function,
)
from chatd.providers.anthropic.anthropic_blocks import (
    BlockOptions,
    Body,
    CacheControl,
    ComputerTool,
    Content,
    FunctionTool,
    Message,
    OutputConfig,
    OutputFormat,
    RedactedThinking,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    WebSearchTool,
    assistant_blocks,
    toolset_call_ids,
    user_blocks,
)
from chatd.providers.anthropic.anthropic_models import (
    BINDING_BETA,
    TOOLSET,
    ZOOMING_TOOL,
    ClaudeFacts,
    Platform,
    ThinkingPlan,
    bind_thinking,
    claude_facts,
    drop_budget,
    forces_tool,
    plan_thinking,
)
from chatd.providers.http import encode_list
from chatd.providers.options import AnthropicOptions, parse_options
from chatd.providers.tool_schema import ToolNames, close_schema, encode_schema, sort_by_name

API_VERSION: Final = "2023-06-01"
BEDROCK_VERSION: Final = "bedrock-2023-05-31"
CONTEXT_1M_BETA: Final = "context-1m-2025-08-07"
_CACHE: Final = CacheControl()


class EncodedRequest(Struct, frozen=True, kw_only=True):
    """The decoder needs `names` to translate tool names back."""

    body: bytes
    betas: tuple[str, ...]
    names: ToolNames


def encode_request(
    request: ModelRequest, platform: Platform = "anthropic", *, sends_thinking: bool = True
) -> EncodedRequest:
    """Raises InvalidInput that names the invalid option. Without `sends_thinking` all earlier
    thinking is left out, and no budget asks for more.

    Else the budget stays the same at every step, also after an answer without thinking: a change
    would cost the prompt cache, twice. The API ignores it where the model cannot start to think."""
    options = parse_options(AnthropicOptions, request.options)
    if platform == "bedrock" and options.web_search_enabled:
        raise InvalidInput("options.web_search_enabled", "Bedrock does not search the web")
    claude = claude_facts(request.model)
    if not claude.family:  # another vendor's model behind this API
        request = as_function(request)
    names = _tool_names(request, options)
    max_tokens = request.max_output_tokens or claude.default_max_tokens
    plan = plan_thinking(request, options, claude, max_tokens)
    computer = claude.computer_tool(platform)
    messages = build_messages(
        request.messages,
        BlockOptions(
            names=names,
            send_thinking=sends_thinking and options.send_reasoning and not plan.is_off,
            as_toolset=request.computer is not None and computer.type == TOOLSET,
        ),
    )
    if not sends_thinking:
        plan = drop_budget(plan, claude)
    # From the first request on: a later change would cost the prompt cache.
    plan = bind_thinking(plan, claude)
    system = build_system(request.messages)
    betas = _betas(request, options, plan, computer.beta)
    tools = _tools(request, options, computer.type, names)
    has_sampling = claude.has_sampling and not plan.is_on
    body = Body(
        model=request.model if platform == "anthropic" else UNSET,
        stream=True if platform == "anthropic" else UNSET,
        anthropic_version=BEDROCK_VERSION if platform == "bedrock" else UNSET,
        anthropic_beta=betas if platform == "bedrock" and betas else UNSET,
        max_tokens=max_tokens,
        tools=tools or UNSET,
        system=(_mark_system_for_cache(system) if claude.has_prompt_cache else system) or UNSET,
        messages=encode_list(
            (
                *(_mark_for_cache(messages) if claude.has_prompt_cache else messages),
                *_prefill(request),
            )
        ),
        tool_choice=_tool_choice(request, options, claude, names) if tools else None,
        thinking=plan.config,
        output_config=_output_config(request, plan, claude),
        temperature=request.temperature if has_sampling else None,
        top_p=_top_p(request, claude) if has_sampling else None,
        top_k=request.top_k if has_sampling else None,
    )
    return EncodedRequest(body=msgspec.json.encode(body), betas=betas, names=names)


def can_continue(request: ModelRequest) -> bool:
    """The API takes no prefill together with thinking, nor with a schema for the answer."""
    try:
        options = parse_options(AnthropicOptions, request.options)
    except InvalidInput:
        return False
    claude = claude_facts(request.model)
    max_tokens = request.max_output_tokens or claude.default_max_tokens
    takes = claude.takes_prefill if options.prefill is None else options.prefill
    is_thinking = plan_thinking(request, options, claude, max_tokens).is_on
    return takes and not is_thinking and request.output_schema is UNSET


def _prefill(request: ModelRequest) -> tuple[Message, ...]:
    """Not marked for the cache: no later request begins with it."""
    if request.continues is None:
        return ()
    return (Message(role="assistant", content=(Text(text=request.continues),)),)


def _tool_names(request: ModelRequest, options: AnthropicOptions) -> ToolNames:
    reserved = ("computer",) if request.computer is not None else ()
    if options.web_search_enabled:
        reserved = (*reserved, "web_search")
    return ToolNames.of(tuple(tool.name for tool in request.tools), reserved=reserved)


def _betas(
    request: ModelRequest, options: AnthropicOptions, plan: ThinkingPlan, computer: str | None
) -> tuple[str, ...]:
    betas: list[str] = []
    if options.context_1m_enabled:
        betas.append(CONTEXT_1M_BETA)
    if request.computer is not None and computer is not None:
        betas.append(computer)
    if plan.config is not None and plan.config.block_binding is not None:
        betas.append(BINDING_BETA)
    return tuple(betas)


def _tools(
    request: ModelRequest, options: AnthropicOptions, computer: str, names: ToolNames
) -> tuple[Tool, ...]:
    tools: list[Tool] = [
        FunctionTool(
            name=names.to_wire(tool.name),
            description=tool.description,
            input_schema=encode_schema(tool.input_schema),
        )
        for tool in sort_by_name(request.tools)
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
                enable_zoom=True if computer == ZOOMING_TOOL else None,
            )
        )
    # The API does not combine an output schema with citations, which the search always makes.
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
    request: ModelRequest, options: AnthropicOptions, claude: ClaudeFacts, names: ToolNames
) -> ToolChoice | None:
    single = options.disable_parallel_tool_use
    choice = request.tool_choice
    if choice == "none":
        return ToolChoice(type="none")
    if choice == "auto" or not claude.can_force_tools or not forces_tool(request):
        return None if single is None else ToolChoice(type="auto", disable_parallel_tool_use=single)
    if isinstance(choice, ForcedTool):
        name = names.to_wire(choice.name)
        return ToolChoice(type="tool", name=name, disable_parallel_tool_use=single)
    return ToolChoice(type="any", disable_parallel_tool_use=single)


def _output_config(
    request: ModelRequest, plan: ThinkingPlan, claude: ClaudeFacts
) -> OutputConfig | None:
    schema = None
    if request.output_schema is not UNSET and claude.has_output_schemas:
        schema = OutputFormat(schema=close_schema(request.output_schema))
    if plan.effort is None and schema is None:
        return None
    return OutputConfig(effort=plan.effort, format=schema)


def _top_p(request: ModelRequest, claude: ClaudeFacts) -> float | None:
    has_temperature = request.temperature is not None and claude.has_one_sampling_value
    return None if has_temperature else request.top_p


# Messages


def build_system(messages: Sequence[PromptMessage]) -> tuple[Text, ...]:
    """The leading system messages. The API has no place for later ones."""
    blocks: list[Text] = []
    for message in messages:
        if message.role != "system":
            break
        texts = (part for part in message.parts if isinstance(part, PromptText))
        blocks.extend(Text(text=part.text) for part in texts if part.text.strip())
    return tuple(blocks)


def build_messages(messages: Sequence[PromptMessage], options: BlockOptions) -> list[Message]:
    members = toolset_call_ids(messages) if options.as_toolset else frozenset[str]()
    merged: list[Message] = []
    for number, message in enumerate(messages, start=1):
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = (
            assistant_blocks(message.parts, options, is_paused=number == len(messages))
            if role == "assistant"
            else user_blocks(message.parts, members)
        )
        if all(isinstance(block, Thinking | RedactedThinking) for block in blocks):
            continue
        if merged and merged[-1].role == role:
            blocks = [*merged.pop().content, *blocks]
        results_first = sorted(blocks, key=lambda block: not isinstance(block, ToolResult))
        merged.append(Message(role=role, content=tuple(results_first)))
    return merged


# Prompt cache


def _mark_system_for_cache(blocks: tuple[Text, ...]) -> tuple[Text, ...]:
    return (*blocks[:-1], structs.replace(blocks[-1], cache_control=_CACHE)) if blocks else blocks


def _mark_for_cache(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Mark the end of this request, and where the previous one ended: before the last answer. The
    API looks back only 20 blocks from a mark, and a step may have more calls and results."""
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    ends = {len(messages) - 1, *(index - 1 for index in answers[-1:])}
    return tuple(
        Message(role=message.role, content=_mark_last_block(message.content))
        if index in ends
        else message
        for index, message in enumerate(messages)
    )


def _mark_last_block(content: tuple[Content, ...]) -> tuple[Content, ...]:
    """The API takes no mark on thinking."""
    for index in range(len(content) - 1, -1, -1):
        block = content[index]
        if not isinstance(block, Thinking | RedactedThinking):
            marked = structs.replace(block, cache_control=_CACHE)
            return (*content[:index], marked, *content[index + 1 :])
    return content
