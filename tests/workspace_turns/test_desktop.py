"""A subagent at a desktop, on real servers and in a real sandbox: it types into a program with a
window, and goes on when the X server, the agent or the server is killed."""

import asyncio
import base64
import shutil
from asyncio.subprocess import PIPE
from os.path import samestat
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import (
    WAIT_TIMEOUT_S,
    Call,
    Json,
    ReplyHoldingProxy,
    ServerSite,
    WorkspaceServer,
    execute,
    script_text,
)

pytestmark = [
    pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("Xvnc", "xterm"))),
        reason="needs Debian's packages tigervnc-standalone-server and xterm",
    ),
]
PNG = b"\x89PNG"


def computer(action: str, **fields: object) -> Call:
    return ("computer", {"action": action, **fields})


def terminal(file: str, colour: str = "white") -> tuple[Call, ...]:
    """A window of a program that writes down what is typed into it, and that begins when the window
    is shown (`-wf`): keys that are pressed before that are lost."""
    script = f"touch {file}; exec cat >> {file}"
    return (
        (
            "execute",
            {
                "command": f"exec xterm -wf -bg {colour} -geometry 100x30+100+100"
                f" -e sh -c '{script}'",
                "run_in_background": True,
            },
        ),
        execute(f"until [ -e {file} ]; do sleep 0.05; done"),
        computer("wait", duration=0.3),
        computer("left_click", coordinate=[300, 300]),
    )


def spawn(name: str, *calls: Call) -> Call:
    return ("spawn_agent", {"type": "computer_use", "prompt": script_text(name, *calls)})


async def start(server: WorkspaceServer, chat: str, name: str, *calls: Call) -> str:
    [started] = await server.call(chat, name, spawn(name, *calls))
    assert started["type"] == "computer_use", started
    return started["chat_id"]


def picture_of(result: Json) -> bytes:
    assert result["mime_type"] == "image/png", result
    return base64.b64decode(result["data"])


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def test_a_subagent_types_into_a_window_although_the_x_server_and_the_agent_are_killed(
    site: ServerSite,
) -> None:
    """Takes seconds: a server and three X servers are started."""
    async with site.server() as server:
        chat = await server.create("lead", spawn("none"), site.create("plain"), spawn("none"))
        early, _, without = await server.wait_idle(chat)
        assert "no workspace" in early["error"]
        assert "a workspace without a desktop" in without["error"]
        chat = await server.create("lead", site.create("desk"))
        place = await server.workspace_of(chat)
        child = await start(
            server,
            chat,
            "first",
            computer("screenshot"),
            *terminal("typed"),
            computer("type", text="hello\n"),
            computer("cursor_position"),
            computer("left_click", coordinate=[1280, 5]),
            ("attach_screenshot", {"name": "result"}),
            execute("kill -9 $(cat /tmp/.chatd-desktop-*/pid)"),
            computer("screenshot"),
            *terminal("again"),
            computer("type", text="again\n"),
            execute("until grep again again; do sleep 0.05; done; cat typed"),
        )
        results = await server.wait_idle(child)
        first, *_, typed, pointer, outside, attached, killed = results[:10]
        assert picture_of(first)[:4] == picture_of(typed)[:4] == PNG
        # Where no window manager is installed, one result says so after its own text.
        assert pointer["text"].startswith("The pointer is at (300, 300).")
        assert "outside of the screenshot" in outside["error"]
        assert attached["name"] == "result.png"
        assert killed["exit_code"] == 0
        assert results[-1]["output"] == "again\nhello\n"
        files = (await server.ask("GET", f"/chats/{child}/files"))["items"]
        assert [file["name"] for file in files] == ["result.png"]
        # The agent of the workspace ends with all its processes, and is started again.
        before = place.socket.stat()
        await server.call(chat, "kill", execute("kill -9 -1"))

        async def is_back() -> bool:
            return place.socket.exists() and not samestat(place.socket.stat(), before)

        await eventually(is_back, within_s=WAIT_TIMEOUT_S)
        other = await start(server, chat, "second", computer("screenshot"))
        assert picture_of((await server.wait_idle(other))[-1])[:4] == PNG


