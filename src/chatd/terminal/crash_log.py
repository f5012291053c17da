"""The log of the terminal: the screen is taken, so warnings and crashes go to a file.

Local variables are never written: they would have the token and what people say.
"""

import logging
import logging.handlers
import os
import traceback
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import Final

MAX_LOG_BYTES: Final = 1024 * 1024
LOG_FILE: Final = "terminal.log"
log = logging.getLogger(__name__)


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """Only this account reads it, also after a rotation: errors quote what people said."""

    def _open(self) -> TextIOWrapper:
        file = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(file, 0o600)
        return TextIOWrapper(FileIO(file, "a"), encoding="utf-8", write_through=True)


def open_log(directory: Path) -> Path | None:
    """Everything that is logged goes there from now on; None if it cannot be written."""
    path = directory / LOG_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = _PrivateLog(path, maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8")
    except OSError:
        logging.basicConfig(handlers=[logging.NullHandler()], force=True)
        return None
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(form))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    return path


def record_crash(error: BaseException) -> None:
    """The stack without local variables. The text of an error may quote what people said, so only
    its type is shown on the terminal."""
    log.error("the terminal ended\n%s", "".join(traceback.format_exception(error)))


def crash_text(error: BaseException, path: Path | None) -> str:
    where = "" if path is None else f" Where it happened is in {path}."
    return (
        f"The terminal ended because of an error of its own: {type(error).__name__}. Your chats go"
        f" on.{where}"
    )
