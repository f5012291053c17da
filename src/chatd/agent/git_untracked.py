"""Files that git does not know yet, told as the patch that would add them.

Written here and not by one git for each file: a thousand new files are one loop.
"""

from __future__ import annotations

import os
import re
import stat

from chatd.agent.errors import AgentError
from chatd.agent.paths import open_regular, read_at_most

_LOOKED_AT_FOR_NUL = 8000
_NEEDS_QUOTES = re.compile(r'[\x00-\x1f"\\\x7f]')
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class TooMuch(Exception):
    """The patch would be over its limit."""


def patch_for(root: str, name: str, *, limit: int) -> str:
    """The patch that adds the file; empty for what cannot be read or is no file any more."""
    path = os.path.join(root, name)
    try:
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode):
            return _patch(name, "120000", os.fsencode(os.readlink(path)))
        if not stat.S_ISREG(info.st_mode):
            return ""
        if info.st_size > limit:
            raise TooMuch
        fd, info = open_regular(path)
    except (OSError, AgentError):
        return ""
    try:
        data = read_at_most(fd, limit + 1, path=path)
    except AgentError:
        return ""
    finally:
        os.close(fd)
    if len(data) > limit:
        raise TooMuch
    return _patch(name, "100755" if info.st_mode & stat.S_IXUSR else "100644", data)


def _patch(name: str, mode: str, data: bytes) -> str:
    ours, theirs = quoted(f"a/{name}"), quoted(f"b/{name}")
    head = f"diff --git {ours} {theirs}\nnew file mode {mode}\n"
    if not data:
        return head
    if b"\0" in data[:_LOOKED_AT_FOR_NUL]:
        return f"{head}Binary files /dev/null and {theirs} differ\n"
    lines = data.decode("utf-8", "replace").split("\n")
    last = lines.pop()
    end = f"+{last}\n\\ No newline at end of file\n" if last else ""
    count = len(lines) + bool(last)
    span = "1" if count == 1 else f"1,{count}"
    added = "".join(f"+{line}\n" for line in lines)
    return f"{head}--- /dev/null\n+++ {theirs}\n@@ -0,0 +{span} @@\n{added}{end}"


def quoted(name: str) -> str:
    """As git writes a name in a patch."""
    shown = os.fsencode(name).decode("utf-8", "replace")
    if not _NEEDS_QUOTES.search(shown):
        return shown
    escaped = _NEEDS_QUOTES.sub(
        lambda found: _ESCAPES.get(found[0]) or f"\\{ord(found[0]):03o}", shown
    )
    return f'"{escaped}"'
