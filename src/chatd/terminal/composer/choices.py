"""Chooses the model of the next messages, and how much it thinks."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text
from textual.binding import Binding, BindingType

from chatd.client.drafts import ChatChange
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import McpServer, ModelChoice, Template, Workspace
from chatd.domain.ids import ChatId, ModelConfigId
from chatd.domain.model.protocol import Effort
from chatd.terminal.composer.drafts import WrittenDraft
from chatd.terminal.composer.model_texts import (
    EFFORT_NAMES,
    context_limit_of,
    effort_for,
    efforts_of,
    model_name,
    price_text,
    refusal_of_model,
    size_text,
)
from chatd.terminal.composer.open_draft import OpenDraft
from chatd.terminal.dialogs import MultiPicker, Pick, Picker
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import SessionApp
from chatd.terminal.themes import THEMES, keep_theme


def model_picks(
    models: Sequence[ModelChoice], current: ModelConfigId | None
) -> list[Pick[ModelChoice]]:
    """The models by provider, usable ones first. Deleted ones are left out."""
    known = [one for one in models if not one.deleted]
    known.sort(key=lambda one: (bool(refusal_of_model(one)), one.provider, one.display_name))
    return [
        Pick(
            value=one,
            label=model_name(one),
            note=_note(one),
            refusal=refusal_of_model(one),
            words=f"{one.name} {one.model}",
            is_current=one.id == current,
        )
        for one in known
    ]


def _note(model: ModelChoice) -> str:
    limit = context_limit_of(model)
    size = "" if limit is None else f"{size_text(limit)} context"
    return " · ".join(text for text in (model.provider, size, price_text(model)) if text)


class ModelPicker(Picker[ModelChoice]):
    """Returns the model; `chosen_effort` is the one that was chosen with it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "change_effort(-1)", "Less effort", show=False, priority=True),
        Binding("right", "change_effort(1)", "More effort", show=False, priority=True),
    ]

    def __init__(
        self,
        models: Sequence[ModelChoice],
        current: ModelConfigId | None,
        effort: Effort | None,
    ) -> None:
        super().__init__("Model of the next messages", model_picks(models, current))
        self._wanted: Effort | None = effort
        self.chosen_effort: Effort | None = effort

    def _choose(self) -> None:
        self.chosen_effort = self.effort
        super()._choose()

    @property
    def effort(self) -> Effort | None:
        model = None if self.pick is None else self.pick.value
        return effort_for(model, self._wanted)

    def action_change_effort(self, by: int) -> None:
        model = None if self.pick is None else self.pick.value
        efforts = () if model is None else efforts_of(model)
        effort = self.effort
        if effort is None:
            return
        at = efforts.index(effort) + by
        self._wanted = efforts[max(0, min(at, len(efforts) - 1))]
        self._show_foot()

    def _foot_text(self) -> Text:
        if not self.is_mounted or self.pick is None:
            return super()._foot_text()
        model = self.pick.value
        foot = Text(safe_line(f"{model.provider}/{model.model}", 70), "dim")
        foot.append("\nEffort  ")
        efforts = efforts_of(model)
        for one in efforts:
            is_chosen = one == self.effort
            foot.append(f" {EFFORT_NAMES[one]} ", "reverse" if is_chosen else "dim")
        foot.append("  ← → change it" if efforts else "this model does not reason", "dim")
        foot.append("\nEnter chooses · Esc closes", "dim")
        return foot


# What a person chooses for the next message or the new chat, each in its picker.

T = TypeVar("T")


class Place(Struct, frozen=True):
    """A workspace that exists, a template for a new one, or neither."""

    workspace: Workspace | None = None
    template: Template | None = None


