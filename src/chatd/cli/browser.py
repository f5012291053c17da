"""Opens a browser on a desktop at the start of the server.

The browser is given a private file that leads to the sign-in link, not the link: other users of
this machine can read the arguments of its process.
"""

import threading
import webbrowser
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Final

from chatd import secret_files

PAGE_FILE: Final = "sign-in.html"


def open_browser(data_dir: Path, link: str) -> None:
    """In a thread: some browsers block until they end. The link is printed too, so a failure is no
    error."""
    page = data_dir / PAGE_FILE
    target = escape(link, quote=True)
    text = f'<!doctype html><meta http-equiv=refresh content="0; url={target}">'
    try:
        secret_files.replace(page, text)
    except OSError:
        return
    threading.Thread(target=_open, args=(page.as_uri(),), daemon=True).start()


def forget_browser_page(data_dir: Path) -> None:
    with suppress(OSError):
        (data_dir / PAGE_FILE).unlink(missing_ok=True)


def _open(address: str) -> None:
    with suppress(webbrowser.Error, OSError):
        webbrowser.open(address)
