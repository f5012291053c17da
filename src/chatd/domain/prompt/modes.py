"""What a model is told of its chat's mode, and where the plan of a chat is."""

from collections.abc import Mapping
from typing import Final

from chatd.domain.ids import ChatId
from chatd.domain.prompt.instructions import PLAN_PATH_PLACEHOLDER

PLAN_DIRECTORY: Final = ".chatd/plans"
"""In the home directory of the workspace."""

PLAN_MODE_TEXT: Final = f"""\
This chat is in plan mode: find out what has to be done and write a plan. Change nothing else.

- Look at the code and the state of the workspace with read_file and execute. Run only commands
  that change nothing.
- Write the plan as Markdown to {PLAN_PATH_PLACEHOLDER} with write_file, and change it there with
  edit_files. No other file can be written.
- Tools that change anything else are refused in plan mode, although they are listed.
- A good plan says what is wrong or wanted, which files change and how, in which order, and how
  the result is checked. Keep it short enough to be read.
- When the plan is complete, call propose_plan. That ends your turn: the user reads the plan and
  either asks for changes or lets you implement it."""

EXPLORE_MODE_TEXT: Final = """\
This chat is in explore mode: look, and report what you found. You cannot write files, and must
not change anything with commands. Name files with their paths and lines, so that the reader of
your report can open them."""

_TEXTS: Final[Mapping[str, str]] = {"plan": PLAN_MODE_TEXT, "explore": EXPLORE_MODE_TEXT}


def mode_texts(mode: str | None, *, is_root: bool) -> tuple[str, ...]:
    """An unknown mode has the tools of explore mode, and its text. So has a subagent in plan mode:
    it looks, and its parent writes the plan."""
    if mode is None:
        return ()
    return (_TEXTS.get(mode, EXPLORE_MODE_TEXT) if is_root else EXPLORE_MODE_TEXT,)


def plan_path(chat_id: ChatId) -> str:
    """Each chat has its own, because chats share workspaces."""
    return f"~/{PLAN_DIRECTORY}/PLAN-{chat_id}.md"
