"""The tools that create, start and stop a chat's workspace. Only root chats have them: a subagent
works in its parent's workspace."""

from typing import Annotated, Final

from msgspec import Struct, field

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.ports import Provisioner, ToolContext, WorkspaceRequest
from chatd.tools.tool import (
    AT_LEAST_1,
    NOT_BLANK,
    WorkspaceTool,
    argument,
    json_output,
    workspace_tool,
)

WORKSPACE_TOOL_TIMEOUT_S: Final = 25 * 60.0
"""More than the limits of a build, its agent and its start-up scripts together."""
TEMPLATE_ID_TEXT: Final = "the id or the name of a template, from list_templates."

_Parameters = Annotated[
    dict[str, str],
    argument("Answers to the template's parameters, by name; see read_template."),
]


class ListTemplatesArguments(Struct, frozen=True, kw_only=True):
    query: Annotated[str, argument("Words to look for in names and descriptions.")] = ""
    page: Annotated[int, AT_LEAST_1, argument("Which page, from 1. Default 1.")] = 1


class ReadTemplateArguments(Struct, frozen=True, kw_only=True):
    template_id: Annotated[str, NOT_BLANK, argument("Its id or its name.", TEMPLATE_ID_TEXT)]


class CreateWorkspaceArguments(Struct, frozen=True, kw_only=True):
    template_id: Annotated[
        str, NOT_BLANK, argument("Id or name of the template.", TEMPLATE_ID_TEXT)
    ]
    name: Annotated[str, argument("A name for it. Default: one is made up.")] = ""
    parameters: _Parameters = field(default_factory=dict[str, str])


class StartWorkspaceArguments(Struct, frozen=True, kw_only=True):
    parameters: _Parameters = field(default_factory=dict[str, str])


class StopWorkspaceArguments(Struct, frozen=True):
    pass


def workspace_tools(provisioner: Provisioner) -> tuple[WorkspaceTool, ...]:
    """The tools that build are serial: two in one step must not race for the chat's workspace."""
    return (
        _list_templates(provisioner),
        _read_template(provisioner),
        _create_workspace(provisioner),
        _start_workspace(provisioner),
        _stop_workspace(provisioner),
    )


def _list_templates(provisioner: Provisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ListTemplatesArguments) -> ToolOutput:
        query = args.query.strip()
        listing = await provisioner.list_templates(context.chat, query=query, page=args.page)
        return json_output(listing)

    return workspace_tool(
        "list_templates",
        "The templates that a workspace can be made from, best first. Choose one, then call"
        " create_workspace.",
        ListTemplatesArguments,
        handle,
        effect="read",
    )


def _read_template(provisioner: Provisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ReadTemplateArguments) -> ToolOutput:
        return json_output(await provisioner.read_template(context.chat, args.template_id))

    return workspace_tool(
        "read_template",
        "What a template makes, and the parameters that it takes.",
        ReadTemplateArguments,
        handle,
        effect="read",
    )


def _create_workspace(provisioner: Provisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: CreateWorkspaceArguments) -> ToolOutput:
        request = WorkspaceRequest(
            template=args.template_id,
            name=args.name.strip(),
            parameters=args.parameters,
            key=context.call_key,
        )
        return json_output(await provisioner.create(context, request))

    return workspace_tool(
        "create_workspace",
        "Make a workspace for this chat and wait until it can be used. If the chat has one"
        " that works, that one is kept.",
        CreateWorkspaceArguments,
        handle,
        serial=True,
        timeout_s=WORKSPACE_TOOL_TIMEOUT_S,
    )


def _start_workspace(provisioner: Provisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: StartWorkspaceArguments) -> ToolOutput:
        return json_output(await provisioner.start(context, args.parameters))

    return workspace_tool(
        "start_workspace",
        "Start this chat's workspace if it is stopped, and wait until it can be used.",
        StartWorkspaceArguments,
        handle,
        serial=True,
        timeout_s=WORKSPACE_TOOL_TIMEOUT_S,
    )


def _stop_workspace(provisioner: Provisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: StopWorkspaceArguments) -> ToolOutput:
        del args
        return json_output(await provisioner.stop(context))

    return workspace_tool(
        "stop_workspace",
        "Stop this chat's workspace. Its files are kept, everything that runs in it ends.",
        StopWorkspaceArguments,
        handle,
        serial=True,
        timeout_s=WORKSPACE_TOOL_TIMEOUT_S,
    )
