"""The agent as one file that any Python can run: the sources of `chatd.agent` and nothing else.

Deterministic, so the name says what is inside: two replicas of one version make the same file,
and a new version never overwrites what an old agent runs from.
"""

import hashlib
import io
import os
import secrets
import zipfile
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

_SHEBANG: Final = b"#!/usr/bin/env python3\n"
_ENTRY: Final = b"from chatd.agent.main import main\n\nmain()\n"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def build_bundle(directory: Path) -> Path:
    """The file, made if it is not there yet. Readable by all: it runs under other accounts."""
    content = bundle()
    path = directory / f"chatd-agent-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
    if path.is_file() and path.read_bytes() == content:
        return path
    directory.mkdir(parents=True, exist_ok=True)
    # Whoever makes it at the same time makes the same, so it does not matter who renames last.
    temporary = directory / f".{path.name}.{secrets.token_hex(4)}"
    try:
        _write(temporary, content)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def bundle() -> bytes:
    """A zip without compression, whose bytes would depend on the library's version."""
    sources = {"__main__.py": _ENTRY, "chatd/__init__.py": b""}
    sources |= _sources(resources.files("chatd.agent"), "chatd/agent/")
    raw = io.BytesIO()
    raw.write(_SHEBANG)
    with zipfile.ZipFile(raw, "a", zipfile.ZIP_STORED) as archive:
        for name in sorted(sources):
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, sources[name])
    return raw.getvalue()


def _sources(package: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in package.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                found |= _sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            found[prefix + entry.name] = entry.read_bytes()
    return found


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(fd, 0o644)
        os.fsync(fd)
