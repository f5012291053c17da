"""The families of tools that chats of this process have."""

from collections.abc import Mapping

from chatd.app.api_services import file_limits
from chatd.domain.chat.row import Chat
from chatd.domain.ports import Env, ToolFamily
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.subagents import SubagentLimits
from chatd.engine.subagents import SubagentService
from chatd.mcp_services import McpRuntime, declared_servers, private_hosts
from chatd.models.directory import ModelDirectory
from chatd.models.subagent_models import SubagentModelChoice
from chatd.replica import Replica
from chatd.runtime_settings import RuntimeSettings
from chatd.sealed_secrets import KeyRing
from chatd.settings.schema import Settings
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.chat_tools import ChatFileTools, ChatTools, ToolOrders
from chatd.tools.files import SavedResultTools, save_results
from chatd.tools.questions import QuestionTools
from chatd.tools.skill_directory import SkillDirectory, no_workspace_skills
from chatd.tools.skills import SkillTools
from chatd.tools.subagents import SubagentTools
from chatd.workspace_services import (
    WorkspaceServices,
)


async def _no_instructions(chat: Chat) -> Instructions:
    """Of a process without workspaces."""
    del chat
    return Instructions()


def chat_tools(
    services: WorkspaceServices | None, families: list[ToolFamily], skills: SkillDirectory
) -> ChatTools:
    load = _no_instructions if services is None else services.chat_instructions
    return ChatTools(families, load, skills)


def first_families(
    services: WorkspaceServices | None, env: Env
) -> tuple[list[ToolFamily], SkillDirectory]:
    """More families may be added to the list until chats run."""
    list_skills = no_workspace_skills if services is None else services.instructions.skills
    skills = SkillDirectory(list_skills, env)
    families: list[ToolFamily] = [QuestionTools(), SkillTools(skills, services)]
    if services is not None:
        families += [services.tools, services.mcp_tools]
    return families, skills


def subagent_tools(
    settings: Settings, replica: Replica, models: ModelDirectory, runtime_settings: RuntimeSettings
) -> ToolFamily:
    return SubagentTools(
        SubagentService(
            replica.database.pool,
            replica.transactor,
            replica.env,
            reserve_slot=replica.worker.reserve_slot,
            models=SubagentModelChoice(models, runtime_settings, replica.env),
            limits=SubagentLimits(
                running=settings.limits.running_subagents_per_chat,
                total=settings.limits.subagents_per_chat,
            ),
        )
    )


def add_families(
    families: list[ToolFamily],
    services: WorkspaceServices | None,
    settings: Settings,
    replica: Replica,
    tools: ChatTools,
) -> None:
    """Those that need the replica's database, as the order of tools does."""
    tools.orders = ToolOrders(replica.database.pool, replica.env)
    pool, env = replica.database.pool, replica.env
    files = ChatFileWriter(pool, replica.files, file_limits(settings), env)
    tools.save = save_results(services, files)
    # First: its read_file also reads the results that are files of the chat.
    families.insert(0, SavedResultTools(services, files))
    if services is not None:
        families.append(ChatFileTools(services, files))


def build_mcp_runtime(
    settings: Settings,
    env: Mapping[str, str],
    replica: Replica,
    ring: KeyRing,
    families: list[ToolFamily],
) -> McpRuntime:
    runtime = McpRuntime(
        replica.database.pool,
        replica.config_changes,
        replica.env,
        ring,
        hosts=private_hosts(settings),
        declared=declared_servers(settings, env),
    )
    # First: a server that a workspace declares must not take the name of a configured one's tool.
    families.insert(0, runtime.tools)
    return runtime
