"""A call that a person approves or denies, alone or with all others of its chat."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from textual.app import ComposeResult

from chatd.terminal.answers.asks import Ask
from chatd.terminal.answers.call_text import describe_call
from chatd.terminal.answers.call_view import CallView
from chatd.terminal.answers.entry import Entry
from chatd.terminal.answers.exact_text import exact_line, exact_name
from chatd.terminal.answers.form import Answered, AskForm, Body, DraftKept, HintsChanged
from chatd.terminal.answers.sending import CallAnswer, Decision
from chatd.terminal.policy.rule_draft import (
    RuleProblem,
    always_patterns,
    always_rule,
    can_edit,
    pattern_lines,
)

Step = Literal["choose", "deny", "always", "approve_all", "deny_all"]


class ApprovalDraft(Struct, frozen=True):
    """What was written and not sent. `rule` is None until somebody has looked at it."""

    reason: str = ""
    rule: str | None = None


class ApprovalForm(AskForm):
    """`fellows` are all approvals of the same chat, this one too."""

    def __init__(self, ask: Ask, fellows: Sequence[Ask], draft: ApprovalDraft | None) -> None:
        super().__init__()
        self.ask = ask
        self.fellows = tuple(fellows)
        self._draft = draft or ApprovalDraft()
        self._text = describe_call(ask.call, ask.args)
        self._rule = always_rule(ask.call.tool_name, ask.args)
        self._step: Step = "choose"
        self._problem = ""

    def compose(self) -> ComposeResult:
        with Body():
            yield CallView([self._text])
        yield Entry()

    @property
    def title(self) -> str:
        if self._step in ("approve_all", "deny_all"):
            verb = "Approve" if self._step == "approve_all" else "Deny"
            return f"{verb} all {len(self.fellows)} calls?"
        return self._text.title

    @property
    def problem(self) -> str:
        return self._problem

    @property
    def actions(self) -> Sequence[tuple[str, str]]:
        view = self._view
        unfold = [("unfold", "Fold" if view.is_whole else "Show all")]
        unfold = unfold if view.has_folds or view.is_whole else []
        match self._step:
            case "choose":
                pass
            case "approve_all":
                return [("approve", "Approve all"), ("leave", "Back"), *unfold]
            case "deny_all":
                return [("deny", "Deny all"), ("leave", "Back"), *unfold]
            case _:
                return [("leave", "Back")]
        always = [("always", "Always…")] if self.can_always else []
        approve = [("approve", "Approve once")] if self.ask.is_readable else []
        approve_all = [("approve_all", "Approve all…")] if self._can_approve_all else []
        several = [*approve_all, ("deny_all", "Deny all…")] if len(self.fellows) > 1 else []
        return [*approve, ("deny", "Deny…"), *always, *unfold, *several]

    @property
    def can_always(self) -> bool:
        return self.ask.call.can_always and self.ask.is_readable and self._rule is not None

    @property
    def _can_approve_all(self) -> bool:
        return all(ask.is_readable for ask in self.fellows)

    @property
    def _view(self) -> CallView:
        return self.query_one(CallView)

    def set_fellows(self, fellows: Sequence[Ask]) -> None:
        """Others may be answered elsewhere meanwhile: what is confirmed must be what is shown."""
        if [(ask.key, ask.args) for ask in fellows] == [
            (one.key, one.args) for one in self.fellows
        ]:
            return
        self.fellows = tuple(fellows)
        if self._step in ("approve_all", "deny_all"):
            self.leave()

    # What keys do

    def do_approve(self) -> None:
        if self._step == "approve_all":
            self._send(*(_answer(ask, "approve") for ask in self.fellows))
        else:
            self._send(_answer(self.ask, "approve"))

    def do_deny(self) -> None:
        if self._step == "deny_all":
            self._send(*(_answer(ask, "deny") for ask in self.fellows))
            return
        self._open("deny", "What should it do instead? The agent reads it. Enter denies.")

    def do_always(self) -> None:
        assert self._rule is not None
        tool = exact_name(self._rule.tool)
        if can_edit(self._rule):
            label = (
                f"Stored in this chat: run {tool} without asking, if its arguments match. One a"
                " line, as name: pattern; none means every call. Enter stores it and approves."
            )
        else:
            label = f"Stored in this chat: run {tool} with exactly this. Enter stores it."
        self._open("always", label)

    def do_approve_all(self) -> None:
        self._show_all("approve_all")

    def do_deny_all(self) -> None:
        self._show_all("deny_all")

    def do_unfold(self) -> None:
        self._view.unfold()
        self.post_message(HintsChanged())

    def do_leave(self) -> None:
        self.leave()

    def leave(self) -> bool:
        if self._step == "choose":
            return False
        was, self._step, self._problem = self._step, "choose", ""
        self.query_one(Entry).close()
        self.remove_class("-writing")
        if was in ("approve_all", "deny_all"):
            self._replace_view(CallView([self._text]))
        self.take_focus()
        self.post_message(HintsChanged())
        return True

    def on_entry_taken(self, message: Entry.Taken) -> None:
        message.stop()
        self._keep(message.text)
        if self._step == "deny":
            self._send(_answer(self.ask, "deny", reason=message.text.strip()))
        elif self._step == "always":
            self._send_always(message.text)

    def on_entry_left(self, message: Entry.Left) -> None:
        message.stop()
        self._keep(self.query_one(Entry).text)
        self.leave()

    def on_text_area_changed(self) -> None:
        if self._step in ("deny", "always"):
            self._keep(self.query_one(Entry).text)

    # Steps

    def _open(self, step: Step, label: str) -> None:
        self._step = step
        self.add_class("-writing")
        if step == "deny":
            self.query_one(Entry).open(label, self._draft.reason)
        else:
            assert self._rule is not None
            is_editable = can_edit(self._rule)
            lines = pattern_lines(self._rule.args)
            shown = lines if is_editable else "\n".join(map(exact_line, lines.split("\n")))
            kept = self._draft.rule if is_editable and self._draft.rule is not None else shown
            self.query_one(Entry).open(label, kept, read_only=not is_editable)
        self.post_message(HintsChanged())

    def _send_always(self, lines: str) -> None:
        """The rule of the server's own if it was not changed."""
        assert self._rule is not None
        call, patterns = self.ask.call, None
        if can_edit(self._rule) and lines != pattern_lines(self._rule.args):
            try:
                patterns = always_patterns(call.tool_name, self.ask.args, lines)
            except RuleProblem as problem:
                self._problem = str(problem)
                self.post_message(HintsChanged())
                return
        self._send(replace(_answer(self.ask, "approve"), always=True, rule_args=patterns))

    def _show_all(self, step: Step) -> None:
        self._step = step
        texts = [describe_call(ask.call, ask.args) for ask in self.fellows]
        self._replace_view(CallView(texts, titled=True))
        self.post_message(HintsChanged())

    def _replace_view(self, view: CallView) -> None:
        body = self.query_one(Body)
        body.remove_children()
        body.mount(view)
        body.scroll_home(animate=False)

    def _keep(self, text: str) -> None:
        if self._step == "deny":
            self._draft = replace(self._draft, reason=text)
        elif self._rule is not None and can_edit(self._rule):
            self._draft = replace(self._draft, rule=text)
        self.post_message(DraftKept(self.ask.key, self._draft))

    def _send(self, *answers: CallAnswer) -> None:
        self._problem = ""
        self.post_message(Answered(self.ask.chat_id, answers))


def _answer(ask: Ask, decision: Decision, reason: str = "") -> CallAnswer:
    return CallAnswer(tool_call_id=ask.call.tool_call_id, decision=decision, reason=reason)
