"""A real terminal: a shell in tmux, whose screen a test reads and whose keys it presses."""

import asyncio
import shlex
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.support.eventually import eventually

PROMPT: Final = "ready$ "
WAIT_S: Final = 40.0


class TmuxTerminal:
    """With bash, which has job control. Nothing of the user's configuration is read."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def run(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments,
            stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def press(self, *keys: str) -> None:
        """tmux's names: `Enter`, `C-d`, `F5`."""
        await self.run("send-keys", *keys)

    async def write(self, text: str) -> None:
        await self.run("send-keys", "-l", text)

    async def type_command(self, *words: str) -> None:
        """Print the exit code after it."""
        await self.write(f"{shlex.join(words)}; echo code=$?")
        await self.press("Enter")

    async def screen(self) -> str:
        return await self.run("capture-pane", "-p", "-J")

    async def state(self, name: str) -> str:
        """A variable of tmux about the terminal, such as `alternate_on`."""
        return (await self.run("display-message", "-p", f"#{{{name}}}")).strip()

    async def until_shown(self, text: str) -> str:
        shown = ""

        async def look() -> bool:
            nonlocal shown
            shown = await self.screen()
            return text in shown

        try:
            await eventually(look, within_s=WAIT_S)
        except TimeoutError:
            raise AssertionError(f"never showed {text!r}:\n{shown}") from None
        return shown

    async def assert_given_back(self) -> None:
        """The program has left the terminal as a shell expects it."""
        names = ("alternate_on", "mouse_any_flag", "cursor_flag", "keypad_flag")
        assert [await self.state(name) for name in names] == ["0", "0", "1", "0"]
        await self.type_command("stty", "-a")
        settings = (await self.until_shown("code=0")).replace("\n", " ")
        for name in (" icanon ", " echo ", " isig ", " icrnl "):
            assert name in settings, settings


@asynccontextmanager
async def tmux_terminal(
    directory: Path, env: Mapping[str, str], *, size: tuple[int, int] = (100, 30)
) -> AsyncGenerator[TmuxTerminal]:
    terminal = TmuxTerminal(directory / "tmux")
    width, height = map(str, size)
    shell = ["env", "-i", *(f"{name}={value}" for name, value in env.items())]
    shell += [f"PS1={PROMPT}", "TERM=tmux-256color", "bash", "--norc", "--noprofile", "-i"]
    await terminal.run("new-session", "-d", "-x", width, "-y", height, shlex.join(shell))
    try:
        await terminal.until_shown(PROMPT.strip())
        yield terminal
    finally:
        await terminal.run("kill-server")
