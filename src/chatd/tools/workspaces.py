"""The tools by which a chat gets a workspace. Only chats without a parent have them: a subagent
works where its parent does."""

from typing import Final
from uuid import UUID

from chatd.domain.call_key import call_key
from chatd.domain.ports import ToolContext
from chatd.domain.provisioning import Provisioner, Wish
from chatd.domain.tool_output import ToolOutput
from chatd.domain.workspace import TemplateId
from chatd.tools.arguments import Arguments
from chatd.tools.tool import WorkspaceTool, answer, spec

BUILD_S: Final = 25 * 60.0
"""A build, its agent and its start-up scripts each have a limit of their own, which is less."""
WHICH: Final = "the id of a template, from list_templates."
PARAMETERS: Final = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "Answers to the template's parameters, by name; see read_template.",
}


def workspace_tools(provisioner: Provisioner) -> tuple[WorkspaceTool, ...]:
    """Those that build are serial: two of one step must not race for the chat's workspace."""
    return (
        _list_templates(provisioner),
        _read_template(provisioner),
        _create_workspace(provisioner),
        _start_workspace(provisioner),
        _stop_workspace(provisioner),
    )


def _list_templates(provisioner: Provisioner) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        query = (args.optional_text("query") or "").strip()
        page = args.whole("page", 1, least=1)
        return answer(await provisioner.list_templates(context.chat, query=query, page=page))

    return WorkspaceTool(
        effect="read",
        act=act,
        spec=spec(
            "list_templates",
            "The templates that a workspace can be made from, best first. Choose one, then call"
            " create_workspace.",
            query={"type": "string", "description": "Words to look for in names and descriptions."},
            page={"type": "integer", "description": "Which page, from 1. Default 1."},
        ),
    )


def _read_template(provisioner: Provisioner) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        template = _template_id(args)
        return answer(await provisioner.read_template(context.chat, template))

    return WorkspaceTool(
        effect="read",
        act=act,
        spec=spec(
            "read_template",
            "What a template makes, and the parameters that it takes.",
            template_id={"type": "string", "description": "Its id.", "needed": True},
        ),
    )


def _create_workspace(provisioner: Provisioner) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        wish = Wish(
            template_id=_template_id(args),
            name=(args.optional_text("name") or "").strip(),
            parameters=args.texts("parameters"),
            key=call_key(context),
        )
        return answer(await provisioner.create(context, wish))

    return WorkspaceTool(
        act=act,
        serial=True,
        timeout_s=BUILD_S,
        spec=spec(
            "create_workspace",
            "Make a workspace for this chat and wait until it can be used. If the chat has one"
            " that works, that one is kept.",
            template_id={"type": "string", "description": "Id of the template.", "needed": True},
            name={"type": "string", "description": "A name for it. Default: one is made up."},
            parameters=PARAMETERS,
        ),
    )


def _start_workspace(provisioner: Provisioner) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        return answer(await provisioner.start(context, args.texts("parameters")))

    return WorkspaceTool(
        act=act,
        serial=True,
        timeout_s=BUILD_S,
        spec=spec(
            "start_workspace",
            "Start this chat's workspace if it is stopped, and wait until it can be used.",
            parameters=PARAMETERS,
        ),
    )


def _stop_workspace(provisioner: Provisioner) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        del args
        return answer(await provisioner.stop(context))

    return WorkspaceTool(
        act=act,
        serial=True,
        timeout_s=BUILD_S,
        spec=spec(
            "stop_workspace",
            "Stop this chat's workspace. Its files are kept, everything that runs in it ends.",
        ),
    )


def _template_id(args: Arguments) -> TemplateId:
    text = args.text("template_id", why=WHICH).strip()
    try:
        return TemplateId(UUID(text))
    except ValueError:
        raise args.wrong("template_id", f"is not an id: {text[:100]!r}. Give {WHICH}") from None
