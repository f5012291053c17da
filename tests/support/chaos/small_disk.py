"""A small file system of its own for a database, which a test can fill."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support.database import scratch_space

DISK_SIZE: Final = "512m"
BALLAST: Final = "ballast"
BALLAST_BLOCK: Final = bytes(1 << 20)


class SmallDisk:
    """`is_limited`: it can be filled. Only root can mount one."""

    def __init__(self, path: Path, *, is_limited: bool) -> None:
        self.path = path
        self.is_limited = is_limited

    async def fill(self) -> None:
        """Until not one byte more can be written."""
        assert self.is_limited
        await asyncio.to_thread(self._fill)

    def free(self) -> None:
        (self.path / BALLAST).unlink(missing_ok=True)

    def _fill(self) -> None:
        block = BALLAST_BLOCK
        with (self.path / BALLAST).open("ab", buffering=0) as ballast:
            while block:
                try:
                    if ballast.write(block) < len(block):
                        raise OSError
                except OSError:
                    block = block[: len(block) // 2]


@asynccontextmanager
async def small_disk(*, is_wanted: bool) -> AsyncGenerator[SmallDisk]:
    """An ordinary directory if no small disk is wanted, or none can be mounted."""
    with tempfile.TemporaryDirectory(prefix="chatd-mortal-", dir=scratch_space()) as home:
        os.chmod(home, 0o711)  # the server may run under another account
        options = f"size={DISK_SIZE},mode=0711"
        is_mounted = is_wanted and await _run(
            "mount", "-t", "tmpfs", "-o", options, "chatd-chaos", home
        )
        try:
            yield SmallDisk(Path(home), is_limited=is_mounted)
        finally:
            if is_mounted:
                # Lazily: a process of the stopped server may still hold a file.
                await _run("umount", "--lazy", home)


async def _run(*argv: str) -> bool:
    with suppress(FileNotFoundError):
        process = await asyncio.create_subprocess_exec(
            *argv, stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        return await process.wait() == 0
    return False
