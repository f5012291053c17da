"""The screen of the tool policy: its rules, and one rule while it is written."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.domain.ids import ChatId
from chatd.domain.tool_policy.rules import PolicyAction, ToolRule
from chatd.terminal.dialogs import Question, ask
from chatd.terminal.keys import bindings_of
from chatd.terminal.safe_text import safe_line, safe_text
from chatd.terminal.screens.policy_rules import (
    ACTIONS,
    TITLES,
    ChatPolicy,
    Layer,
    RuleDraft,
    RuleProblem,
    can_edit,
    draft_of_rule,
    read_policy,
    rule_of_draft,
    rule_text,
    save_rules,
    with_rule,
)
from chatd.terminal.session import app_of, session_of

Save = Callable[[ToolRule], Awaitable[str]]
"""Stores the rule; returns why it did not."""
_ACTIONS: tuple[PolicyAction, ...] = ("auto", "ask", "deny")


class ActionChoice(Static, can_focus=True):
    """What happens to a call: one of three."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", show=False),
        Binding("right,space", "step(1)", show=False),
    ]
    DEFAULT_CSS = """
    ActionChoice { height: 1; padding: 0 1; }
    ActionChoice:focus { background: $boost; text-style: bold; }
    """

    def __init__(self, action: PolicyAction) -> None:
        super().__init__()
        self.action: PolicyAction = action

    def render(self) -> Content:
        marks = [("(•)" if one == self.action else "( )", ACTIONS[one]) for one in _ACTIONS]
        return Content("   ".join(f"{mark} {word}" for mark, word in marks))

    def action_step(self, by: int) -> None:
        self.action = _ACTIONS[(_ACTIONS.index(self.action) + by) % len(_ACTIONS)]
        self.refresh()


