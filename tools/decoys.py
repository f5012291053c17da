"""A deployment, a sign-in and variables that no test may see, in place while tests run.

Tests must not depend on the machine. Here they run with a home that has a sign-in, settings and a
deployment, and with the variables of chatd, PostgreSQL and vendors: a test that reads one of them
fails, and a request to the decoy server fails the whole run. In CI decoys are also in the places
that do not depend on variables: root's data directory, the default port and chatd.toml in the
checkout. What is already there stays and serves as well as a decoy.
"""

import os
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
ROOTS_DATA_DIR = Path("/var/lib/chatd")
DEFAULT_PORT = 7870
PREFIX = "chatd-decoys-"
TOKEN = "chatd_decoy-token"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
# So that no server can start on it: no PostgreSQL is this old.
DATABASE_VERSION = "1\n"


class Decoys:
    """`variables` are for the processes that run tests; `requests` came to the decoy server."""

    def __init__(self, variables: dict[str, str], requests: list[str]) -> None:
        self.variables = variables
        self.requests = requests

    def report_requests(self, say: Callable[[str], None]) -> bool:
        """Whether there were any."""
        if self.requests:
            say("Tests asked a server that is not theirs (tools/decoys.py):")
            say("\n".join(sorted(set(self.requests))[:20]))
        return bool(self.requests)


@contextmanager
def planted(*, in_fixed_places: bool, is_proxy: bool = True) -> Generator[Decoys]:
    """Removed at the end. `in_fixed_places`: also where a person's own chatd looks. `is_proxy`: the
    variables name the decoy server as a proxy, which Chromium would ask for its own purposes."""
    requests: list[str] = []
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix=PREFIX)))
        home.chmod(0o755)  # another account must be able to see where a link in the checkout leads
        url = f"http://127.0.0.1:{stack.enter_context(decoy_server(requests, 0))}"
        deployment = plant_home(home, url)
        if in_fixed_places:
            if os.geteuid() == 0:
                stack.enter_context(linked(ROOTS_DATA_DIR, deployment))
            stack.enter_context(linked(ROOT / "chatd.toml", home / ".config/chatd/chatd.toml"))
            stack.enter_context(decoy_server(requests, DEFAULT_PORT))
        proxies = dict.fromkeys(PROXIES, url) if is_proxy else {}
        yield Decoys({**variables(home, url, deployment), **proxies}, requests)


def plant_home(home: Path, url: str) -> Path:
    """Returns the deployment, which is where chatd has it by default."""
    deployment = home / ".local" / "share" / "chatd"
    sign_in = f'[profiles.decoy]\nurl = "{url}"\ntoken = "{TOKEN}"\nusername = "decoy"\n'
    files = {
        deployment / "admin-token": f"{TOKEN}\n",
        deployment / "address": f"{os.getpid()} {url}\n",
        deployment / "pg" / "cluster" / "PG_VERSION": DATABASE_VERSION,
        home / ".config/chatd/profiles.toml": f'default = "decoy"\n{sign_in}',
        home / ".config/chatd/chatd.toml": f'data_dir = "{deployment}"\ndecoy = true\n',
        home / ".gitconfig": "[commit]\ngpgsign = true\n[core]\nhooksPath = /nonexistent\n",
        home / ".pgpass": "*:*:*:*:decoy\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
    return deployment


def variables(home: Path, url: str, deployment: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        "CHATD_URL": url,
        "CHATD_TOKEN": TOKEN,
        "CHATD_PROFILE": "decoy",
        "CHATD_DATA_DIR": str(deployment),
        "CHATD_CONFIG": str(home / ".config/chatd/chatd.toml"),
        "CHATD_DATABASE_URL": "postgresql://decoy@127.0.0.1:9/decoy",
        "CHATD_DECOY": "no such setting: a server that sees it does not start",
        **dict.fromkeys(("PGHOST", "PGUSER", "PGDATABASE", "PGSERVICE"), "decoy"),
        **{f"{vendor}_API_KEY": "decoy" for vendor in ("ANTHROPIC", "OPENAI", "GEMINI")},
        "EDITOR": "false",
        "VISUAL": "false",
    }


@contextmanager
def linked(path: Path, target: Path) -> Generator[None]:
    """A link, if nothing is there: what a person has in this place is never touched."""
    if is_left_behind(path):
        path.unlink()
    try:
        path.symlink_to(target)
    except OSError:  # something is there, or the directory is not ours
        yield
        return
    try:
        yield
    finally:
        if path.is_symlink() and path.readlink() == target:
            path.unlink()


def is_left_behind(path: Path) -> bool:
    """By a run that was killed, and its directory has been removed since."""
    return path.is_symlink() and PREFIX in str(path.readlink()) and not path.exists()


@contextmanager
def decoy_server(requests: list[str], port: int) -> Generator[int]:
    """Its port. It notes each request and refuses it. Nothing happens if the port is taken."""

    class Refusal(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            if line := self.rfile.readline(1000):
                requests.append(line.decode(errors="replace").strip())
                self.wfile.write(b"HTTP/1.1 418 Decoy\r\nContent-Length: 0\r\n\r\n")
            self.close_connection = True

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Refusal)
    except OSError:
        yield port
        return
    thread = threading.Thread(target=server.serve_forever, args=(0.5,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
