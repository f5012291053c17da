"""The text of a proposed plan: loaded once, and shown as it stands in its file.

Markdown is not drawn but shown: whatever a renderer leaves out (comments, targets of links, notes
nobody refers to) would be implemented without having been seen.
"""

from typing import Final

from textual.content import Content
from textual.widgets import Static

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.server import ServerApi
from chatd.terminal.answers.asks import ProposedPlan
from chatd.terminal.answers.exact_text import exact_text

MAX_PLAN_BYTES: Final = 64 * 1024
"""Twice what the server lets a model propose."""
TAB_SIZE: Final = 4


async def load_plan(api: ServerApi, plan: ProposedPlan) -> str:
    """Raises ApiError and ServerUnreachable."""
    content = await api.download(f"/files/{plan.file_id}/content", max_bytes=MAX_PLAN_BYTES)
    return content.decode(errors="backslashreplace")


def plan_content(text: str) -> Content:
    """Every character of the text; headings are bold."""
    ended = text.replace("\r\n", "\n").removesuffix("\n")
    lines = exact_text(ended.expandtabs(TAB_SIZE)).split("\n")
    return Content("\n").join(
        Content.styled(line, "bold $text-accent") if line.startswith("#") else Content(line)
        for line in lines
    )


class PlanText(Static):
    """Says that it loads until `show_plan` has ended. `is_loaded`: it shows the plan."""

    DEFAULT_CSS = """
    PlanText { height: auto; padding: 0 1; }
    """

    def __init__(self, plan: ProposedPlan) -> None:
        super().__init__("Loading the plan…", markup=False)
        self.plan = plan
        self.is_loaded = False
        self._line_count = 0

    @property
    def is_whole(self) -> bool:
        """Whether all lines of the plan have their place on the screen."""
        return self.is_loaded and self.size.height >= self._line_count

    async def show_plan(self, api: ServerApi) -> str:
        """Shows the plan; returns why it could not be loaded, or nothing."""
        try:
            text = await load_plan(api, self.plan)
        except (ApiError, ServerUnreachable) as error:
            self.update("The plan could not be loaded.")
            return error.message
        content = plan_content(text)
        self._line_count = content.plain.count("\n") + 1
        self.update(content)
        self.is_loaded = True
        return ""
