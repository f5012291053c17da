"""A chat that looks at the app it has just started, on real servers, in a real sandbox without a
network: what it clicks is clicked once, whatever is killed."""

import base64

import pytest

from chatd.agent.browser.browser_server import find_browser
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import (
    Call,
    ReplyHoldingProxy,
    ServerSite,
    WorkspaceServer,
    execute,
)

pytestmark = [
    pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed"),
    pytest.mark.skipif(
        find_browser() is None, reason="needs Debian's package chromium-headless-shell or chromium"
    ),
]
APP = """
import http.server
class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/vote"):
            open("votes", "a").write("vote\\n")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>App</title><h1>Vote</h1><a href=/vote>Yes</a>")
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(("127.0.0.1", 8123), App)
open("ready", "w").close()
server.serve_forever()
"""


def browser(action: str, **fields: object) -> Call:
    return ("browser", {"action": action, **fields})


def start_app() -> tuple[Call, ...]:
    return (
        ("write_file", {"path": "/home/dev/app.py", "content": APP}),
        ("execute", {"command": "exec python3 app.py", "run_in_background": True}),
        execute("until [ -e ready ]; do sleep 0.05; done"),
    )


async def open_app(site: ServerSite, server: WorkspaceServer) -> str:
    """A chat that has opened the app; its first element is the link."""
    chat = await server.create("lead", site.create("web"), *start_app())
    await server.wait_idle(chat)
    [page] = await server.call(chat, "open", browser("open", url="localhost:8123"))
    assert page["output"].startswith('http://localhost:8123/ App\n# Vote\n[e1 link "Yes"]'), page
    return chat


@pytest.mark.promise("P7")
async def test_a_click_happens_once_although_the_server_is_killed_before_it_hears_so(
    site: ServerSite,
) -> None:
    """Takes seconds: servers, a sandbox and a browser are started."""
    async with site.server() as victim:
        chat = await open_app(site, victim)
        place = await victim.workspace_of(chat)
        async with ReplyHoldingProxy(place.socket, b"/browser/act").listening() as proxy:
            await victim.send(chat, "click", browser("click", ref="e1"))
            await proxy.wait_replied()
            await victim.kill()
    async with site.server() as heir:
        clicked = (await heir.wait_idle(chat))[-1]
        assert "http://localhost:8123/vote App" in clicked["output"]
        results = await heir.call(
            chat,
            "look",
            execute("cat votes"),
            browser("screenshot"),
            browser("open", url="https://example.com/"),
            browser("open", url="chrome://crash"),
            execute("kill -9 $(cat /run/chatd/browser.pid)"),
            browser("click", ref="e1"),
            browser("open", url="localhost:8123/"),
            browser("click"),
        )
        votes, picture, outside, internal, _, without, again, bare = results
        assert votes["output"] == "vote\n"
        assert base64.b64decode(picture["data"])[:4] == b"\x89PNG"
        assert "cannot be opened" in outside["error"]
        assert "chrome: cannot be opened" in internal["error"]
        assert "open" in without["error"].lower()
        assert "# Vote" in again["output"]
        assert bare["error"] == "ref is required: the action click needs it."
        plain = await heir.create("lead", site.create("plain"), browser("read"))
        assert "no tool named 'browser'" in (await heir.wait_idle(plain))[-1]["error"]
