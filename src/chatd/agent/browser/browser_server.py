"""The browser of a workspace: one headless Chromium, started on first use and again when it has
ended, and its tabs. Each chat has tabs of its own; cookies and storage are the workspace's.

Chromium has no sandbox of its own: namespaces are not allowed inside a workspace, whose sandbox
bounds it like any command.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, cast

from chatd.agent.browser.devtools_pipe import (
    BrowserLost,
    CallRefused,
    CallTimeout,
    DevtoolsPipe,
    as_json,
    text_of,
)
from chatd.agent.browser.page_script import PAGE_SCRIPT
from chatd.agent.durable_files import Json
from chatd.agent.errors import AgentError
from chatd.agent.processes.process_child import CommandEnvironment
from chatd.agent.processes.process_command import Waiters, wait, wake
from chatd.agent.server.agent_server import log_line

BROWSER_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER_PACKAGE = "chromium-headless-shell"
"""The Debian package; `chromium` also works."""
BROWSER_START_TIMEOUT_S = 30.0
MIN_BROWSER_RESTART_INTERVAL_S = 1.0
BROWSER_KILL_TIMEOUT_S = 5.0
MAX_CHAT_TABS = 8
"""Limit per chat. The least recently used tab is closed for a new one."""
MAX_TABS = 24
"""Limit for all chats of a workspace: beyond it the chat with most tabs loses one."""
MAX_FRAMES = 32
"""Limit for frames of other sites in one page; further ones are not read."""
PAGE_SIZE = (1280, 720)
PAGE_HEAP_MIB = 1024
"""Memory limit for the scripts of one page."""
MAX_DOWNLOAD_BYTES = 1024 * 1024 * 1024
MAX_DOWNLOADS = 8
MAX_NOTICES = 20
"""How many unread notices one chat keeps. The oldest are dropped."""
MAX_NOTICE_CHARS = 500
MAX_TOLD_CHATS = 256
"""How many chats keep notices until they ask for them."""
DOWNLOAD_DIRECTORY = "downloads"
NO_BROWSER_CODE = "no_browser"

# When memory is short, the kernel kills the browser before the agent. The pipes are 3 and 4.
_START = (
    '{ echo 1000 >>/proc/self/oom_score_adj; } 2>/dev/null; exec "$@" 3<&0 4>&1 </dev/null'
    " >/dev/null"
)
_PREFERENCES: Json = {
    "plugins": {"always_open_pdf_externally": True},
    "download": {"prompt_for_download": False},
    "credentials_enable_service": False,
}


@dataclass
class PageFrame:
    """A frame that the page's own script cannot read: of another origin, and often in a process of
    its own. `owner` is the number of its element in the document of `parent`."""

    number: int
    target_id: str
    session: str
    parent: BrowserTab | PageFrame
    owner: int
    world: int = 0

    @property
    def prefix(self) -> str:
        """The prefix of the names of its elements."""
        return f"f{self.number}"


@dataclass
class BrowserTab:
    """A page. It can be used when it is `ready`; `changed` is set at each of its events. With
    `accepts_dialogs` questions of the page are accepted, else dismissed."""

    target_id: str
    session: str
    chat_id: str
    opener: BrowserTab | None = None
    used_at: float = 0.0
    is_crashed: bool = False
    is_hung: bool = False
    is_loading: bool = False
    loads: int = 0
    """How many documents have replaced the page's so far."""
    opening: int = 0
    """How many tabs the page has asked for that are not attached yet."""
    unreachable_url: str = ""
    world: int = 0
    accepts_dialogs: bool = False
    dialog_answer: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    last_lines: list[str] = field(default_factory=list[str])
    """The lines as the chat last read them."""
    frame_sessions: dict[str, str] = field(default_factory=dict[str, str])
    """Sessions of frames with a process of their own, by the frame's id."""
    frames: dict[str, PageFrame] = field(default_factory=dict[str, PageFrame])
    """The frames that have been read, by their ids."""
    requests: set[str] = field(default_factory=set[str])
    """Unanswered requests of the page's scripts since its last action."""
    prefix = ""


@dataclass
class BrowserDownload:
    chat_id: str
    name: str


def find_browser(path: str | None = None) -> str | None:
    """Debian's wrapper scripts need files of /etc, which a workspace does not have."""
    for name in BROWSER_PROGRAMS:
        found = shutil.which(name, path=path)
        if found is not None:
            inner = f"/usr/lib/chromium/{name}"
            return inner if os.access(inner, os.X_OK) else found
    return None


