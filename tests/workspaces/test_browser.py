"""The browser of a workspace: a real agent, a real Chromium, and pages of a server on loopback."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from chatd.agent.browser.browser_server import MAX_CHAT_TABS, MAX_NOTICES, find_browser
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    BrowserAction,
    BrowserActionKind,
    BrowserPage,
)
from tests.support.outcomes import raised
from tests.workspaces.agent_process import AgentProcess, Workbench, workbench

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="needs Debian's package chromium-headless-shell or chromium"
)

FORM = """<title>Form</title><h1>Sign up</h1>
<p>Read the <a href="/terms">terms</a> first.</p>
<form action="/done">
<label>Name <input name="name" required></label>
<label for="p">Password</label><input id="p" type="password" name="p" value="secret">
<label><input type="checkbox" name="agree"> I agree</label>
<select name="colour" aria-label="Colour"><option>red<option value="g">green</select>
<input type="date" name="day" aria-label="Day">
<textarea name="note" aria-label="Note"></textarea>
<button>Send</button></form>
<div onclick="this.textContent='was clicked'">a plain element</div>
<div style="display:none">hidden</div><script>var code = 1</script>
<table><tr><th>a<th>b<tr><td>1<td>2</table>
<button disabled>Off</button>
"""
DIALOGS = """<button onclick="alert('Hello')">Tell</button>
<button onclick="this.nextElementSibling.textContent = confirm('Sure?')">Ask</button><p>-</p>
<button onclick="this.nextElementSibling.textContent = prompt('Who?')">Name</button><p>-</p>
"""
FRAMES = """<h1>Outer</h1><iframe src="/form" width="600" height="900"></iframe>
<div id="host"></div><script>
document.getElementById('host').attachShadow({mode: 'open'}).innerHTML =
  '<button onclick="this.textContent=`shadow clicked`">In the shadow</button>';
</script>"""
ELSEWHERE = """<h1>Outer</h1><p style="height: 900px">above</p>
<iframe src="http://localhost:{port}/inner" width="400" height="120"></iframe>
<iframe sandbox="allow-scripts" src="/inner" width="400" height="120"></iframe>"""
INNER = """<p style="height: 300px">inside</p><input aria-label="Word"
onkeydown="if (event.key === 'Enter') o.textContent = 'typed ' + this.value">
<button onclick="o.textContent = 'pressed'">Press</button>
<p id="o">-</p>
<iframe src="http://127.0.0.1:{port}/terms"></iframe>"""
LATER = """<p>Wait</p><script>
fetch('/gate').then(() => { document.querySelector('p').innerHTML = '<b id=b>Ready now</b>'; });
</script>"""
PAGES = {
    "/form": FORM,
    "/terms": "<title>Terms</title><h1>Terms</h1><a href='/form' target='_blank'>elsewhere</a>",
    "/dialogs": DIALOGS,
    "/later": LATER,
    "/frames": FRAMES,
    "/elsewhere": ELSEWHERE,
    "/inner": INNER,
    "/long": "".join(f"<p>Line number {number} of many.</p>" for number in range(3000)),
    "/loop": "<button onclick='for (;;) {}'>Hang</button>",
    "/covered": "<button onclick='alert(1)'>Under</button>"
    "<div style='position:fixed;inset:0;background:#fff'>Cookies?</div>",
    "/popups": "<script>for (let i = 0; i < 30; i++) open('/terms')</script>many",
    "/asks": "<button onclick=\"fetch('/late').then((got) => got.text())"
    ".then((text) => { o.textContent = 'answered ' + text })\">Ask</button><p id=o></p>",
    "/upload": "<input type=file aria-label=Photo onchange='o.textContent=this.files[0].name'>"
    "<p id=o></p>",
    "/key": "<p id=o>-</p><script>addEventListener('keydown', (event) => {"
    " o.textContent += ` ${event.ctrlKey ? 'ctrl ' : ''}${event.key}` })</script>",
}


class Pages(BaseHTTPRequestHandler):
    gate: ClassVar[threading.Event]
    asked: ClassVar[threading.Event]
    clicked: ClassVar[list[str]]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/slow":
            self.asked.set()
            self.gate.wait(60)
        if path == "/late":  # longer than the page is watched without an answer
            self.gate.wait(0.3)
        if path == "/gate":
            self.gate.wait(60)
        if path == "/private" and self.headers.get("Authorization") != "Basic YWRhOnB3":
            self.reply(401, b"no", {"WWW-Authenticate": 'Basic realm="x"'})
        elif path == "/file":
            name = {"Content-Disposition": 'attachment; filename="../../evil name.txt"'}
            self.reply(200, b"contents", name)
        elif path == "/paper":
            self.reply(200, b"%PDF-1.4\n", {"Content-Type": "application/pdf"})
        elif path == "/done":
            self.clicked.append(query)
            self.reply(200, f"<title>Done</title><p>Got {query}</p>".encode())
        elif path in PAGES:
            text = PAGES[path].replace("{port}", self.headers["Host"].rpartition(":")[2])
            self.reply(200, text.encode())
        elif path in ("/private", "/gate", "/late"):
            self.reply(200, b"welcome" if path == "/late" else b"<p>welcome</p>")
        elif path == "/endless":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<p>The beginning</p>" + b" " * 4096)
            self.wfile.flush()
            self.gate.wait(60)
        else:
            self.reply(404, b"<p>not here</p>")

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Quiet."""


