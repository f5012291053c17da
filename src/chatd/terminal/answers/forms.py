"""Which form shows which ask."""

from collections.abc import Sequence

from chatd.terminal.answers.approval_form import ApprovalDraft, ApprovalForm
from chatd.terminal.answers.asks import Ask, ProposedPlan
from chatd.terminal.answers.client_form import ClientForm
from chatd.terminal.answers.form import AskForm
from chatd.terminal.answers.open_asks import Item
from chatd.terminal.answers.plan_form import PlanForm
from chatd.terminal.answers.question_draft import QuestionDraft
from chatd.terminal.answers.question_form import QuestionForm


def make_form(item: Item, fellows: Sequence[Ask], draft: object) -> AskForm:
    """`fellows` are the approvals that can be answered together with this one."""
    if isinstance(item, ProposedPlan):
        return PlanForm(item, draft if isinstance(draft, str) else None)
    match item.call.kind:
        case "question":
            return QuestionForm(item, draft if isinstance(draft, QuestionDraft) else None)
        case "client":
            return ClientForm(item)
        case _:
            return ApprovalForm(item, fellows, draft if isinstance(draft, ApprovalDraft) else None)
