"""The line below the text box: what the next message is sent with, and what Enter does."""

from msgspec import Struct
from rich.text import Text
from textual.app import RenderResult
from textual.reactive import reactive
from textual.widget import Widget

from chatd.client.choice_resources import ChatCost, ModelChoice
from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.model.protocol import Effort
from chatd.terminal.composer.behaviours import Behaviour
from chatd.terminal.pickers.model_texts import EFFORT_NAMES, dollars, model_name, size_text
from chatd.terminal.safe_text import safe_line


class HintFacts(Struct, frozen=True, kw_only=True):
    """`note` takes the place of what Enter does. `behaviour` is None while the chat is idle.
    `is_written`: there is something to send."""

    model: ModelChoice | None = None
    effort: Effort | None = None
    is_plan: bool = False
    place: str = ""
    behaviour: Behaviour | None = None
    is_once: bool = False
    is_written: bool = False
    note: str = ""
    is_warning: bool = False
    context: str = ""
    cost: str = ""


def context_text(messages: tuple[PublicMessage, ...], model_limit: int | None) -> str:
    """By the last answer that reported its tokens; empty before the first one."""
    usage = next((one.usage for one in reversed(messages) if one.usage is not None), None)
    if usage is None:
        return ""
    tokens = usage.context_tokens or usage.total_tokens or usage.input_tokens + usage.output_tokens
    limit = usage.context_limit or model_limit
    if not limit or tokens <= 0:
        return ""
    return f"{size_text(tokens)} of {size_text(limit)} ({min(100, round(tokens / limit * 100))}%)"


def cost_text(cost: ChatCost | None) -> str:
    """Empty if nothing is known: a chat with a free model has no price."""
    if cost is None or cost.call_count == 0 or cost.total_cost_micros == 0:
        return ""
    budget = "" if cost.max_cost_micros is None else f" of {dollars(cost.max_cost_micros)}"
    return f"{dollars(cost.total_cost_micros)}{budget}"


def hint_text(facts: HintFacts, width: int) -> Text:
    """The left part says with what, the right one what happens. The least important go first when
    the line is short."""
    left = _left(facts)
    right = _right(facts)
    extras = [text for text in (facts.context, facts.cost) if text]
    while extras and left.cell_len + right.cell_len + _width(extras) + 2 > width:
        extras.pop()
    for text in extras:
        left.append(f" · {text}", "dim")
    room = width - right.cell_len
    if left.cell_len + 2 > room:
        left.truncate(max(room - 2, 0), overflow="ellipsis")
    left.append(" " * max(0, width - left.cell_len - right.cell_len))
    left.append_text(right)
    left.truncate(width, overflow="ellipsis")
    return left


def _width(texts: list[str]) -> int:
    return sum(len(text) + 3 for text in texts)


def _left(facts: HintFacts) -> Text:
    text = Text(no_wrap=True)
    text.append("no model" if facts.model is None else model_name(facts.model))
    if facts.effort is not None:
        text.append(f" · {EFFORT_NAMES[facts.effort].lower()}", "dim")
    if facts.is_plan:
        text.append(" · ")
        text.append("plan mode", "bold")
    if facts.place:
        text.append(f" · {safe_line(facts.place, 24)}", "dim")
    return text


def _right(facts: HintFacts) -> Text:
    if facts.note:
        return Text(safe_line(facts.note, 200), "bold" if facts.is_warning else "dim")
    if facts.behaviour is None:
        return Text("Enter sends · Ctrl-J new line" if facts.is_written else "", "dim")
    once = "once" if facts.is_once else ""
    text = Text(f"Enter {facts.behaviour.verb}", "bold" if once else "")
    text.append(f" {once} · Ctrl-G changes it".replace("  ", " "), "dim")
    return text


class HintLine(Widget):
    DEFAULT_CSS = """
    HintLine { height: 1; padding: 0 2; color: $text-muted; }
    """

    facts: reactive[HintFacts] = reactive(HintFacts())

    def render(self) -> RenderResult:
        return hint_text(self.facts, self.content_size.width)
