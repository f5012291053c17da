"""Screens of information only: help, usage, and that the token is no longer accepted."""

from collections.abc import Iterator
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import ChatCost, SpendStatus
from chatd.domain.chat.messages import PublicMessage, TokenUsage
from chatd.domain.ids import ChatId
from chatd.terminal.composer.commands import COMMANDS
from chatd.terminal.composer.model_texts import dollars
from chatd.terminal.keys import AREA_TITLES, KEYS, key_names
from chatd.terminal.safe_text import safe_line, safe_text
from chatd.terminal.session import app_of, session_of

# What a chat has used: its context, its cost, and the limit of the person.

Row = tuple[str, str]


def last_usage(messages: tuple[PublicMessage, ...]) -> TokenUsage | None:
    return next((one.usage for one in reversed(messages) if one.usage is not None), None)


def context_rows(usage: TokenUsage | None) -> Iterator[Row]:
    """The use of the context by the last answer that reported its tokens."""
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
    """The cost of the chat with its subagents."""
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
            rows += cost_rows(await session.api.get_chat_cost(self._chat_id))
            rows += spend_rows(await session.api.get_spend_status())
        except (ApiError, ServerUnreachable) as error:
            rows.append(("Not read", safe_line(error.message, 200)))
        self.query_one("#usage-rows", Static).update(_usage_table(rows))


def _usage_table(rows: list[Row]) -> Text:
    width = max(len(name) for name, _ in rows) + 2
    text = Text()
    for at, (name, value) in enumerate(rows):
        text.append("\n" if at else "")
        text.append(name.ljust(width), "dim" if name.startswith(" ") else "")
        text.append(value, "dim" if name.startswith(" ") else "bold")
    return text


# All keys and commands, on top of the chat.


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static("Keys and commands", classes="title", markup=False)
            with VerticalScroll(can_focus=True):
                for title, rows in _sections():
                    yield Static(title, classes="section", markup=False)
                    yield Static(_help_table(rows))
            url = safe_text(session_of(self).server.url)
            text = f"Esc closes; the arrows scroll. Documentation: {url}/help/"
            yield Static(text, classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def _sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for area, keys in KEYS.items():
        if keys:
            yield AREA_TITLES[area], [(key_names(key.keys), key.text) for key in keys]
    yield (
        "Commands: write them in the message box",
        [(command.usage, command.effect) for command in COMMANDS],
    )


def _help_table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=24, no_wrap=False)
    table.add_column(ratio=1)
    for left, right in rows:
        table.add_row(Text(left, style="bold"), Text(right))
    return table


# Shown when the server does not accept the token any more.


class SignedOutScreen(ModalScreen[None]):
    """Closes by itself when the server accepts the token again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("r,f5", "retry", "Try again"),
        ("ctrl+d,ctrl+c,q,escape", "leave", "Leave"),
    ]

    def compose(self) -> ComposeResult:
        session = session_of(self)
        url = safe_text(session.server.url)
        why = safe_text(session.connection.problem)
        with Vertical(classes="dialog"):
            yield Static("Signed out", classes="title", markup=False)
            yield Static(f"{url} does not accept your token any more. {why}".rstrip(), markup=False)
            yield Static(
                f"Leave, sign in with\n\n    chatd login {url}\n\nand come back. Your chats go on.",
                classes="paragraph",
                markup=False,
            )
            yield Static("Esc leaves, R tries the token again", classes="hint", markup=False)

    def action_retry(self) -> None:
        session_of(self).connection.retry_now()

    def action_leave(self) -> None:
        app_of(self).exit()