class Site:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.clicked: list[str] = []
        self.asked = threading.Event()
        shared = {"gate": self.gate, "asked": self.asked, "clicked": self.clicked}
        kind = type("SitePages", (Pages,), shared)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture(scope="module")
def browser_process(tmp_path_factory: pytest.TempPathFactory) -> Generator[AgentProcess]:
    process = AgentProcess(tmp_path_factory.mktemp("browser"), browser=True)
    process.start()
    yield process
    process.end(signal.SIGTERM)


@pytest.fixture
def fresh_process(tmp_path: Path) -> Generator[AgentProcess]:
    """One without pages of other tests."""
    process = AgentProcess(tmp_path, browser=True)
    process.start()
    yield process
    process.end(signal.SIGTERM)


@pytest.fixture
def site() -> Generator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield site
    site.gate.set()
    site.server.shutdown()
    site.server.server_close()


class Browsing:
    """A chat that uses the browser of a workspace."""

    def __init__(self, bench: Workbench, site: Site) -> None:
        self.bench = bench
        self.site = site
        self.conn = bench.conn
        self.count = 0

    async def act(
        self,
        kind: BrowserActionKind,
        ref: str = "",
        text: str = "",
        *,
        url: str = "",
        submit: bool = False,
        accept: bool = False,
    ) -> BrowserPage:
        self.count += 1
        action = BrowserAction(
            action=kind, url=url, ref=ref, text=text, submit=submit, accept=accept
        )
        return await self.conn.use_browser(action, key=self.bench.key(f"act {self.count}"))

    async def open(self, path: str) -> BrowserPage:
        return await self.act("open", url=path if ":" in path else f"{self.site.url}{path}")

    def ref(self, page: BrowserPage, name: str) -> str:
        found = re.search(rf'\[(e\d+) \w+ "{re.escape(name)}"', page.text)
        assert found is not None, page.text
        return found[1]


@pytest.fixture
async def browsing(
    browser_process: AgentProcess, site: Site, tmp_path: Path
) -> AsyncGenerator[Browsing]:
    async with workbench(browser_process, tmp_path) as bench:
        yield Browsing(bench, site)


async def test_a_page_is_read_as_text_and_its_form_is_filled_in_and_sent(
    browsing: Browsing,
) -> None:
    """Takes seconds: the first test starts the browser."""
    page = await browsing.open("/form")
    assert (page.title, page.status) == ("Form", 200)
    lines = re.sub(r"\be\d+ ", "", page.text).split("\n")
    assert lines == [
        "# Sign up",
        'Read the [link "terms"] first.',
        '[textbox "Name" required]',
        '[textbox "Password" = (6 characters) password]',
        '[checkbox "I agree"]',
        '[select "Colour" = "red" of "red" | "green"]',
        '[textbox "Day" date]',
        '[textbox "Note"]',
        '[button "Send"]',
        "[clickable] a plain element",
        "a | b",
        "1 | 2",
        '[button "Off" disabled]',
    ]
    typed = await browsing.act("type", browsing.ref(page, "Name"), "Ada Lovelace")
    assert '= "Ada Lovelace"' in typed.text
    assert "1 lines of the page are new, 1 are gone." in typed.more
    for name, text in (("Colour", "Green"), ("Day", "2026-11-18"), ("Note", "one\ntwo")):
        await browsing.act("type", browsing.ref(page, name), text)
    checked = await browsing.act("click", browsing.ref(page, "I agree"))
    assert "checked" in checked.text
    done = await browsing.act("click", browsing.ref(page, "Send"))
    assert done.title == "Done"
    [query] = browsing.site.clicked
    assert query == (
        "name=Ada+Lovelace&p=secret&agree=on&colour=g&day=2026-11-18&note=one%0D%0Atwo"
    )
    back = await browsing.act("back")
    assert back.title == "Form"


