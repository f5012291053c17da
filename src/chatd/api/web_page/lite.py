"""The lite page: one document and one script over the public API, which need no build.

It is always at `/lite`, and takes the place of the page where that was not built.
"""

import gzip
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from chatd.api.request import ApiReply, Scope
from chatd.api.route import PageRoute
from chatd.api.web_page.files import PageFile, PageFiles
from chatd.api.web_page.replies import reply_file

LITE_PATH: Final = "/lite"
_DOCUMENT: Final = Path(__file__).with_name("lite.html")
_SCRIPT: Final = Path(__file__).with_name("lite.js")
_STYLE: Final = re.compile(r"<style>(.*?)</style>", re.DOTALL)


class LitePage:
    """The files are read when the server starts."""

    def __init__(self, page: PageFiles) -> None:
        """The document says whether the full `page` was built."""
        text = _DOCUMENT.read_text()
        self._page = page
        self._policy = _policy(text)
        self._alone = _file(text, "text/html; charset=utf-8")
        beside = text.replace("<html ", "<html data-built=true ", 1)
        self._beside_page = _file(beside, "text/html; charset=utf-8")
        self._script = _file(_SCRIPT.read_text(), "text/javascript; charset=utf-8")

    @property
    def pages(self) -> Mapping[str, PageRoute]:
        return {
            LITE_PATH: PageRoute(serve=self.document),
            f"{LITE_PATH}.js": PageRoute(serve=self.script),
        }

    async def document(self, scope: Scope) -> ApiReply:
        is_alone = await self._page.latest() is None
        return reply_file(scope, self._alone if is_alone else self._beside_page, self._policy)

    async def script(self, scope: Scope) -> ApiReply:
        return reply_file(scope, self._script, self._policy)


def _policy(document: str) -> str:
    """The document's own style is allowed by its hash, and no other."""
    style = _STYLE.search(document)
    assert style is not None
    digest = b64encode(sha256(style[1].encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'self'; style-src 'sha256-{digest}'; img-src data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _file(text: str, media_type: str) -> PageFile:
    body = text.encode()
    return PageFile(
        media_type=media_type,
        body=body,
        gzip=gzip.compress(body, mtime=0),
        etag=sha256(body).hexdigest()[:16],
    )
