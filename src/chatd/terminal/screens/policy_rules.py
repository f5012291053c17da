"""Rules of the tool policy as people read and write them. Pure: commands use it too."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from chatd.client.calls import Call
from chatd.client.errors import ApiError
from chatd.client.resources import Chat, ToolPolicyState
from chatd.client.server import ServerApi
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId
from chatd.domain.text import Json
from chatd.domain.tool_policy.decision import decide, rule_for_call
from chatd.domain.tool_policy.rules import (
    LayerName,
    PolicyAction,
    PolicyLayer,
    ToolPolicy,
    ToolRule,
    check_rule,
)
from chatd.terminal.answers.exact_text import exact_text

# Rules of a tool policy while a person edits them: one argument a line. Pure.

ACTIONS: Final[Mapping[PolicyAction, str]] = {
    "auto": "Run",
    "ask": "Ask first",
    "deny": "Never run",
}


class RuleProblem(Exception):
    """Says what a person is to change in a rule."""


class RuleDraft(Struct, frozen=True, kw_only=True):
    tool: str = ""
    action: PolicyAction = "ask"
    args: str = ""
    reason: str = ""


def draft_of_rule(rule: ToolRule) -> RuleDraft:
    return RuleDraft(
        tool=rule.tool, action=rule.action, args=pattern_lines(rule.args), reason=rule.reason
    )


def pattern_lines(args: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {pattern}" for name, pattern in args.items())


def read_patterns(lines: str) -> dict[str, str]:
    """Raises RuleProblem."""
    found: dict[str, str] = {}
    for line in lines.splitlines():
        if not line.strip():
            continue
        name, colon, pattern = line.partition(":")
        if not colon or not name.strip():
            raise RuleProblem(
                f"«{line.strip()}» is no argument: write its name, a colon and a pattern, such as"
                " command: git push *"
            )
        if name.strip() in found:
            raise RuleProblem(f"The argument {name.strip()} is there twice: keep one line of it.")
        found[name.strip()] = pattern.strip()
    return found


def rule_of_draft(draft: RuleDraft) -> ToolRule:
    """Raises RuleProblem."""
    rule = ToolRule(
        tool=draft.tool.strip(),
        action=draft.action,
        args=read_patterns(draft.args),
        reason=draft.reason.strip(),
    )
    try:
        return check_rule(rule, "rule")
    except InvalidInput as error:
        raise RuleProblem(error.message) from None


def can_edit(rule: ToolRule) -> bool:
    """Whether the lines say the same rule again when they are read: not so with line breaks, blanks
    at an end, and characters that cannot be seen."""
    lines = pattern_lines(rule.args)
    try:
        return exact_text(lines) == lines and read_patterns(lines) == dict(rule.args)
    except RuleProblem:
        return False


def always_rule(tool_name: str, args: Json) -> ToolRule | None:
    """What «always» stores if nothing else is written: of a command exactly this one, of another
    tool all calls."""
    return rule_for_call(tool_name, args)


def always_patterns(tool_name: str, args: Json, lines: str) -> dict[str, str]:
    """The patterns of an edited rule for «always». Raises RuleProblem if it would not match the
    call: the server refuses such a rule."""
    rule = rule_of_draft(RuleDraft(tool=tool_name, action="auto", args=lines))
    layer = PolicyLayer(name="chat", policy=ToolPolicy(rules=(rule,)))
    if decide((layer,), tool_name, args).rule is None:
        raise RuleProblem(
            "The rule does not match this call, or could match more than one plain command."
            " Patterns: * stands for any text, ? for one character, =text is exact."
        )
    return dict(rule.args)


def rule_text(rule: ToolRule) -> str:
    """The rule on one line, for lists: the tool and the patterns, with nothing hidden."""
    patterns = ", ".join(f"{name}: {pattern}" for name, pattern in rule.args.items())
    return exact_text(f"{rule.tool}  {patterns}" if patterns else rule.tool).replace("\n", "\\n")


# The policies that count for a chat, from wide to narrow, as far as the user may read them.

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


async def read_policy(api: ServerApi, chat_id: ChatId) -> ChatPolicy:
    """Raises ApiError and ServerUnreachable if the chat's own rules cannot be read."""
    chat = await api.get_chat(chat_id)
    root = chat.root_chat_id or chat_id
    is_owner = chat.is_owner is not False
    own = await api.get_chat_tool_policy(root)
    layers = [
        await _read("deployment", api.get_tool_policy(), "Administrators see these rules."),
        await _read_template(api, chat),
    ]
    if is_owner:
        note = "This token does not read them."
        layers.append(await _read("user", api.get_my_tool_policy(), note))
    layers.append(Layer(name="chat", policy=own))
    return ChatPolicy(chat_id=root, title=chat.title, can_edit=is_owner, layers=tuple(layers))


async def _read_template(api: ServerApi, chat: Chat) -> Layer:
    if chat.workspace_id is None:
        return Layer(name="template", note="The chat has no workspace yet.")
    try:
        workspace = await api.get_workspace(chat.workspace_id)
    except ApiError as error:
        return Layer(name="template", note=error.message)
    policy = api.get_template_tool_policy(workspace.template_id)
    return await _read("template", policy, "You cannot read these rules.")


async def _read(name: LayerName, policy: Call[ToolPolicyState], forbidden: str) -> Layer:
    """A layer that the user may not read is listed too, because its rules count."""
    try:
        return Layer(name=name, policy=await policy)
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
    """Refused with the code `version_conflict` if the rules have changed."""
    return await api.put_chat_tool_policy(
        policy.chat_id, {"rules": rules, "version": policy.own.version}
    )