async def test_a_number_is_never_given_to_another_element(browsing: Browsing) -> None:
    form = await browsing.open("/form")
    plain = re.search(r"\[(e\d+) clickable\]", form.text)
    assert plain is not None
    clicked = await browsing.act("click", plain[1])
    assert clicked.text.endswith(f"[{plain[1]} clickable] was clicked")
    off = await raised(AgentRefused, browsing.act("click", browsing.ref(form, "Off")))
    assert "is disabled" in off.message
    terms = await browsing.open("/terms")
    assert browsing.ref(terms, "elsewhere") not in form.text
    stale = await raised(AgentRefused, browsing.act("click", browsing.ref(form, "Send")))
    assert stale.code == "stale_ref"
    assert "read the page again" in stale.message
    wrong = await raised(AgentRefused, browsing.act("click", "Send"))
    assert wrong.status == 400
    covered = await browsing.open("/covered")
    refused = await raised(AgentRefused, browsing.act("click", browsing.ref(covered, "Under")))
    assert 'is covered by <div> "Cookies?"' in refused.message


async def test_dialogs_are_answered_and_told(browsing: Browsing) -> None:
    page = await browsing.open("/dialogs")
    told = await browsing.act("click", browsing.ref(page, "Tell"))
    assert told.notices == ("The page showed a message, which was closed: 'Hello'.",)
    asked = await browsing.act("click", browsing.ref(page, "Ask"))
    assert asked.text.endswith("false")
    assert "dismissed: 'Sure?'. To accept it" in asked.notices[0]
    accepted = await browsing.act("click", browsing.ref(page, "Ask"), accept=True)
    assert accepted.text.endswith("true")
    named = await browsing.act("click", browsing.ref(page, "Name"), "Ada", accept=True)
    assert named.text.endswith("Ada")


async def test_frames_of_the_same_site_and_shadow_trees_are_read_and_clicked(
    browsing: Browsing,
) -> None:
    page = await browsing.open("/frames")
    typed = await browsing.act("type", browsing.ref(page, "Name"), "framed", submit=True)
    assert browsing.site.clicked[0].startswith("name=framed&")
    assert "Got name=framed" in typed.text
    clicked = await browsing.act("click", browsing.ref(page, "In the shadow"))
    assert "shadow clicked" in clicked.text


async def test_frames_of_other_sites_are_read_typed_into_and_clicked(browsing: Browsing) -> None:
    """One has a process of its own, one is sandboxed, and both have a frame of the page's site."""
    page = await browsing.open("/elsewhere")
    assert page.text.count("(frame http://localhost:") == 1
    assert page.text.count("inside") == 2
    assert page.text.count("# Terms") == 2
    words = re.findall(r'\[(f\d+e\d+) textbox "Word"', page.text)
    buttons = re.findall(r'\[(f\d+e\d+) button "Press"', page.text)
    assert len(set(words)) == len(set(buttons)) == 2
    for word, button in zip(words, buttons, strict=True):
        typed = await browsing.act("type", word, "hello", submit=True)
        assert "typed hello" in typed.text, typed
        pressed = await browsing.act("click", button)
        assert "pressed" in pressed.text, pressed
    found = await browsing.conn.wait_for_page(text="pressed", selector="", seconds=5)
    assert not found.error
    await browsing.open("/form")
    stale = await raised(AgentRefused, browsing.act("click", buttons[0]))
    assert stale.code == "stale_ref"


async def test_an_answer_that_the_page_asked_for_is_awaited(browsing: Browsing) -> None:
    page = await browsing.open("/asks")
    clicked = await browsing.act("click", browsing.ref(page, "Ask"))
    assert "answered welcome" in clicked.text


async def test_a_new_tab_is_the_chats_page_until_it_goes_back(browsing: Browsing) -> None:
    terms = await browsing.open("/terms")
    form = await browsing.act("click", browsing.ref(terms, "elsewhere"))
    assert form.title == "Form"
    assert "A new tab was opened" in form.notices[0]
    back = await browsing.act("back")
    assert back.title == "Terms"
    nothing = await raised(AgentRefused, browsing.act("back"))
    assert "no page to go back to" in nothing.message


