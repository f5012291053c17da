"""`chatd serve` and `chatd worker`."""

import os
import shlex
from importlib import metadata
from pathlib import Path

from chatd import app
from chatd.cli.run import Stop
from chatd.clock import SystemClock
from chatd.settings.tree import Settings, redact_url


async def serve(settings: Settings, stop: Stop, job: app.ProcessRole) -> None:
    def ready(what: app.ReadyInfo) -> None:
        stop.started()
        _say(f"chatd {metadata.version('chatd')}")
        _say(f"  data      {settings.data_dir}")
        _say(f"  database  {_where(settings)}, {_schema(what)}")
        _say(f"  model     {what.model}")
        if job.answers == "api":
            _say(f"  API       {what.url}/api/v1, described at {what.url}/docs")
            _say(f"  token     {what.token_file or 'that of CHATD_ADMIN_TOKEN'}")
        elif what.url is not None:
            _say(f"  health    {what.url}/healthz, /readyz and /metrics")
        if not job.works:
            _say("  chats     are run by others: this process has no worker")
        _say("Ctrl-C stops.")

    def stopping(running: int) -> None:
        if running:
            chats = "1 chat is" if running == 1 else f"{running} chats are"
            _say(
                f"Stopping: {chats} in mid-answer and may take {settings.worker.drain_s:g} s to"
                " finish the step. Ctrl-C again ends at once; what was under way then goes on in"
                " another replica, or at the next start."
            )

    told = app.LifecycleCallbacks(ready=ready, stopping=stopping)
    clock = SystemClock()
    left = await app.serve(settings, os.environ, clock=clock, stop=stop.asked, told=told, job=job)
    _say("Stopped." if left == 0 else f"Stopped. {_left(left, settings.data_dir)}")


def _where(settings: Settings) -> str:
    url = settings.database.url
    return "embedded PostgreSQL" if url is None else redact_url(url)


def _schema(what: app.ReadyInfo) -> str:
    count = len(what.migrated)
    if count == 0:
        return "up to date"
    return f"{count} {'migration' if count == 1 else 'migrations'} applied"


def _left(count: int, data_dir: Path) -> str:
    """So that nobody finds processes later and wonders."""
    go_on = "1 workspace goes on" if count == 1 else f"{count} workspaces go on"
    ends = "it" if count == 1 else "them"
    lock = shlex.quote(str(data_dir / "ws-supervisor" / "lock"))
    return f"{go_on} running for the next start; this ends {ends}: kill $(cat {lock})"


def _say(line: str) -> None:
    """At once, also into a pipe: whoever starts us waits for these lines."""
    print(line, flush=True)
