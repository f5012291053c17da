"""One rule while it is written."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from chatd.domain.tool_policy.rules import PolicyAction, ToolRule
from chatd.terminal.policy.rule_draft import (
    ACTIONS,
    RuleDraft,
    RuleProblem,
    draft_of_rule,
    rule_of_draft,
)
from chatd.terminal.safe_text import safe_text

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
    """Stays open until the rule is stored, with what was written."""

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
            rule = rule_of_draft(self._draft())
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

    def _draft(self) -> RuleDraft:
        return RuleDraft(
            tool=self.query_one("#rule-tool", Input).value,
            args=self.query_one("#rule-args", TextArea).text,
            action=self.query_one(ActionChoice).action,
            reason=self.query_one("#rule-reason", Input).value,
        )

    def _show_problem(self, text: str) -> None:
        self._problem.update(safe_text(text))
        self._problem.add_class("-shown")


def _label(text: str) -> Static:
    return Static(text, classes="label", markup=False)