async def test_chats_have_pages_of_their_own_and_not_too_many(
    fresh_process: AgentProcess, site: Site, tmp_path: Path
) -> None:
    async with (
        workbench(fresh_process, tmp_path) as first,
        workbench(fresh_process, Path()) as bench,
    ):
        browsing, other = Browsing(first, site), Browsing(bench, site)
        await browsing.open("/form")
        none = await raised(AgentRefused, other.conn.read_page())
        assert none.message == "No page is open. Use the action open first."
        many = await other.open("/popups")
        told = [each for each in many.notices if "was not opened" in each]
        assert f"{MAX_CHAT_TABS + 1} pages of this workspace are open" in told[0]
        assert (many.title, len(many.notices)) == ("Terms", MAX_NOTICES)
        assert (await browsing.conn.read_page()).title == "Form"


async def test_chats_that_open_their_first_pages_at_once_get_one_each(
    fresh_process: AgentProcess, site: Site, tmp_path: Path
) -> None:
    """The browser begins with one page, which both of them find free."""
    async with (
        workbench(fresh_process, tmp_path) as first,
        workbench(fresh_process, Path()) as bench,
    ):
        one, other = Browsing(first, site), Browsing(bench, site)
        await asyncio.gather(one.open("/form"), other.open("/terms"))
        pages = await asyncio.gather(one.conn.read_page(), other.conn.read_page())
        assert [page.title for page in pages] == ["Form", "Terms"]


async def test_a_page_is_awaited(browsing: Browsing) -> None:
    page = await browsing.open("/later")
    assert page.text == "Wait"
    late = await browsing.conn.wait_for_page(text="ready now", seconds=0.2)
    assert late.error == "It did not appear within 0.2 s."
    browsing.site.gate.set()
    found = await browsing.conn.wait_for_page(text="ready NOW", selector="#b", seconds=20)
    assert (found.error, found.text) == ("", "1: Ready now")
    bad = await raised(AgentRefused, browsing.conn.wait_for_page(selector="p[", seconds=1))
    assert bad.message == "'p[' is not a CSS selector."


async def test_a_long_page_is_read_in_pieces_and_by_words(browsing: Browsing) -> None:
    page = await browsing.open("/long")
    assert page.text.startswith("Line number 0 of many.\n")
    offset = re.search(r"Read on with offset (\d+)", page.more)
    assert offset is not None
    rest = await browsing.conn.read_page(offset=int(offset[1]))
    assert rest.text.startswith(f"Line number {int(offset[1]) - 1} of many.")
    last = await browsing.conn.read_page(offset=9999)
    assert last.text == "Line number 2999 of many."
    some = await browsing.conn.read_page(text="NUMBER 1234 ")
    assert some.text == "1235: Line number 1234 of many."


async def test_downloads_and_papers_go_to_a_directory(browsing: Browsing) -> None:
    await browsing.open("/file")
    page = await browsing.open("/file")
    downloads = browsing.bench.process.home / "downloads"
    kept = sorted(path.name for path in downloads.iterdir())
    assert len(kept) == 2
    assert all("evil name" in name for name in kept), kept
    assert (downloads / kept[0]).read_bytes() == b"contents"
    assert f"Downloaded {downloads}/" in page.notices[0]
    paper = await browsing.open("/paper")
    assert "paper" in paper.notices[0]


async def test_addresses_that_do_not_answer_are_told(browsing: Browsing, tmp_path: Path) -> None:
    for url, told in (
        ("chrome://version", "Addresses with chrome: cannot be opened"),
        ("javascript:alert(1)", "Addresses with javascript: cannot be opened"),
        ("devtools://devtools/x", "Addresses with devtools: cannot be opened"),
        ("http://127.0.0.1:1/", "net::ERR"),
        (f"file://{tmp_path}/none.html", "there is no such file"),
    ):
        refused = await raised(AgentRefused, browsing.open(url))
        assert told in refused.message
    (tmp_path / "own.html").write_text("<p>a file of the workspace</p>")
    assert (await browsing.act("open", url=f"{tmp_path}/own.html")).text == (
        "a file of the workspace"
    )
    missing = await browsing.open("/nowhere")
    assert (missing.status, missing.text) == (404, "not here")
    endless = await browsing.open("/endless")
    assert endless.text == "The beginning"
    assert "The page is still loading." in endless.notices
    private = await browsing.open("/private")
    assert private.status == 401
    assert "http://name:password@host/" in private.notices[-1]
    inside = await browsing.open(browsing.site.url.replace("//", "//ada:pw@") + "/private")
    assert inside.text == "welcome"


