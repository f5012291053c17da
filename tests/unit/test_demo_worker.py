"""The worker process of the demo does not start: the server goes on, and the next start works."""

import asyncio
import sys
from pathlib import Path

import pytest

from chatd.clock import SystemClock
from chatd.domain.errors import Unavailable
from chatd.services.operation import demo_worker
from chatd.services.operation.demo_worker import READY_LINE, DemoWorker


class OwnWorker:
    def __init__(self) -> None:
        self.is_paused = False

    def pause(self) -> None:
        self.is_paused = True

    def unpause(self) -> None:
        self.is_paused = False


async def wanted() -> bool:
    return True


def command(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script)


@pytest.mark.parametrize(
    "broken",
    [
        ("/nonexistent/chatd",),
        command(r"import sys; sys.stdout.buffer.write(b'\xff\n' + b'x' * 200_000)"),
    ],
    ids=["no program", "unreadable output"],
)
async def test_a_worker_process_that_cannot_start_does_not_end_the_server(
    broken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = OwnWorker()
    demo = DemoWorker({"HOME": str(tmp_path)}, SystemClock(), own=own, is_wanted=wanted)
    monkeypatch.setattr(demo_worker, "_COMMAND", broken)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(demo.run())
        with pytest.raises(Unavailable):
            await demo.start()
        assert not own.is_paused
        script = f"print({READY_LINE!r}, flush=True); import signal; signal.pause()"
        monkeypatch.setattr(demo_worker, "_COMMAND", command(script))
        await demo.start()
        assert demo.is_running
        assert own.is_paused
        await demo.kill()
        running.cancel()
