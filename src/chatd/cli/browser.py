"""Opens a browser on a desktop at the start of the server.

The browser is given a private file that leads to the sign-in link, not the link: other users of
this machine can read the arguments of its process.
"""

import os
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Final

from chatd import secret_files
from chatd.client import desktop

PAGE_FILE: Final = "sign-in.html"


def open_browser(data_dir: Path, link: str) -> None:
    """The link is printed too, so a failure is no error."""
    page = data_dir / PAGE_FILE
    target = escape(link, quote=True)
    text = f'<!doctype html><meta http-equiv=refresh content="0; url={target}">'
    try:
        secret_files.replace(page, text)
    except OSError:
        return
    desktop.open_browser(page.as_uri(), os.environ)


def forget_browser_page(data_dir: Path) -> None:
    with suppress(OSError):
        (data_dir / PAGE_FILE).unlink(missing_ok=True)