async def test_files_keys_and_screenshots(browsing: Browsing, tmp_path: Path) -> None:
    page = await browsing.open("/upload")
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"x")
    chosen = await browsing.act("type", browsing.ref(page, "Photo"), str(photo))
    assert "photo.png" in chosen.text
    none = await raised(AgentRefused, browsing.act("type", browsing.ref(page, "Photo"), "none"))
    assert "none is not a file" in none.message
    await browsing.open("/key")
    for key in ("a", "Enter", "Control+b"):
        await browsing.act("key", text=key)
    pressed = await browsing.conn.read_page()
    assert pressed.text == "- a Enter ctrl b"
    wrong = await raised(AgentRefused, browsing.act("key", text="Super+Foo"))
    assert "text must be one key" in wrong.message
    picture = await browsing.conn.page_screenshot()
    assert picture.image[16:24] == (1280).to_bytes(4) + (720).to_bytes(4)


async def test_a_page_that_hangs_or_crashes_is_left_by_opening_another(browsing: Browsing) -> None:
    """Takes ten seconds: so long the page is waited for."""
    loop = await browsing.open("/loop")
    hung = await browsing.act("click", browsing.ref(loop, "Hang"))
    assert "does not answer" in hung.error
    reading = await raised(AgentRefused, browsing.conn.read_page())
    assert "does not answer" in reading.message
    assert (await browsing.open("/terms")).title == "Terms"
    for pid in pages_of(browser_pid(browsing.bench.process)):
        os.kill(pid, signal.SIGKILL)
    crashed = await raised(AgentRefused, until_refused(browsing))
    assert crashed.message == "The page has crashed. Open it again."
    assert (await browsing.open("/terms")).title == "Terms"


async def until_refused(browsing: Browsing) -> None:
    async with asyncio.timeout(20):
        while True:
            await browsing.conn.read_page()


def browser_pid(process: AgentProcess) -> int:
    return int((process.run_dir / "browser.pid").read_text())


def pages_of(browser: int) -> list[int]:
    """The processes of its pages, which are in its session."""
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in found if is_page_of(pid, browser)]


def is_page_of(pid: int, browser: int) -> bool:
    try:
        is_page = b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return is_page and os.getsid(pid) == browser
    except OSError:
        return False


async def test_an_action_is_done_once_and_the_browser_starts_again(browsing: Browsing) -> None:
    page = await browsing.open("/form")
    action = BrowserAction(action="type", ref=browsing.ref(page, "Name"), text="x", submit=True)
    key = browsing.bench.key("once")
    first = await browsing.conn.use_browser(action, key=key)
    assert await browsing.conn.use_browser(action, key=key) == first
    assert len(browsing.site.clicked) == 1
    process = browsing.bench.process
    os.kill(browser_pid(process), signal.SIGKILL)
    lost = await raised(AgentRefused, until_refused(browsing))
    assert lost.message in (
        "The browser has ended. Open the page again.",
        "No page is open. Use the action open first.",
    )
    assert (await browsing.open("/form")).title == "Form"


async def test_the_browser_ends_with_the_agent_and_a_begun_action_is_unknown(
    browsing: Browsing,
) -> None:
    """Takes seconds: two browsers and two agents are started."""
    process, site = browsing.bench.process, browsing.site
    await browsing.open("/form")
    before = browser_pid(process)
    key = browsing.bench.key("slow")
    action = BrowserAction(action="open", url=f"{site.url}/slow")

    async def open_slowly() -> None:
        with suppress(AgentUnreachable):
            await browsing.conn.use_browser(action, key=key)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(open_slowly())
        await asyncio.to_thread(site.asked.wait, 20)
        process.end(signal.SIGKILL)
    process.start()
    async with workbench(process, Path()) as bench:
        again = Browsing(bench, site)
        unknown = await raised(AgentRefused, again.conn.use_browser(action, key=key))
        assert unknown.code == "outcome_unknown"
        assert (await again.open("/form")).title == "Form"
        assert browser_pid(process) != before
        assert not pages_of(before)
