"""Writes a draft in the person's own editor, in the same terminal."""

import asyncio
import tempfile
from pathlib import Path

from textual.app import App, SuspendNotSupported

from chatd.terminal.machine import Machine


class EditorFailed(Exception):
    """Says why, for people."""


async def edit_text(app: App[None], machine: Machine, text: str) -> str:
    """The text as the editor left it. Raises EditorFailed.

    The process goes on meanwhile, so that the connection stays open; nothing is drawn, because a
    write to a suspended terminal would block.
    """
    editor = machine.editor
    with tempfile.TemporaryDirectory(prefix="chatd-") as directory:
        path = Path(directory) / "message.md"
        path.write_text(text, encoding="utf-8")
        try:
            with app.batch_update(), app.suspend():
                env = machine.program_env
                process = await asyncio.create_subprocess_exec(*editor, str(path), env=env)
                code = await process.wait()
        except SuspendNotSupported:
            raise EditorFailed("This terminal cannot be lent to an editor.") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise EditorFailed(f"{editor[0]} did not start: {reason}. Set VISUAL.") from None
        if code != 0:
            raise EditorFailed(f"{editor[0]} ended with {code}; the text is as it was.")
        try:
            return path.read_text(encoding="utf-8", errors="replace").removesuffix("\n")
        except OSError as error:
            raise EditorFailed(f"The text was not read back: {error.strerror}.") from None
