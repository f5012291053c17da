"""What a person chooses for the next message or the new chat, each in its picker."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.choice_resources import Template, Workspace
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import McpServer, Page
from chatd.client.server import new_key
from chatd.domain.ids import ChatId
from chatd.domain.model.protocol import Effort
from chatd.terminal.composer.chat_actions import ChatActions
from chatd.terminal.composer.drafts import WrittenDraft
from chatd.terminal.composer.host import ComposerHost
from chatd.terminal.pickers.model_picker import ModelPicker
from chatd.terminal.pickers.model_texts import EFFORT_NAMES, efforts_of
from chatd.terminal.pickers.multi_picker import MultiPicker
from chatd.terminal.pickers.picker import Pick, Picker
from chatd.terminal.session import SessionApp

T = TypeVar("T")


class Place(Struct, frozen=True):
    """A workspace that exists, a template for a new one, or neither."""

    workspace: Workspace | None = None
    template: Template | None = None


class Choices:
    """`app` shows the pickers; `host` has the draft."""

    def __init__(self, host: ComposerHost, app: Callable[[], SessionApp]) -> None:
        self._host = host
        self._app = app

    async def choose_model(self) -> None:
        host, key = self._host, self._host.key
        models = await self._read(host.facts.load_models())
        if models is None:
            return
        current = None if host.model is None else host.model.id
        picker = ModelPicker(models, current, host.effort)
        model = await self._app().push_screen_wait(picker)
        if model is not None:
            effort = picker.chosen_effort
            host.change_draft(lambda was: replace(was, model_id=model.id, effort=effort), key)

    async def choose_effort(self) -> None:
        host, model, key = self._host, self._host.model, self._host.key
        efforts = () if model is None else efforts_of(model)
        if not efforts:
            host.say("This model has no reasoning effort to choose.")
            return
        picks = [
            Pick[Effort](value=one, label=EFFORT_NAMES[one], is_current=one == host.effort)
            for one in efforts
        ]
        chosen = await self._app().push_screen_wait(Picker("Reasoning effort", picks))
        if chosen is not None:
            host.change_draft(lambda was: replace(was, effort=chosen), key)

    async def choose_workspace(self, name: str) -> None:
        key, chat_id = self._host.key, self._host.chat_id
        picks = await self._read(self._list_places())
        if picks is None:
            return
        named = [one for one in picks if name and one.label.lower() == name.lower()]
        chosen = named[0].value if named else None
        if chosen is None:
            chosen = await self._app().push_screen_wait(Picker("Where its tools act", picks))
        if chosen is not None:
            await self._use_place(chosen, key, chat_id)

    async def _list_places(self) -> list[Pick[Place]]:
        api = self._host.session.api
        workspaces = await api.get("/workspaces", Page[Workspace], limit=100)
        templates = await api.get("/templates", Page[Template], limit=100)
        chat = self._host.facts.chat
        used = None if chat is None else chat.workspace_id
        drafted = self._host.draft.workspace_id
        picks = [
            Pick(
                value=Place(),
                label="None until it is needed",
                note="the chat creates one by itself",
                is_current=used is None and not drafted,
            )
        ]
        picks += [
            Pick(
                value=Place(workspace=one),
                label=one.name,
                note="workspace",
                is_current=one.id == used or str(one.id) == drafted,
            )
            for one in workspaces.items
            if not one.deleted
        ]
        picks += [
            Pick(
                value=Place(template=one),
                label=f"New: {one.display_name or one.name}",
                note=one.description,
                refusal="no longer used for new workspaces" if one.deprecated else "",
            )
            for one in templates.items
        ]
        return picks

    async def _use_place(self, place: Place, key: str, chat_id: ChatId | None) -> None:
        """`key` and `chat_id`: for which it was chosen. Another chat may be open by now."""
        api, host = self._host.session.api, self._host
        workspace = place.workspace
        if (template := place.template) is not None:
            body = {"template": template.name}
            workspace = await self._read(api.post("/workspaces", body, Workspace, key=new_key()))
            if workspace is None:
                return
            host.say(f"The workspace {workspace.name} is being built.")
        if chat_id is None:
            found = workspace
            host.change_draft(lambda was: _with_place(was, found), key)
            return
        change = {"workspace_id": None if workspace is None else workspace.id}
        try:
            await ChatActions(api, chat_id).update(change)
        except (ApiError, ServerUnreachable) as error:
            host.say(error.message, "error")
            return
        host.facts.read_chat()
        host.say("No workspace." if workspace is None else f"Workspace: {workspace.name}")

    async def choose_mcp_servers(self) -> None:
        """For a new chat; the screen of MCP servers is for a chat that exists."""
        host, key = self._host, self._host.key
        page = await self._read(host.session.api.get("/mcp-servers", Page[McpServer], limit=200))
        if page is None:
            return
        if not page.items:
            host.say("This server has no MCP servers. An administrator adds them.")
            return
        chosen = host.draft.mcp_server_ids
        picks = [_server_pick(one) for one in page.items]
        usual = tuple(str(one.id) for one in page.items if one.availability == "default_on")
        screen = MultiPicker(
            "MCP servers of the new chat", picks, usual if chosen is None else chosen
        )
        ids = await self._app().push_screen_wait(screen)
        if ids is not None:
            host.change_draft(lambda was: replace(was, mcp_server_ids=ids), key)

    async def _read(self, work: Awaitable[T]) -> T | None:
        """None, and the reason is said, if the server refuses or does not answer."""
        try:
            return await work
        except (ApiError, ServerUnreachable) as error:
            self._host.say(error.message, "error")
            return None


def _with_place(draft: WrittenDraft, workspace: Workspace | None) -> WrittenDraft:
    if workspace is None:
        return replace(draft, workspace_id="", workspace_name="")
    return replace(draft, workspace_id=str(workspace.id), workspace_name=workspace.name)


def _server_pick(server: McpServer) -> Pick[str]:
    is_forced = server.availability == "force_on"
    return Pick(
        value=str(server.id),
        label=server.display_name or server.slug,
        note="always on" if is_forced else server.description,
        refusal="it is always on" if is_forced else "",
        words=server.slug,
    )