class BrowserServer:
    """Create it inside the event loop. `trusted_keys` is a file with the hash of the public key of
    the workspace's certificate authority, if it has one."""

    def __init__(
        self,
        home: str,
        run_dir: str,
        environment: CommandEnvironment,
        *,
        trusted_keys: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.downloads_dir = os.path.join(home, DOWNLOAD_DIRECTORY)
        self._profile = os.path.join(home, ".cache", "chatd-browser")
        self._pid_file = os.path.join(run_dir, "browser.pid")
        self._log = os.path.join(run_dir, "browser.log")
        self._environment = environment
        self._trusted_keys = trusted_keys
        self._now = now
        self._lock = asyncio.Lock()
        self._choosing = asyncio.Lock()
        self._pipe: DevtoolsPipe | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = float("-inf")
        self._tabs: dict[str, BrowserTab] = {}
        self._current: dict[str, BrowserTab] = {}
        self._downloads: dict[str, BrowserDownload] = {}
        self._notices: dict[str, list[str]] = {}
        self._download_waiters = Waiters()
        self._tasks: set[asyncio.Task[None]] = set()
        self.next_number = 1
        self.next_frame = 1

    # --- life -----------------------------------------------------------------------------------

    def is_running(self) -> bool:
        return self._pipe is not None and not self._pipe.is_lost

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._end()

    async def ensure_started(self) -> DevtoolsPipe:
        """Raises AgentError 503, after which nothing was done."""
        async with self._lock:
            if self._pipe is not None and not self._pipe.is_lost:
                return self._pipe
            wait_s = self._started_at + MIN_BROWSER_RESTART_INTERVAL_S - self._now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._started_at = self._now()
            if self._pipe is not None:
                log_line("the browser has ended: it is started again")
            await self._end()
            try:
                return await self._start()
            except (OSError, BrowserLost, CallRefused, CallTimeout) as error:
                await self._end()
                said = self._read_log() or str(error) or "it does not answer"
                text = f"The browser of the workspace cannot be started: {said}"
                raise AgentError(503, text, code=NO_BROWSER_CODE) from error

    async def _start(self) -> DevtoolsPipe:
        """`getVersion` waits until Chromium answers. Auto-attach reports every page and frame, also
        those that pages open by themselves."""
        env = self._environment.build_variables({}, None)
        program = find_browser(env.get("PATH"))
        if program is None:
            text = f"The workspace has no Chromium. Install Debian's package {BROWSER_PACKAGE}."
            raise AgentError(503, text, code=NO_BROWSER_CODE)
        command = [program, *_switches(self._profile, env, self._read_trusted_keys())]
        process = await asyncio.to_thread(self._spawn, command, env)
        self._process = process
        source, target = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stdin)
        self._pipe = pipe = await DevtoolsPipe.open(source, target, self._on_event)
        await pipe.call("Browser.getVersion", timeout_s=BROWSER_START_TIMEOUT_S)
        await pipe.call(
            "Browser.setDownloadBehavior",
            {
                "behavior": "allowAndName",
                "downloadPath": self._downloads_place(),
                "eventsEnabled": True,
            },
        )
        await pipe.call(
            "Target.setAutoAttach",
            {
                "autoAttach": True,
                "waitForDebuggerOnStart": True,
                "flatten": True,
                "filter": [{"type": "page"}, {"exclude": True}],
            },
        )
        return pipe

    def _spawn(self, words: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        default = os.path.join(self._profile, "Default")
        os.makedirs(default, mode=0o700, exist_ok=True)
        preferences = os.path.join(default, "Preferences")
        if not os.path.exists(preferences):
            with open(preferences, "w", encoding="utf-8") as file:
                json.dump(_PREFERENCES, file)
        # A browser that was killed leaves them, and they name another host after a move.
        for name in ("SingletonLock", "SingletonCookie", "SingletonSocket"):
            with suppress(OSError):
                os.unlink(os.path.join(self._profile, name))
        with open(self._log, "wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _START, "/bin/sh", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._environment.resolve_workdir(None),
                env=dict(env),
                start_new_session=True,
                bufsize=0,
            )
        with open(self._pid_file, "w", encoding="ascii") as noted:
            noted.write(str(process.pid))
        return process

    def _downloads_place(self) -> str:
        """Chromium writes here first, under names of its own."""
        place = os.path.join(self._profile, "incoming")
        os.makedirs(place, mode=0o700, exist_ok=True)
        return place

    async def _end(self) -> None:
        """Kill what this agent or an earlier one has started."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        for tab in self._tabs.values():
            tab.changed.set()
        self._tabs.clear()
        self._current.clear()
        self._downloads.clear()
        process, self._process = self._process, None

        def kill() -> None:
            pid = process.pid if process is not None else self._find_left()
            if pid:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            if process is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(BROWSER_KILL_TIMEOUT_S)

        await asyncio.to_thread(kill)

    def _find_left(self) -> int:
        with suppress(OSError, ValueError):
            with open(self._pid_file, encoding="ascii") as noted:
                pid = int(noted.read())
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if f"--user-data-dir={self._profile}".encode() in words:
                return pid
        return 0

    def _read_log(self) -> str:
        with suppress(OSError), open(self._log, "rb") as file:
            lines = file.read()[-2000:].decode("utf-8", "replace").split("\n")
            said = [line.strip() for line in lines if "ERROR" in line or "FATAL" in line]
            return " ".join(said)[-500:]
        return ""

    def _read_trusted_keys(self) -> str:
        with suppress(OSError), open(self._trusted_keys, encoding="ascii") as file:
            return file.read(200).strip()
        return ""

    # --- tabs -----------------------------------------------------------------------------------

    def current_tab(self, chat_id: str) -> BrowserTab | None:
        return self._current.get(chat_id) if self.is_running() else None

    async def new_tab(self, chat_id: str) -> BrowserTab:
        """Raises AgentError 503, after which nothing was done."""
        pipe = await self.ensure_started()
        async with self._choosing:  # otherwise two chats could take the same one
            tab = next((tab for tab in self._tabs.values() if not tab.chat_id), None)
            if tab is None:
                self._close_excess(chat_id)
                with suppress(BrowserLost, CallRefused, CallTimeout):
                    made = await pipe.call("Target.createTarget", {"url": "about:blank"})
                    tab = self._tabs.get(text_of(made, "targetId"))
            if tab is not None:
                tab.chat_id = chat_id
                self.touch(tab)
        if tab is None or not await self.wait_ready(tab):
            if tab is not None:
                self.close_tab(tab)
            raise AgentError(503, "The browser cannot open a page. Try again.")
        self._use(tab)
        return tab

    async def wait_ready(self, tab: BrowserTab) -> bool:
        with suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(tab.ready.wait(), BROWSER_START_TIMEOUT_S)
        return False

    def use_opener(self, tab: BrowserTab) -> BrowserTab | None:
        """The tab that opened this one, which is then the chat's."""
        opener = tab.opener
        if opener is None or opener.target_id not in self._tabs:
            return None
        self._use(opener)
        return opener

    def close_tab(self, tab: BrowserTab) -> None:
        """A hanging page is forgotten at once and closed later."""
        self._forget(tab.target_id)
        self._call_later("Target.closeTarget", {"targetId": tab.target_id})

    def _call_later(self, method: str, parameters: Json) -> None:
        async def call() -> None:
            if self._pipe is not None:
                with suppress(BrowserLost, CallRefused, CallTimeout):
                    await self._pipe.call(method, parameters)

        self._run(call())

    def touch(self, tab: BrowserTab) -> None:
        tab.used_at = self._now()

    def _use(self, tab: BrowserTab) -> None:
        tab.used_at = self._now()
        self._current[tab.chat_id] = tab

    def _is_full(self, chat_id: str) -> bool:
        own = sum(tab.chat_id == chat_id for tab in self._tabs.values())
        return own >= MAX_CHAT_TABS or len(self._tabs) >= MAX_TABS

    def _close_excess(self, chat_id: str) -> None:
        while self._is_full(chat_id):
            counts = Counter(tab.chat_id for tab in self._tabs.values())
            has_most = max(counts, key=counts.__getitem__)
            loser = chat_id if counts[chat_id] >= MAX_CHAT_TABS else has_most
            own = (tab for tab in self._tabs.values() if tab.chat_id == loser)
            oldest = min(own, key=lambda tab: tab.used_at)
            self.notify(oldest.chat_id, "The browser closed a page that was not used for long.")
            self.close_tab(oldest)

    def _forget(self, target_id: str) -> None:
        tab = self._tabs.pop(target_id, None)
        if tab is not None and self._current.get(tab.chat_id) is tab:
            del self._current[tab.chat_id]
            self.use_opener(tab)
            tab.changed.set()

    async def call(
        self,
        place: BrowserTab | PageFrame,
        method: str,
        parameters: Json | None = None,
        timeout_s: float = 10.0,
    ) -> Json:
        """Raises BrowserLost, CallRefused and CallTimeout."""
        if self._pipe is None:
            raise BrowserLost(method)
        return await self._pipe.call(method, parameters, session=place.session, timeout_s=timeout_s)

    async def evaluate(
        self,
        place: BrowserTab | PageFrame,
        expression: str,
        *,
        timeout_s: float = 10.0,
        by_value: bool = True,
    ) -> object:
        """The value of an expression in the script's world of the page, where `chatdPage` is. With
        `by_value` False: the id of the object. Raises BrowserLost, CallRefused and CallTimeout."""
        for is_last in (False, True):
            try:
                if not place.world:
                    place.world = await self._make_world(place)
                found = await self.call(
                    place,
                    "Runtime.evaluate",
                    {
                        "expression": expression,
                        "contextId": place.world,
                        "returnByValue": by_value,
                        "awaitPromise": True,
                    },
                    timeout_s,
                )
            except CallRefused:
                place.world = 0  # another document is there now
                if is_last:
                    raise
                continue
            if "exceptionDetails" in found:
                details = as_json(found["exceptionDetails"])
                text = text_of(as_json(details.get("exception")), "description")
                raise CallRefused(text or text_of(details, "text"))
            result = as_json(found.get("result"))
            return result.get("value") if by_value else text_of(result, "objectId")
        raise AssertionError

    async def _make_world(self, place: BrowserTab | PageFrame) -> int:
        made = await self.call(
            place, "Page.createIsolatedWorld", {"frameId": place.target_id, "worldName": "chatd"}
        )
        world = cast(int, made.get("executionContextId"))
        script = f"({PAGE_SCRIPT})({self.next_number}, {json.dumps(place.prefix)})"
        await self.call(place, "Runtime.evaluate", {"expression": script, "contextId": world})
        return world

    # --- events ---------------------------------------------------------------------------------

    def notify(self, chat_id: str, text: str) -> None:
        """Add a notice to the chat's next reply."""
        notices = self._notices.setdefault(chat_id, [])
        notices.append(text[:MAX_NOTICE_CHARS])
        del notices[:-MAX_NOTICES]
        while len(self._notices) > MAX_TOLD_CHATS:
            del self._notices[next(iter(self._notices))]

    def take_notices(self, chat_id: str) -> list[str]:
        return self._notices.pop(chat_id, [])

    async def wait_downloads(self, chat_id: str, timeout_s: float) -> None:
        """Wait until the downloads that the chat has begun have ended."""
        until = self._now() + timeout_s
        while any(each.chat_id == chat_id for each in self._downloads.values()):
            if self._now() > until:
                self.notify(chat_id, "A download goes on.")
                return
            await wait(self._download_waiters, 0.5)

    def _on_event(self, session: str, name: str, event: Json) -> None:
        if name == "Target.attachedToTarget":
            if text_of(as_json(event.get("targetInfo")), "type") == "iframe":
                self._on_frame(session, event)
            else:
                self._on_attached(event)
        elif name in ("Target.targetDestroyed", "Target.detachedFromTarget"):
            self._forget(text_of(event, "targetId"))
            for tab in self._tabs.values():
                tab.frame_sessions = {
                    frame: own
                    for frame, own in tab.frame_sessions.items()
                    if own != text_of(event, "sessionId")
                }
        elif name == "Browser.downloadWillBegin":
            self._on_download(event)
        elif name == "Browser.downloadProgress":
            self._on_progress(event)
        elif tab := next((tab for tab in self._tabs.values() if tab.session == session), None):
            self._on_page_event(tab, name, event)

    def _on_attached(self, event: Json) -> None:
        info, session = as_json(event.get("targetInfo")), text_of(event, "sessionId")
        opener = self._tabs.get(text_of(info, "openerId"))
        tab = BrowserTab(text_of(info, "targetId"), session, opener.chat_id if opener else "")
        if opener is not None and self._is_full(tab.chat_id):
            opener.opening = max(0, opener.opening - 1)
            text = f"A page was not opened: {len(self._tabs)} pages of this workspace are open."
            self.notify(tab.chat_id, text)
            self._run(self._refuse(tab))
            return
        self._tabs[tab.target_id] = tab
        if opener is not None:
            tab.opener = opener
            opener.opening = max(0, opener.opening - 1)
            self._use(tab)
            self.notify(
                tab.chat_id, "A new tab was opened; the action back returns to the old one."
            )
            opener.changed.set()
        self._run(self._prepare(tab))

    def _on_frame(self, session: str, event: Json) -> None:
        """A frame got a process of its own, as reported by the session of the page or of the frame
        around it."""
        frame, own = (
            text_of(as_json(event.get("targetInfo")), "targetId"),
            text_of(event, "sessionId"),
        )
        for tab in self._tabs.values():
            known = session == tab.session or session in tab.frame_sessions.values()
            if known and len(tab.frame_sessions) < MAX_FRAMES:
                tab.frame_sessions[frame] = own
                self._run(self._attach_frames(own))

    async def _attach_frames(self, session: str) -> None:
        """Ask to be told of nested frames that have processes of their own."""
        wanted: Json = {
            "autoAttach": True,
            "waitForDebuggerOnStart": False,
            "flatten": True,
            "filter": [{"type": "iframe"}, {"exclude": True}],
        }
        if self._pipe is not None:
            with suppress(BrowserLost, CallRefused, CallTimeout):
                await self._pipe.call("Target.setAutoAttach", wanted, session=session)

    async def _refuse(self, tab: BrowserTab) -> None:
        """Resume a refused tab, for which its opener waits too, and close it."""
        with suppress(BrowserLost, CallRefused, CallTimeout):
            await self.call(tab, "Runtime.runIfWaitingForDebugger")
        self.close_tab(tab)

    async def _prepare(self, tab: BrowserTab) -> None:
        """Prepare the tab before the first script of the page runs."""
        calls: list[tuple[str, Json]] = [
            ("Page.enable", {}),
            ("Inspector.enable", {}),
            ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            ("Page.setInterceptFileChooserDialog", {"enabled": True}),
            ("Network.enable", {"maxTotalBufferSize": 1, "maxResourceBufferSize": 1}),
            ("Runtime.runIfWaitingForDebugger", {}),
        ]
        # All at once: some are answered only when the page runs.
        made = (self.call(tab, method, parameters) for method, parameters in calls)
        await asyncio.gather(self._attach_frames(tab.session), *made, return_exceptions=True)
        tab.ready.set()

    def _on_page_event(self, tab: BrowserTab, name: str, event: Json) -> None:
        is_main = text_of(event, "frameId") == tab.target_id
        if name == "Page.javascriptDialogOpening":
            self._run(self._answer_dialog(tab, event))
        elif name == "Page.frameStartedLoading" and is_main:
            tab.is_loading = True
        elif name == "Page.frameStoppedLoading" and is_main:
            tab.is_loading = False
        elif name == "Page.frameNavigated":
            frame = as_json(event.get("frame"))
            if text_of(frame, "id") == tab.target_id:
                tab.world = 0
                tab.loads += 1
                tab.unreachable_url = text_of(frame, "unreachableUrl")
        elif name == "Network.requestWillBeSent" and text_of(event, "type") in ("Fetch", "XHR"):
            tab.requests.add(text_of(event, "requestId"))
        elif name in ("Network.loadingFinished", "Network.loadingFailed"):
            tab.requests.discard(text_of(event, "requestId"))
        elif name == "Inspector.targetCrashed":
            tab.is_crashed = True
            if self._pipe is not None:
                self._pipe.fail_session(tab.session)
        elif name == "Page.windowOpen":
            tab.opening += 1
        elif name == "Page.fileChooserOpened":
            text = "The page asked for a file: use the action type with the path as text."
            self.notify(tab.chat_id, text)
        else:
            return
        tab.changed.set()

    async def _answer_dialog(self, tab: BrowserTab, event: Json) -> None:
        kind, message = text_of(event, "type"), text_of(event, "message")
        accepts = kind in ("alert", "beforeunload") or tab.accepts_dialogs
        answer: Json = {"accept": accepts}
        if kind == "prompt" and accepts:
            answer["promptText"] = tab.dialog_answer
        did = "closed" if kind == "alert" else "accepted" if accepts else "dismissed"
        text = f"The page showed {_DIALOGS.get(kind, kind)}, which was {did}: {message!r}."
        if not accepts:
            text += " To accept it, repeat the action with accept = true."
        self.notify(tab.chat_id, text)
        with suppress(BrowserLost, CallRefused, CallTimeout):
            await self.call(tab, "Page.handleJavaScriptDialog", answer)

    def _on_download(self, event: Json) -> None:
        guid, frame = text_of(event, "guid"), text_of(event, "frameId")
        tab = self._tabs.get(frame) or self._newest_tab()
        chat_id = tab.chat_id if tab is not None else ""
        name = clean_name(text_of(event, "suggestedFilename"))
        self._downloads[guid] = BrowserDownload(chat_id, name)
        if len(self._downloads) > MAX_DOWNLOADS:
            self._cancel_download(guid, f"more than {MAX_DOWNLOADS} at once")
        elif tab is not None:
            tab.changed.set()

    def _newest_tab(self) -> BrowserTab | None:
        return max(self._tabs.values(), key=lambda tab: tab.used_at, default=None)

    def _on_progress(self, event: Json) -> None:
        guid, state = text_of(event, "guid"), text_of(event, "state")
        download = self._downloads.get(guid)
        if download is None:
            return
        received = event.get("receivedBytes")
        if isinstance(received, (int, float)) and received > MAX_DOWNLOAD_BYTES:
            self._cancel_download(guid, f"it has more than {MAX_DOWNLOAD_BYTES} bytes")
        elif state == "completed":
            self._run(self._keep_download(guid, download))
        elif state == "canceled":
            del self._downloads[guid]
            self.notify(download.chat_id, f"The download of {download.name} failed.")

    def _cancel_download(self, guid: str, why: str) -> None:
        download = self._downloads.pop(guid)
        self.notify(download.chat_id, f"The download of {download.name} was ended: {why}.")
        self._call_later("Browser.cancelDownload", {"guid": guid})

    async def _keep_download(self, guid: str, download: BrowserDownload) -> None:
        source = os.path.join(self._downloads_place(), guid)
        try:
            path, size = await asyncio.to_thread(_move, source, self.downloads_dir, download.name)
            text = f"Downloaded {path} ({size} bytes)."
        except OSError as error:
            text = f"The download of {download.name} could not be stored: {error.strerror}."
        self._downloads.pop(guid, None)
        self.notify(download.chat_id, text)
        wake(self._download_waiters)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_DIALOGS = {
    "alert": "a message",
    "confirm": "a question",
    "prompt": "a question for text",
    "beforeunload": "a warning that changes are lost",
}


def clean_name(suggested: str) -> str:
    name = re.sub(r"[\x00-\x1f/\\]", "_", suggested).strip(" .")
    return name.encode("utf-8", "replace")[:120].decode("utf-8", "ignore") or "download"


def _move(source: str, directory: str, name: str) -> tuple[str, int]:
    """Move a file to an unused name; returns path and size. Raises OSError."""
    size = os.path.getsize(source)
    os.makedirs(directory, exist_ok=True)
    stem, ending = os.path.splitext(name)
    for tried in (name, *(f"{stem}-{number}{ending}" for number in range(2, 100))):
        path = os.path.join(directory, tried)
        with suppress(FileExistsError):
            os.link(source, path)  # never over another file
            os.unlink(source)
            return path, size
    path = os.path.join(directory, f"{stem}-{secrets.token_hex(4)}{ending}")
    os.rename(source, path)
    return path, size


def _switches(profile: str, env: Mapping[str, str], trusted_keys: str) -> list[str]:
    width, height = PAGE_SIZE
    switches = [
        "--headless", "--no-sandbox", "--remote-debugging-pipe", f"--user-data-dir={profile}",
        f"--window-size={width},{height}", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--no-default-browser-check", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-quic",
        "--disable-default-apps", "--disable-breakpad", "--disable-crash-reporter",
        "--disable-domain-reliability", "--metrics-recording-only", "--mute-audio",
        "--password-store=basic", "--use-mock-keychain", "--hide-scrollbars",
        "--disable-features=Translate,MediaRouter,OptimizationHints,DialMediaRouteProvider",
        "--disk-cache-size=67108864", f"--js-flags=--max-old-space-size={PAGE_HEAP_MIB}",
        "--no-zygote", "about:blank",
    ]  # fmt: skip
    proxy = env.get("HTTPS_PROXY") or env.get("HTTP_PROXY")
    if proxy:
        bypass = ";".join(filter(None, re.split(r"[,\s]+", env.get("NO_PROXY", ""))))
        switches[:0] = [f"--proxy-server={proxy}", f"--proxy-bypass-list={bypass}"]
    if trusted_keys and _is_key_hash(trusted_keys):
        switches.insert(0, f"--ignore-certificate-errors-spki-list={trusted_keys}")
    return switches


def _is_key_hash(text: str) -> bool:
    with suppress(ValueError):
        return len(base64.b64decode(text, validate=True)) == 32
    return False