class RuleScreen(ModalScreen[None]):
    """Stays open, with what was written, until the rule is stored."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save", priority=True),
        Binding("escape", "dismiss", "Cancel", priority=True),
    ]
    DEFAULT_CSS = """
    RuleScreen .dialog { padding: 0 2 !important; width: 76 !important; }
    RuleScreen .label { color: $text-muted; margin-top: 1; }
    RuleScreen .dialog Input { margin: 0 !important; height: 1 !important; border: none !important;
        padding: 0 1 !important; }
    RuleScreen TextArea, RuleScreen TextArea:focus { height: 3; border: none; padding: 0 1;
        background: $surface; }
    RuleScreen #rule-problem { color: $text-error; display: none; margin-top: 1; }
    RuleScreen #rule-problem.-shown { display: block; }
    """

    def __init__(self, rule: ToolRule | None, save: Save) -> None:
        super().__init__()
        self._first = RuleDraft() if rule is None else draft_of_rule(rule)
        self._is_new = rule is None
        self._save = save
        self._problem = Static(id="rule-problem", markup=False)

    def compose(self) -> ComposeResult:
        first = self._first
        with Vertical(classes="dialog"):
            title = "A rule of this chat" if self._is_new else "Change the rule"
            yield Static(title, classes="title", markup=False)
            with VerticalScroll(can_focus=False):
                yield _label("Tool; * is any text: github__* is every tool of that MCP server")
                yield Input(first.tool, placeholder="such as execute", id="rule-tool")
                yield _label("Arguments, one a line, as name: pattern (=text is exact)")
                yield TextArea(first.args, id="rule-args", tab_behavior="focus")
                yield _label("What happens (← →)")
                yield ActionChoice(first.action)
                yield _label("Reason, for the person who is asked and for the model")
                yield Input(first.reason, placeholder="Optional", id="rule-reason")
            yield self._problem
            yield Static("Ctrl-S saves · Tab next field · Esc cancels", classes="hint")

    def on_mount(self) -> None:
        self.query_one("#rule-tool").focus()

    def on_input_submitted(self) -> None:
        self.action_save()

    def action_save(self) -> None:
        try:
            rule = rule_of_draft(
                RuleDraft(
                    tool=self.query_one("#rule-tool", Input).value,
                    args=self.query_one("#rule-args", TextArea).text,
                    action=self.query_one(ActionChoice).action,
                    reason=self.query_one("#rule-reason", Input).value,
                )
            )
        except RuleProblem as problem:
            self._show_problem(str(problem))
            return
        self.run_worker(partial(self._store, rule), group="save", exclusive=True)

    async def _store(self, rule: ToolRule) -> None:
        problem = await self._save(rule)
        if problem:
            self._show_problem(problem)
        elif self.is_current:
            self.dismiss()

    def _show_problem(self, text: str) -> None:
        self._problem.update(safe_text(text))
        self._problem.add_class("-shown")


def _label(text: str) -> Static:
    return Static(text, classes="label", markup=False)


# The rules that count for a chat, by policy. Those of the chat itself are changed here.

HOW: Final = (
    "A denial wins; else the narrowest rule that fits a call. A narrower policy replaces a wider"
    " one, but what the server or the template asks for stays asked. Without a rule a call runs."
)
_TONES: Final[dict[PolicyAction, str]] = {
    "auto": "$text-success",
    "ask": "$text-warning",
    "deny": "$text-error",
}
CHANGED: Final = (
    "Somebody else has changed the rules meanwhile. They were read again: look at them, and save"
    " once more."
)


class PolicyScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("policy")
    DEFAULT_CSS = """
    PolicyScreen #policy-head { height: 1; padding: 0 1; background: $panel; text-style: bold; }
    PolicyScreen #policy-list, PolicyScreen #policy-list:focus { height: 1fr; border: none;
        padding: 1; background: $background; background-tint: transparent; }
    PolicyScreen #policy-list > .option-list--option-highlighted { background: $selected;
        color: $foreground; text-style: none; }
    PolicyScreen #policy-list > .option-list--option-disabled { color: $foreground; }
    PolicyScreen .policy-text { padding: 0 2; color: $text-muted; height: auto; }
    PolicyScreen #policy-said { color: $text-warning; }
    """

    def __init__(self, chat_id: ChatId | None) -> None:
        super().__init__()
        self._chat_id = chat_id
        self._policy: ChatPolicy | None = None
        self._rules: list[ToolRule | None] = []
        """For each line of the list, the chat's rule that it shows."""
        # Held, and not searched for: a request may end after the screen was closed.
        self._head = Static("Tool policy", id="policy-head", markup=False)
        self._list = OptionList(id="policy-list", markup=False)
        self._said = Static(id="policy-said", classes="policy-text", markup=False)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._list
        yield self._said
        yield Static(HOW, classes="policy-text", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._list.focus()
        if self._chat_id is None:
            self._say("Open a chat first: this screen shows the rules of a chat.")
        else:
            self.action_read()

    # What is shown

    def action_read(self) -> None:
        self.run_worker(self._read, group="read", exclusive=True)

    async def _read(self) -> bool:
        if self._chat_id is None:
            return False
        try:
            self._policy = await read_policy(session_of(self).api, self._chat_id)
        except (ApiError, ServerUnreachable) as error:
            self._say(f"{error.message} r reads again.")
            return False
        self._draw(self._policy)
        return True

    def _draw(self, policy: ChatPolicy) -> None:
        listed, at = self._list, self._list.highlighted
        listed.clear_options()
        self._rules = []
        for layer in policy.layers:
            self._add(listed, Content.styled(TITLES[layer.name], "bold $text-accent"), None)
            for rule in layer.policy.rules:
                self._add(listed, _line(rule), rule, can_choose=layer.name == "chat")
            for note in _notes(layer):
                self._add(listed, Content.styled(f"  {note}", "$text-muted"), None)
        own = next((at for at, rule in enumerate(self._rules) if rule is not None), None)
        is_kept = at is not None and at < len(self._rules) and self._rules[at] is not None
        listed.highlighted = at if is_kept else own
        title = f"Tool policy of «{safe_line(policy.title, 60)}»"
        self._head.update(title)

    def _add(
        self, listed: OptionList, line: Content, rule: ToolRule | None, *, can_choose: bool = False
    ) -> None:
        listed.add_option(Option(line, disabled=not can_choose))
        self._rules.append(rule if can_choose else None)

    def _say(self, text: str) -> None:
        self._said.update(safe_text(text))

    @property
    def _rule(self) -> ToolRule | None:
        """The chat's rule under the cursor."""
        at = self._list.highlighted
        return self._rules[at] if at is not None and at < len(self._rules) else None

    # What is changed

    def action_add(self) -> None:
        if self._may_change():
            self._edit(None)

    def action_edit(self) -> None:
        rule = self._rule
        if rule is None or not self._may_change():
            return
        if not can_edit(rule):
            self._say("This rule has characters that a line cannot show: remove it, or keep it.")
            return
        self._edit(rule)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_edit()

    def action_remove(self) -> None:
        rule = self._rule
        if rule is None or not self._may_change():
            return
        text = f"Remove the rule «{ACTIONS[rule.action]}: {rule_text(rule)}»?"
        remove = partial(self._remove, rule)
        ask(self, Question(text, yes="Remove"), lambda: self.run_worker(remove, group="save"))

    def _may_change(self) -> bool:
        if self._policy is None:
            return False
        if not self._policy.can_edit:
            self._say("Only the owner of the chat changes its rules.")
        return self._policy.can_edit

    def _edit(self, before: ToolRule | None) -> None:
        async def save(after: ToolRule) -> str:
            return await self._change(before, after)

        app_of(self).push_screen(RuleScreen(before, save))

    async def _remove(self, rule: ToolRule) -> None:
        self._say(await self._change(rule, None))

    async def _change(self, before: ToolRule | None, after: ToolRule | None) -> str:
        """Returns why it was not stored; empty if it was."""
        policy = self._policy
        if policy is None:
            return "The rules are not read yet."
        rules = with_rule(policy.own.rules, before, after)
        try:
            await save_rules(session_of(self).api, policy, rules)
        except ApiError as error:
            if error.code != "version_conflict":
                return error.message
            await self._read()
            is_stored = self._policy is not None and self._policy.own.rules == rules
            return "" if is_stored else CHANGED  # a repeated try conflicts with the first
        except ServerUnreachable as error:
            return error.message
        self._say("")
        await self._read()
        return ""


def _line(rule: ToolRule) -> Content:
    reason = f"  {safe_line(rule.reason, 200)}" if rule.reason else ""
    return Content.assemble(
        (f"  {ACTIONS[rule.action]:<10} ", _TONES[rule.action]),
        rule_text(rule),
        (reason, "$text-muted"),
    )


def _notes(layer: Layer) -> list[str]:
    if layer.note:
        return [layer.note]
    if not layer.policy.rules:
        return ["No rules."]
    return ["Users and chats may run without approval what it asks for."] * layer.policy.may_loosen
