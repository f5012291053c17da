"""What a chat has used: its context, its cost, and the limit of the person."""

from collections.abc import Iterator
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from chatd.client.choice_resources import ChatCost, SpendStatus
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.ids import ChatId
from chatd.terminal.pickers.model_texts import dollars
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import session_of

Row = tuple[str, str]


def last_usage(messages: tuple[PublicMessage, ...]) -> TokenUsage | None:
    return next((one.usage for one in reversed(messages) if one.usage is not None), None)


def context_rows(usage: TokenUsage | None) -> Iterator[Row]:
    """Of the last answer that reported its tokens."""
    if usage is None:
        yield "Context", "no answer has told its tokens yet"
        return
    tokens = usage.context_tokens or usage.total_tokens
    limit = usage.context_limit
    share = f" of {limit:,} ({min(100, round(tokens / limit * 100))}%)" if limit else ""
    yield "Context", f"{tokens:,} tokens{share}"
    for name, count in (
        ("read from cache", usage.cache_read_tokens),
        ("written to cache", usage.cache_creation_tokens),
        ("other input", usage.input_tokens),
        ("reasoning", usage.reasoning_tokens),
        ("answer", usage.output_tokens - usage.reasoning_tokens),
    ):
        if count > 0:
            yield f"  {name}", f"{count:,}"


def cost_rows(cost: ChatCost) -> Iterator[Row]:
    """With the subagents."""
    budget = "" if cost.max_cost_micros is None else f" of {dollars(cost.max_cost_micros)}"
    yield "Cost of the chat", f"{dollars(cost.total_cost_micros)}{budget}"
    yield "  model calls", f"{cost.call_count:,}"
    if cost.unpriced_call_count:
        yield "  without a price", f"{cost.unpriced_call_count:,}"
    if cost.estimated_call_count:
        yield "  estimated", f"{cost.estimated_call_count:,}"


def spend_rows(spend: SpendStatus) -> Iterator[Row]:
    spent = dollars(spend.current_spend_micros)
    if spend.is_limited and spend.spend_limit_micros is not None:
        spent += f" of {dollars(spend.spend_limit_micros)}"
    yield f"You, this {safe_line(spend.period, 20) or 'period'}", spent
    if spend.is_limited and spend.period_end is not None:
        yield "  starts again", f"{spend.period_end:%Y-%m-%d %H:%M} UTC"


class UsageScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "app.pop_screen", "Close")]

    def __init__(self, chat_id: ChatId) -> None:
        super().__init__()
        self._chat_id = chat_id

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Usage", classes="title", markup=False)
            yield Static("Reading …", id="usage-rows", markup=False)
            yield Static("Esc closes", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.run_worker(self._load, group="usage")

    async def _load(self) -> None:
        session = session_of(self)
        shown = session.connection.chat(self._chat_id).shown
        rows = list(context_rows(last_usage(shown.messages)))
        try:
            rows += cost_rows(await session.api.get(f"/chats/{self._chat_id}/cost", ChatCost))
            rows += spend_rows(await session.api.get("/usage-limits/status", SpendStatus))
        except (ApiError, ServerUnreachable) as error:
            rows.append(("Not read", safe_line(error.message, 200)))
        self.query_one("#usage-rows", Static).update(_table(rows))


def _table(rows: list[Row]) -> Text:
    width = max(len(name) for name, _ in rows) + 2
    text = Text()
    for at, (name, value) in enumerate(rows):
        text.append("\n" if at else "")
        text.append(name.ljust(width), "dim" if name.startswith(" ") else "")
        text.append(value, "dim" if name.startswith(" ") else "bold")
    return text