@pytest.mark.promise("P7")
async def test_text_is_typed_once_although_the_server_is_killed_before_it_hears_so(
    site: ServerSite,
) -> None:
    """Takes seconds: servers and an X server are started."""
    async with site.server() as victim:
        chat = await victim.create("lead", site.create("desk"))
        place = await victim.workspace_of(chat)
        child = await start(victim, chat, "open", computer("screenshot"), *terminal("typed"))
        await victim.wait_idle(child)
        async with ReplyHoldingProxy(place.socket, b"/desktop/act").listening() as proxy:
            await victim.send(child, "type", computer("type", text="once\n"))
            await proxy.wait_replied()
            await victim.kill()
    async with site.server() as heir:
        assert picture_of((await heir.wait_idle(child))[-1])[:4] == PNG

        async def is_typed() -> bool:
            return "once" in read(place.home / "typed")

        await eventually(is_typed, within_s=WAIT_TIMEOUT_S)
        [looked] = await heir.call(child, "look", execute("cat typed"))
        assert looked["output"] == "once\n"


BROWSER = "/usr/lib/chromium/chromium"
REPORTER = """
import http.server, urllib.parse
PAGE = b'''<!doctype html><title>Form</title>
<textarea style="position:fixed;inset:0;font-size:60px"
  oninput="fetch('/typed/' + encodeURIComponent(this.value))"></textarea>
<script>requestAnimationFrame(() => requestAnimationFrame(() => fetch("/typed/ready")))</script>'''
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/typed/"):
            with open("typed-browser", "a") as file:
                file.write(urllib.parse.unquote(self.path[7:]) + "\\n")
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8765), Handler)
open("typed-browser", "w").close()
server.serve_forever()
"""


def browser() -> tuple[Call, ...]:
    """A window of Chromium with a form that reports what is typed into it, and when it is shown:
    one that is not has no frames."""
    flags = "--no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage"
    place = "--user-data-dir=/tmp/browser --window-position=0,0 --window-size=1280,720"
    command = f"exec {BROWSER} {flags} {place} --app=http://127.0.0.1:8765/"
    return (
        ("write_file", {"path": "~/reporter.py", "content": REPORTER}),
        ("execute", {"command": "exec python3 reporter.py", "run_in_background": True}),
        computer("screenshot"),
        execute("until [ -e typed-browser ]; do sleep 0.1; done"),
        ("execute", {"command": command, "run_in_background": True}),
        execute("until grep -q ready typed-browser; do sleep 0.1; done"),
        computer("wait", duration=1),
        computer("left_click", coordinate=[640, 400]),
    )


async def files_of(server: WorkspaceServer, chat: str) -> dict[str, Json]:
    found = (await server.ask("GET", f"/chats/{chat}/files"))["items"]
    return {file["name"]: file for file in found}


