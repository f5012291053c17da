"""The policies that count for a chat, from wide to narrow, as far as the user may read them."""

from typing import ClassVar, Final

from msgspec import Struct

from chatd.client.errors import ApiError
from chatd.client.policy_resources import ToolPolicyState
from chatd.client.resources import Chat
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId
from chatd.domain.tool_policy.rules import LayerName, ToolRule

TITLES: Final[dict[LayerName, str]] = {
    "deployment": "Of this server",
    "template": "Of the workspace's template",
    "user": "Your own, for all your chats",
    "chat": "Of this chat and its subagents",
}


class Layer(Struct, frozen=True, kw_only=True):
    """`note` says why there are no rules to show, or what holds for them."""

    name: LayerName
    policy: ToolPolicyState = ToolPolicyState()
    note: str = ""


class ChatPolicy(Struct, frozen=True, kw_only=True):
    """`chat_id` is the root of the chat's tree: subagents have the rules of their root."""

    chat_id: ChatId
    title: str
    can_edit: bool
    layers: tuple[Layer, ...]

    @property
    def own(self) -> ToolPolicyState:
        return next(layer.policy for layer in self.layers if layer.name == "chat")


class _WorkspaceTemplate(Struct, frozen=True):
    """The one field of a workspace that is used here."""

    api_name: ClassVar = "WorkspaceReply"

    template_id: str = ""


async def read_policy(api: ServerApi, chat_id: ChatId) -> ChatPolicy:
    """Raises ApiError and ServerUnreachable, if the chat's own rules cannot be read."""
    chat = await api.get(f"/chats/{chat_id}", Chat)
    root = chat.root_chat_id or chat_id
    is_owner = chat.is_owner is not False
    own = await api.get(f"/chats/{root}/tool-policy", ToolPolicyState)
    layers = [
        await _read(api, "deployment", "/settings/tool-policy", "Administrators see these rules."),
        await _read_template(api, chat),
    ]
    if is_owner:
        note = "This token does not read them."
        layers.append(await _read(api, "user", "/settings/me/tool-policy", note))
    layers.append(Layer(name="chat", policy=own))
    return ChatPolicy(chat_id=root, title=chat.title, can_edit=is_owner, layers=tuple(layers))


async def _read_template(api: ServerApi, chat: Chat) -> Layer:
    if chat.workspace_id is None:
        return Layer(name="template", note="The chat has no workspace yet.")
    try:
        workspace = await api.get(f"/workspaces/{chat.workspace_id}", _WorkspaceTemplate)
    except ApiError as error:
        return Layer(name="template", note=error.message)
    path = f"/templates/{workspace.template_id}/tool-policy"
    return await _read(api, "template", path, "You cannot read these rules.")


async def _read(api: ServerApi, name: LayerName, path: str, forbidden: str) -> Layer:
    """A layer that the user may not read is there all the same: its rules count."""
    try:
        return Layer(name=name, policy=await api.get(path, ToolPolicyState))
    except ApiError as error:
        return Layer(name=name, note=forbidden if error.status == 403 else error.message)


def with_rule(
    rules: tuple[ToolRule, ...], before: ToolRule | None, after: ToolRule | None
) -> tuple[ToolRule, ...]:
    """The rules with `after` in the place of `before`. None is no rule: to add, or to remove. If
    somebody else has removed `before`, `after` comes last."""
    changed = list(rules)
    if before is not None and before in changed:
        at = changed.index(before)
        changed[at : at + 1] = [] if after is None else [after]
    elif after is not None:
        changed.append(after)
    return tuple(changed)


async def save_rules(
    api: ServerApi, policy: ChatPolicy, rules: tuple[ToolRule, ...]
) -> ToolPolicyState:
    """Refused with the code `version_conflict` if the rules have changed meanwhile."""
    body = {"rules": rules, "version": policy.own.version}
    return await api.put(f"/chats/{policy.chat_id}/tool-policy", body, ToolPolicyState)
