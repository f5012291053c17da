"""The files of the built page, as they lie in the package: which there are, and their contents.

All are kept in memory, read once: so the document and the assets that it names belong to one
build, also while another build replaces the directory. Only the listed names can be asked for, so
no path of a request ever reaches the file system.
"""

import asyncio
import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct

import chatd
from chatd.log_event import LogEvent

log = logging.getLogger(__name__)

PACKAGED_PAGE: Final = Path(chatd.__file__).with_name("page")
"""Where the build puts the page: see ui/vite.config.ts."""
DOCUMENT: Final = "index.html"
ASSETS: Final = "assets"
"""The directory of the files with a hash in their names."""
MAX_PAGE_FILES: Final = 500
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024

_GZIP: Final = ".gz"
_BROTLI: Final = ".br"
_MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}


class PageFile(Struct, frozen=True, kw_only=True):
    """`gzip` and `brotli` are the compressed bodies that the build made, if it made them."""

    media_type: str
    body: bytes
    gzip: bytes | None
    brotli: bytes | None = None
    etag: str


class BuiltPage(Struct, frozen=True, kw_only=True):
    """`files` by their path below the page's directory, such as `assets/index-4f2a.js`."""

    files: Mapping[str, PageFile]
    built_at: tuple[int, ...]

    @property
    def document(self) -> PageFile:
        return self.files[DOCUMENT]


class PageFiles:
    """The page of a directory. A build that replaces it while the server runs is read at the next
    request for the document."""

    def __init__(self, directory: Path = PACKAGED_PAGE) -> None:
        self._directory = directory
        self._page: BuiltPage | None = None
        self._reading = asyncio.Lock()

    async def latest(self) -> BuiltPage | None:
        """None if the page was never built."""
        async with self._reading:
            self._page = await asyncio.to_thread(self._refresh, self._page)
            return self._page

    async def known(self) -> BuiltPage | None:
        """Without a look at the directory, if it was read before."""
        return self._page or await self.latest()

    def _refresh(self, page: BuiltPage | None) -> BuiltPage | None:
        """A build in progress removes the directory first: until it ends, the page stays."""
        try:
            parts = (self._directory / name for name in (DOCUMENT, ASSETS))
            built_at = tuple(part.stat().st_mtime_ns for part in parts)
            if page is not None and page.built_at == built_at:
                return page
            return BuiltPage(files=_read_files(self._directory), built_at=built_at)
        except FileNotFoundError:
            return page
        except (OSError, ValueError) as error:
            log.error(LogEvent(event="page_unreadable", explanation=str(error)))
            return page


def is_built(directory: Path = PACKAGED_PAGE) -> bool:
    return (directory / DOCUMENT).is_file()


def _read_files(directory: Path) -> Mapping[str, PageFile]:
    """Raises ValueError beyond the limits, OSError."""
    paths = sorted(path for path in directory.rglob("*") if _is_served(directory, path))
    if len(paths) > MAX_PAGE_FILES:
        raise ValueError(f"{directory} has more than {MAX_PAGE_FILES} files")
    contents = {path: path.read_bytes() for path in paths if _within(path)}
    if sum(map(len, contents.values())) > MAX_PAGE_BYTES:
        raise ValueError(f"the files of {directory} exceed {MAX_PAGE_BYTES} bytes")
    return {
        path.relative_to(directory).as_posix(): PageFile(
            media_type=_MEDIA_TYPES[path.suffix],
            body=body,
            gzip=contents.get(path.with_name(path.name + _GZIP)),
            brotli=contents.get(path.with_name(path.name + _BROTLI)),
            etag=sha256(body).hexdigest()[:16],
        )
        for path, body in contents.items()
        if path.suffix not in (_GZIP, _BROTLI)
    }


def _is_served(directory: Path, path: Path) -> bool:
    """Regular files of known types. Names that begin with a dot are the build's own notes."""
    name = path.name.removesuffix(_GZIP).removesuffix(_BROTLI)
    hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
    return not hidden and Path(name).suffix in _MEDIA_TYPES and path.is_file()


def _within(path: Path) -> bool:
    """Raises ValueError for a file that alone exceeds the limit, before it is read."""
    if path.stat().st_size > MAX_PAGE_BYTES:
        raise ValueError(f"{path} exceeds {MAX_PAGE_BYTES} bytes")
    return True
