"""The context of one step: the chat's model, the tools and the instructions.

Loaded again for every step, because all of them can change during a turn.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.answer.tool_calls import ToolSet
from chatd.domain.chat.row import Chat
from chatd.domain.decisions import TurnRules
from chatd.domain.model.protocol import ModelConfig, ToolSpec
from chatd.domain.ports import ModelChoice, ModelSource, Tool, ToolSource
from chatd.domain.prompt.compaction import DEFAULT_THRESHOLD_PERCENT
from chatd.domain.prompt.instructions import Instructions

_CLIENT_TOOLS: Final = msgspec.json.Decoder(tuple[ToolSpec, ...])


class TurnContext(Struct, frozen=True, kw_only=True):
    choice: ModelChoice
    tools: Mapping[str, Tool]
    client_tools: tuple[ToolSpec, ...]
    instructions: Instructions = Instructions()

    @property
    def config(self) -> ModelConfig:
        return self.choice.config

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The server's tools, then the client's. The server's tool wins a name clash."""
        own = tuple(tool.spec for tool in self.tools.values())
        return (*own, *(spec for spec in self.client_tools if spec.name not in self.tools))

    @property
    def client_names(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.client_tools) - self.tools.keys()

    @property
    def toolbox(self) -> ToolSet:
        return ToolSet(tools=self.tools)

    @property
    def rules(self) -> TurnRules:
        threshold = self.config.compaction_threshold
        return TurnRules(
            client_tools=self.client_names,
            exclusive_tools=frozenset(n for n, tool in self.tools.items() if tool.exclusive),
            stop_after_tools=frozenset(n for n, tool in self.tools.items() if tool.stops_turn),
            context_limit=self.config.context_limit,
            compaction_threshold=DEFAULT_THRESHOLD_PERCENT if threshold is None else threshold,
        )


async def load_turn_context(chat: Chat, models: ModelSource, tools: ToolSource) -> TurnContext:
    """Raises ModelFailed if the chat's model cannot be used."""
    choice = await models.choose(chat.model_config_id)
    found = await tools.tools(chat)
    client = () if chat.client_tools is UNSET else _CLIENT_TOOLS.decode(chat.client_tools)
    return TurnContext(
        choice=choice,
        tools={tool.spec.name: tool for tool in found},
        client_tools=client,
        instructions=await tools.instructions(chat),
    )