class Choices:
    """`app` shows the pickers; `opened` keeps what was chosen."""

    def __init__(self, opened: OpenDraft, app: Callable[[], SessionApp]) -> None:
        self._opened = opened
        self._app = app

    def choose_model(self) -> None:
        self._opened.start(self._choose_model, "choice")

    async def _choose_model(self) -> None:
        opened, key = self._opened, self._opened.key
        models = await self._read(opened.facts.load_models())
        if models is None:
            return
        current = None if opened.model is None else opened.model.id
        picker = ModelPicker(models, current, opened.effort)
        model = await self._app().push_screen_wait(picker)
        if model is not None:
            effort = picker.chosen_effort
            opened.change_draft(lambda was: replace(was, model_id=model.id, effort=effort), key)

    def choose_theme(self, name: str) -> None:
        """Show the choice at once, and keep it for the next terminals of this machine."""
        self._opened.start(partial(self._choose_theme, name.lower()), "choice")

    async def _choose_theme(self, name: str) -> None:
        app = self._app()
        if name and name not in THEMES:
            self._opened.say(f"There are the themes {', '.join(THEMES)}.", "warning")
            return
        picks = [
            Pick(value=one, label=one, is_current=theme.name == app.theme)
            for one, theme in THEMES.items()
        ]
        chosen = name or await app.push_screen_wait(Picker("Colours", picks))
        if chosen:
            app.theme = THEMES[chosen].name
            keep_theme(self._opened.session.machine.state_directory, chosen)

    def choose_effort(self) -> None:
        self._opened.start(self._choose_effort, "choice")

    async def _choose_effort(self) -> None:
        opened, model, key = self._opened, self._opened.model, self._opened.key
        efforts = () if model is None else efforts_of(model)
        if not efforts:
            opened.say("This model has no reasoning effort to choose.")
            return
        picks = [
            Pick[Effort](value=one, label=EFFORT_NAMES[one], is_current=one == opened.effort)
            for one in efforts
        ]
        chosen = await self._app().push_screen_wait(Picker("Reasoning effort", picks))
        if chosen is not None:
            opened.change_draft(lambda was: replace(was, effort=chosen), key)

    def choose_workspace(self, name: str) -> None:
        self._opened.start(partial(self._choose_workspace, name), "choice")

    async def _choose_workspace(self, name: str) -> None:
        key, chat_id = self._opened.key, self._opened.chat_id
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
        api = self._opened.session.api
        workspaces = await api.list_workspaces(limit=100)
        templates = await api.list_templates(limit=100)
        chat = self._opened.facts.chat
        used = None if chat is None else chat.workspace_id
        drafted = self._opened.draft.workspace_id
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
        api, opened = self._opened.session.api, self._opened
        workspace = place.workspace
        if (template := place.template) is not None:
            workspace = await self._read(api.create_workspace(template.name))
            if workspace is None:
                return
            opened.say(f"The workspace {workspace.name} is being built.")
        if chat_id is None:
            found = workspace
            opened.change_draft(lambda was: _with_place(was, found), key)
            return
        change = ChatChange(workspace_id=None if workspace is None else workspace.id)
        try:
            await api.amend_chat(chat_id, change)
        except (ApiError, ServerUnreachable) as error:
            opened.say(error.message, "error")
            return
        opened.facts.read_chat()
        opened.say("No workspace." if workspace is None else f"Workspace: {workspace.name}")

    def choose_mcp_servers(self) -> None:
        self._opened.start(self._choose_mcp_servers, "choice")

    async def _choose_mcp_servers(self) -> None:
        """Choose them for a new chat; the screen of MCP servers is for a chat that exists."""
        opened, key = self._opened, self._opened.key
        page = await self._read(opened.session.api.list_mcp_servers(limit=200))
        if page is None:
            return
        if not page.items:
            opened.say("This server has no MCP servers. An administrator adds them.")
            return
        chosen = opened.draft.mcp_server_ids
        picks = [_server_pick(one) for one in page.items]
        usual = tuple(str(one.id) for one in page.items if one.availability == "default_on")
        screen = MultiPicker(
            "MCP servers of the new chat", picks, usual if chosen is None else chosen
        )
        ids = await self._app().push_screen_wait(screen)
        if ids is not None:
            opened.change_draft(lambda was: replace(was, mcp_server_ids=ids), key)

    async def _read(self, work: Awaitable[T]) -> T | None:
        """None, after reporting the reason, if the server refuses or does not answer."""
        try:
            return await work
        except (ApiError, ServerUnreachable) as error:
            self._opened.say(error.message, "error")
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