@pytest.mark.promise("P7")
@pytest.mark.timeout(180)
@pytest.mark.skipif(not Path(BROWSER).exists(), reason="needs Debian's package chromium")
async def test_a_browser_is_typed_into_once_through_deaths_under_a_policy_and_on_video(
    site: ServerSite, tmp_path: Path
) -> None:
    """Takes ten seconds: servers, X servers and a browser are started, and killed."""
    async with site.server() as victim:
        chat = await victim.create("lead", site.create("desk"))
        place = await victim.workspace_of(chat)
        child = await start(victim, chat, "open", *browser())
        await victim.wait_idle(child)
        async with ReplyHoldingProxy(place.socket, b"/desktop/act").listening() as proxy:
            await victim.send(child, "type", computer("type", text="once"))
            await proxy.wait_replied()
            await victim.kill()
    async with site.server() as heir:
        assert picture_of((await heir.wait_idle(child))[-1])[:4] == PNG

        async def is_typed() -> bool:
            return "once\n" in read(place.home / "typed-browser")

        await eventually(is_typed, within_s=WAIT_TIMEOUT_S)
        assert "onceo" not in read(place.home / "typed-browser")

        await _type_under_a_policy(heir, chat, child, place.home / "typed-browser")

        # The agent dies in the middle of an action: nobody knows how far it came.
        await heir.ask("PUT", f"/chats/{chat}/tool-policy", {"rules": []})
        await heir.send(child, "long", computer("hold_key", text="z", duration=50))

        async def is_held() -> bool:
            return "oncexz" in read(place.home / "typed-browser")

        await eventually(is_held, within_s=WAIT_TIMEOUT_S)
        await heir.call(chat, "kill", execute("kill -9 -1"))
        unknown = (await heir.wait_idle(child))[-1]
        assert "outcome of this call is unknown" in unknown.get("text", ""), str(unknown)[:500]
        assert picture_of(unknown)[:4] == PNG

        # The X server dies in the middle of an action, and its windows with it.
        held = computer("hold_key", text="Return", duration=50)
        other = await start(heir, chat, "again", *terminal("held", "red"), held)

        async def is_entered() -> bool:
            return read(place.home / "held") != ""

        await eventually(is_entered, within_s=WAIT_TIMEOUT_S)
        await heir.call(chat, "kill x", execute("kill -9 $(cat /tmp/.chatd-desktop-*/pid)"))
        unknown = (await heir.wait_idle(other))[-1]
        assert "outcome of this call is unknown" in unknown.get("text", ""), str(unknown)[:500]
        assert picture_of(unknown)[:4] == PNG
        await heir.send(other, "after", *terminal("last", "blue"), computer("type", text="end\n"))
        await heir.wait_idle(other)

        # The video of that run is stored with its report, and shows both desktops in their order.
        await heir.call(chat, "report", ("wait_agent", {"chat_id": other}))
        found = await files_of(heir, chat)
        if shutil.which("ffprobe"):
            assert set(found) == {"recording.mp4", "recording.jpg"}
            video = tmp_path / "recording.mp4"
            video.write_bytes(await heir.download(f"/files/{found['recording.mp4']['id']}/content"))
            shown = await colours(video)
            assert {"red", "blue"} <= set(shown), shown
            assert "red" not in shown[shown.index("blue") :], shown


async def _type_under_a_policy(heir: WorkspaceServer, chat: str, child: str, typed: Path) -> None:
    """Rules for kinds of actions, which hold for the chat's subagents too."""
    rules = [
        {"tool": "computer", "args": {"action": "type"}, "action": "deny"},
        {"tool": "computer", "args": {"action": "key"}, "action": "ask"},
    ]
    await heir.ask("PUT", f"/chats/{chat}/tool-policy", {"rules": rules})
    [denied] = await heir.call(child, "denied", computer("type", text="never"))
    assert "the tool policy" in denied["error"]
    await heir.send(child, "asked", computer("key", text="x"))

    async def is_asked() -> bool:
        return (await heir.ask("GET", f"/chats/{child}"))["status"] == "requires_action"

    await eventually(is_asked, within_s=WAIT_TIMEOUT_S)
    assert "oncex" not in read(typed)
    answer = {"tool_call_id": "asked-0", "decision": "approve"}
    await heir.ask("POST", f"/chats/{child}/answers", {"answers": [answer]})
    assert picture_of((await heir.wait_idle(child))[-1])[:4] == PNG

    async def is_pressed() -> bool:
        return "oncex\n" in read(typed)

    await eventually(is_pressed, within_s=WAIT_TIMEOUT_S)


async def colours(video: Path) -> list[str]:
    """Of the windows in the pictures that can be played: what the average of each tends to."""
    words = ("ffmpeg", "-v", "error", "-i", str(video), "-vf", "scale=1:1", "-pix_fmt", "rgb24")
    process = await asyncio.create_subprocess_exec(*words, "-f", "rawvideo", "-", stdout=PIPE)
    told, _ = await process.communicate()
    assert process.returncode == 0
    found: list[str] = []
    for at in range(0, len(told), 3):
        red, _, blue = told[at : at + 3]
        found.append("red" if red > blue + 20 else "blue" if blue > red + 20 else "")
    return found
