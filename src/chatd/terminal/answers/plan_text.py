"""The text of a proposed plan: loaded once, and drawn as Markdown."""

from typing import Final

from textual.widgets import Markdown

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.server import ServerApi
from chatd.terminal.answers.asks import ProposedPlan
from chatd.terminal.safe_text import safe_text

MAX_PLAN_BYTES: Final = 64 * 1024
"""Twice what the server lets a model propose."""


async def load_plan(api: ServerApi, plan: ProposedPlan) -> str:
    """Raises ApiError and ServerUnreachable."""
    content = await api.download(f"/files/{plan.file_id}/content", max_bytes=MAX_PLAN_BYTES)
    return content.decode(errors="replace")


class PlanText(Markdown):
    """Says that it loads until `show_plan` has ended. Links are shown and never opened by a click:
    a model wrote them."""

    DEFAULT_CSS = """
    PlanText { height: auto; padding: 0 1; margin: 0; background: transparent; }
    PlanText MarkdownH1, PlanText MarkdownH2 { margin: 0 0 1 0; content-align: left middle; }
    PlanText > :last-child { margin-bottom: 0; }
    """

    def __init__(self, plan: ProposedPlan) -> None:
        super().__init__("Loading the plan…", open_links=False)
        self.plan = plan

    async def show_plan(self, api: ServerApi) -> str:
        """Shows the plan; returns why it could not be loaded, or nothing."""
        try:
            text = await load_plan(api, self.plan)
        except (ApiError, ServerUnreachable) as error:
            await self._show("The plan could not be loaded.")
            return error.message
        await self._show(safe_text(text))
        return ""

    async def _show(self, text: str) -> None:
        if self.is_attached:
            await self.update(text)
