"""What a chat does with its page: open, read, click, type, press keys, wait, go back, and look at
it. Every reply says which page is shown and what else has happened, such as a dialog."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from chatd.agent.browser.browser_server import BrowserServer, BrowserTab
from chatd.agent.browser.devtools_pipe import (
    BrowserLost,
    CallRefused,
    CallTimeout,
    as_json,
    text_of,
)
from chatd.agent.browser.page_frames import FRAME_TIMEOUT_S, PageFrames, read_ref
from chatd.agent.durable_files import Json
from chatd.agent.errors import AgentError

BROWSER_ACTIONS = ("open", "click", "type", "key", "back")
MAX_URL_CHARS = 8192
MAX_BROWSING_CHATS = 256
"""How many chats' turns at the browser are remembered."""
MAX_TYPED_CHARS = 20_000
MAX_READ_CHARS = 12_000
"""Limit for one reading; `offset` continues it."""
MAX_CHANGES_CHARS = 4_000
"""Limit for the text about what an action changed on the page."""
MAX_LINE_CHARS = 500
"""A longer line is shown as several."""
OPEN_TIMEOUT_S = 30.0
"""How long to wait until a page begins to answer."""
LOAD_TIMEOUT_S = 5.0
"""How long to wait until the page has loaded; then it is read as it is."""
NEW_TAB_WAIT_S = 2.0
"""How long to wait for a tab that the page has asked for."""
INPUT_TIMEOUT_S = 5.0
MAX_BROWSER_WAIT_S = 30.0
WAIT_STEP_S = 0.1
ANSWER_TIMEOUT_S = 1.0
"""How long to wait for answers to requests of the page's scripts since the action."""
DOWNLOAD_WAIT_S = 10.0

_SCHEMES = ("http", "https", "file")
_KEYS: dict[str, tuple[str, int, str]] = {
    "enter": ("Enter", 13, "\r"),
    "tab": ("Tab", 9, ""),
    "escape": ("Escape", 27, ""),
    "backspace": ("Backspace", 8, ""),
    "delete": ("Delete", 46, ""),
    "space": (" ", 32, " "),
    "arrowleft": ("ArrowLeft", 37, ""),
    "arrowup": ("ArrowUp", 38, ""),
    "arrowright": ("ArrowRight", 39, ""),
    "arrowdown": ("ArrowDown", 40, ""),
    "pageup": ("PageUp", 33, ""),
    "pagedown": ("PageDown", 34, ""),
    "end": ("End", 35, ""),
    "home": ("Home", 36, ""),
}
_MODIFIERS = {"alt": 1, "control": 2, "ctrl": 2, "meta": 4, "shift": 8}
_UNKNOWN_TEXT = (
    "The browser ended during this action: it may or may not have happened, and was not repeated."
    " Open the page again and check."
)
_HUNG_TEXT = "The page does not answer: its scripts may run in a loop. Open a page to go on."
_CRASHED_TEXT = "The page has crashed. Open it again."
_NO_PAGE_TEXT = "No page is open. Use the action open first."
_NETWORK_ERRORS = {
    "net::ERR_NAME_NOT_RESOLVED": "the host name is not known",
    "net::ERR_CONNECTION_REFUSED": "nothing listens there",
    "net::ERR_ADDRESS_UNREACHABLE": "the workspace cannot reach it",
    "net::ERR_INTERNET_DISCONNECTED": "the workspace has no network",
    "net::ERR_TUNNEL_CONNECTION_FAILED": "the network of the workspace does not allow this host",
    "net::ERR_PROXY_CONNECTION_FAILED": "the proxy of the workspace does not answer",
    "net::ERR_FILE_NOT_FOUND": "there is no such file",
    "net::ERR_CERT_AUTHORITY_INVALID": "its certificate is not trusted",
    "net::ERR_EMPTY_RESPONSE": "it closed the connection without an answer",
}


@dataclass(frozen=True)
class PageAction:
    kind: str
    url: str = ""
    ref: str = ""
    text: str = ""
    submit: bool = False
    accept: bool = False


def read_url(given: str) -> str:
    """The address to open. Raises AgentError for one that no page may have."""
    url = given.strip()
    if not url or len(url) > MAX_URL_CHARS or any(ord(each) < 32 for each in url):
        raise AgentError(400, f"url must have 1 to {MAX_URL_CHARS} characters.")
    if url.startswith("/"):
        return "file://" + url
    if url == "about:blank":
        return url
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\d)", url):
        host = url.partition("/")[0].partition(":")[0]
        is_local = host == "localhost" or re.fullmatch(r"[\d.]+|\[.*", host)
        url = f"{'http' if is_local else 'https'}://{url}"
    scheme = urlsplit(url).scheme.lower()
    if scheme not in _SCHEMES:
        raise AgentError(400, f"Addresses with {scheme}: cannot be opened, only http, https, file.")
    return url


def read_action(
    kind: str, url: str, ref: str, text: str, *, submit: bool, accept: bool
) -> PageAction:
    """Raises AgentError 400."""
    if kind not in BROWSER_ACTIONS:
        raise AgentError(400, f"action must be one of {', '.join(BROWSER_ACTIONS)}.")
    if len(text) > MAX_TYPED_CHARS:
        raise AgentError(400, f"text has more than {MAX_TYPED_CHARS} characters.")
    if kind == "open":
        url = read_url(url)
    if kind in ("click", "type"):
        read_ref(ref)
    if kind == "key":
        _read_key(text)
    return PageAction(kind, url, ref, text, submit, accept)


def _read_key(text: str) -> tuple[Json, int]:
    """The fields of its events, and the modifiers."""
    *held, name = text.split("+") if text not in ("+", "") else [text]
    known = _KEYS.get(name.lower())
    if any(each.lower() not in _MODIFIERS for each in held) or (known is None and len(name) != 1):
        names = ", ".join(key for key, _, _ in _KEYS.values() if key != " ")
        text = f"text must be one key: a character or {names}, after Control+, Shift+, Alt+."
        raise AgentError(400, text)
    modifiers = 0
    for each in held:
        modifiers |= _MODIFIERS[each.lower()]
    key, code, typed = known or (name, ord(name.upper()) if name.isalnum() else 0, name)
    fields: Json = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
    if typed and not modifiers & 7:
        fields["text"] = typed
    if modifiers == 2 and key.lower() == "a":
        fields["commands"] = ["selectAll"]
    return fields, modifiers


class PageActions:
    """Runs the actions of each chat one at a time."""

    def __init__(self, server: BrowserServer) -> None:
        self._server = server
        self._frames = PageFrames(server)
        self._locks: dict[str, asyncio.Lock] = {}

    def _lock_of(self, chat_id: str) -> asyncio.Lock:
        if len(self._locks) > MAX_BROWSING_CHATS:
            self._locks = {chat: lock for chat, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(chat_id, asyncio.Lock())

    async def act(self, chat_id: str, action: PageAction) -> Json:
        """Raises AgentError: 503 if nothing was done, `outcome_unknown` if that is not known."""
        async with self._lock_of(chat_id):
            tab = await self._tab_for(chat_id, action)
            tab.accepts_dialogs, tab.dialog_answer = action.accept, action.text
            self._server.touch(tab)
            before = tab.loads
            tab.requests.clear()
            try:
                await self._do(tab, action)
                tab = await self._settle(chat_id, tab, action.ref)
            except BrowserLost as error:
                raise AgentError(409, _UNKNOWN_TEXT, code="outcome_unknown") from error
            except CallTimeout:
                tab.is_hung = True
                return self._reply(chat_id, error=_HUNG_TEXT)
            except CallRefused as error:
                text = f"The browser refused the action: {str(error)[:300]}"
                return self._reply(chat_id, error=text)
            finally:
                tab.accepts_dialogs = False
            is_new = tab.loads != before or action.kind in ("open", "back")
            return await self._describe(chat_id, tab, is_new=is_new)

    async def read(self, chat_id: str, offset: int, text: str) -> Json:
        """The lines from `offset` (from 1) on, or those with `text`."""
        async with self._lock_of(chat_id):
            tab = self._open_tab(chat_id)
            lines, facts = await self._read_lines(tab)
            tab.last_lines = lines
            if text:
                wanted = text.lower()
                found = [
                    f"{n}: {line}" for n, line in enumerate(lines, 1) if wanted in line.lower()
                ]
                shown, count = _fit(found, MAX_READ_CHARS)
                more = f"{len(found)} of {len(lines)} lines have this text."
                if count < len(found):
                    more += f" The first {count} are shown."
                return self._reply(chat_id, facts, shown, more)
            first = min(max(offset, 1), max(len(lines), 1))
            shown, count = _fit(lines[first - 1 :], MAX_READ_CHARS)
            return self._reply(chat_id, facts, shown, _more(first, count, len(lines)))

    async def wait(self, chat_id: str, text: str, selector: str, seconds: float) -> Json:
        async with self._lock_of(chat_id):
            tab = self._open_tab(chat_id)
            until = time.monotonic() + min(seconds, MAX_BROWSER_WAIT_S)
            looked = f"chatdPage.has({json.dumps(text)}, {json.dumps(selector)})"
            found = False
            while text or selector:
                try:
                    found = bool(await self._server.evaluate(tab, looked))
                    for frame in () if found else tuple(tab.frames.values()):
                        with suppress(CallRefused, CallTimeout):
                            inside = await self._server.evaluate(
                                frame, looked, timeout_s=FRAME_TIMEOUT_S
                            )
                            found = found or bool(inside)
                except CallRefused as error:
                    if "not a valid selector" in str(error):
                        raise AgentError(400, f"{selector!r} is not a CSS selector.") from None
                except (BrowserLost, CallTimeout) as error:
                    raise _lost(tab, error) from error
                if found or time.monotonic() > until:
                    break
                await asyncio.sleep(WAIT_STEP_S)
            if not text and not selector:
                await asyncio.sleep(max(until - time.monotonic(), 0))
            reply = await self._describe(chat_id, tab, is_new=False)
            if (text or selector) and not found:
                reply["error"] = f"It did not appear within {min(seconds, MAX_BROWSER_WAIT_S):g} s."
            return reply

    async def screenshot(self, chat_id: str) -> tuple[Json, bytes]:
        """Facts of the page, and a PNG of what a person would see of it."""
        async with self._lock_of(chat_id):
            tab = self._open_tab(chat_id)
            try:
                facts = as_json(await self._server.evaluate(tab, "chatdPage.facts()"))
                made = await self._server.call(tab, "Page.captureScreenshot", {"format": "png"})
            except (BrowserLost, CallTimeout, CallRefused) as error:
                raise _lost(tab, error) from error
            return self._reply(chat_id, facts), base64.b64decode(text_of(made, "data"))

    # --- actions --------------------------------------------------------------------------------

    async def _tab_for(self, chat_id: str, action: PageAction) -> BrowserTab:
        if action.kind != "open":
            return self._open_tab(chat_id)
        tab = self._server.current_tab(chat_id)
        if tab is not None and (tab.is_hung or tab.is_crashed):
            self._server.close_tab(tab)
            tab = None
        return tab or await self._server.new_tab(chat_id)

    def _open_tab(self, chat_id: str) -> BrowserTab:
        tab = self._server.current_tab(chat_id)
        if tab is None:
            raise AgentError(409, _NO_PAGE_TEXT)
        if tab.is_hung or tab.is_crashed:
            raise AgentError(409, _CRASHED_TEXT if tab.is_crashed else _HUNG_TEXT)
        self._server.touch(tab)
        return tab

    async def _do(self, tab: BrowserTab, action: PageAction) -> None:
        if action.kind == "open":
            await self._open(tab, action.url)
        elif action.kind == "back":
            await self._back(tab)
        elif action.kind == "click":
            await self._click(tab, action.ref)
        elif action.kind == "type":
            await self._type(tab, action)
        else:
            await self._press(tab, action.text)

    async def _open(self, tab: BrowserTab, url: str) -> None:
        try:
            reply = await self._server.call(tab, "Page.navigate", {"url": url}, OPEN_TIMEOUT_S)
        except CallTimeout:
            with suppress(CallTimeout, CallRefused):
                await self._server.call(tab, "Page.stopLoading")
            text = f"{url} did not answer within {OPEN_TIMEOUT_S:g} seconds."
            raise AgentError(504, text) from None
        except CallRefused as error:
            raise AgentError(400, f"{url} cannot be opened: {error}.") from None
        reason = text_of(reply, "errorText")
        if reason and not reply.get("isDownload") and reason != "net::ERR_ABORTED":
            what = _NETWORK_ERRORS.get(reason, "")
            told = f"{what} ({reason})" if what else reason
            raise AgentError(502, f"{url} cannot be opened: {told}.")

    async def _back(self, tab: BrowserTab) -> None:
        history = await self._server.call(tab, "Page.getNavigationHistory")
        at = cast(int, history.get("currentIndex"))
        entries = cast("list[Json]", history.get("entries"))
        if at > 0 and text_of(entries[at - 1], "url") != "about:blank":
            entry = {"entryId": entries[at - 1]["id"]}
            await self._server.call(tab, "Page.navigateToHistoryEntry", entry)
            return
        if self._server.use_opener(tab) is None:
            raise AgentError(409, "There is no page to go back to.")
        self._server.close_tab(tab)

    async def _click(self, tab: BrowserTab, ref: str) -> None:
        found = await self._on_element(tab, ref, "point")
        at: Json = {"x": found["x"], "y": found["y"]}
        pressed: Json = {**at, "button": "left", "clickCount": 1}
        for kind, fields in (
            ("mouseMoved", at),
            ("mousePressed", pressed),
            ("mouseReleased", pressed),
        ):
            await self._input(tab, "Input.dispatchMouseEvent", {"type": kind, **fields})

    async def _type(self, tab: BrowserTab, action: PageAction) -> None:
        found = await self._on_element(tab, action.ref, "prepare", action.text)
        if found.get("file"):
            await self._choose_files(tab, action)
        elif found.get("insert"):
            await self._input(tab, "Input.insertText", {"text": action.text})
        if action.submit:
            await self._press(tab, "Enter")

    async def _choose_files(self, tab: BrowserTab, action: PageAction) -> None:
        paths = [line.strip() for line in action.text.split("\n") if line.strip()]
        missing = next((path for path in paths if not _is_file(path)), None)
        if missing is not None:
            raise AgentError(400, f"{missing} is not a file: text must have absolute paths.")
        frame, number = read_ref(action.ref)
        place = self._frames.find(tab, frame) or tab
        thing = await self._server.evaluate(place, f"chatdPage.find({number})", by_value=False)
        await self._server.call(
            place, "DOM.setFileInputFiles", {"files": paths, "objectId": str(thing)}
        )

    async def _press(self, tab: BrowserTab, key: str) -> None:
        fields, _ = _read_key(key)
        down = "keyDown" if "text" in fields else "rawKeyDown"
        await self._input(tab, "Input.dispatchKeyEvent", {"type": down, **fields})
        await self._input(tab, "Input.dispatchKeyEvent", {"type": "keyUp", **fields})

    async def _input(self, tab: BrowserTab, method: str, fields: Json) -> None:
        """An input may close its own tab, or replace its page, before Chromium has answered."""
        loads = tab.loads
        try:
            await self._server.call(tab, method, fields, INPUT_TIMEOUT_S)
        except (CallRefused, CallTimeout):
            is_gone = self._server.current_tab(tab.chat_id) is not tab
            if not is_gone and tab.loads == loads and not tab.is_loading:
                raise

    async def _on_element(self, tab: BrowserTab, ref: str, function: str, *more: str) -> Json:
        """Raises AgentError if the element is not there or cannot be used."""
        frame, number = read_ref(ref)
        place = self._frames.find(tab, frame)
        try:
            if place is None:
                found: Json = {"stale": True}
            elif function == "point":
                found = await self._frames.point(place, number)
            else:
                words = ", ".join([str(number), *map(json.dumps, more)])
                found = as_json(
                    await self._server.evaluate(place, f"chatdPage.{function}({words})")
                )
        except CallRefused:
            if place is tab:
                raise
            found = {"stale": True}  # the frame has gone
        if found.get("stale"):
            text = f"{ref} is no longer on the page. Nothing was done: read the page again."
            raise AgentError(409, text, code="stale_ref")
        if found.get("error"):
            raise AgentError(409, f"Nothing was done: {ref} {found['error']}.")
        return found

    async def _settle(self, chat_id: str, tab: BrowserTab, ref: str = "") -> BrowserTab:
        """Wait for what the action has begun; returns the chat's tab then."""
        frame = self._frames.find(tab, read_ref(ref)[0]) if ref else None
        if frame is not None and frame is not tab:
            with suppress(CallRefused, CallTimeout):
                await self._server.evaluate(frame, "chatdPage.quiet()", timeout_s=FRAME_TIMEOUT_S)
        until = time.monotonic() + LOAD_TIMEOUT_S
        for _ in range(3):
            tab = self._server.current_tab(chat_id) or tab
            await self._server.wait_ready(tab)
            await self._until_loaded(tab, until)
            loads = tab.loads
            with suppress(CallRefused):  # another page has replaced it
                await self._server.evaluate(tab, "chatdPage.quiet()")
                if tab.requests and await self._until_answered(tab):
                    await self._server.evaluate(tab, "chatdPage.quiet()")
            await self._until_opened(tab)
            now = self._server.current_tab(chat_id)
            if now is None or (now is tab and not tab.is_loading and tab.loads == loads):
                break
        await self._server.wait_downloads(chat_id, DOWNLOAD_WAIT_S)
        if tab.is_loading:
            self._server.notify(chat_id, "The page is still loading.")
        return self._server.current_tab(chat_id) or tab

    async def _until_answered(self, tab: BrowserTab) -> bool:
        """Wait for answers that the page's scripts have asked for; returns whether they came."""
        until = time.monotonic() + ANSWER_TIMEOUT_S
        while tab.requests and not tab.is_loading and not tab.is_crashed:
            left_s = until - time.monotonic()
            if left_s <= 0:
                tab.requests.clear()  # such as an answer that stays open
                return False
            tab.changed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(tab.changed.wait(), left_s)
        return True

    async def _until_loaded(self, tab: BrowserTab, until: float) -> None:
        while tab.is_loading and not tab.is_crashed:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            tab.changed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(tab.changed.wait(), left_s)

    async def _until_opened(self, tab: BrowserTab) -> None:
        """The tab that a click asks for is attached by another process, later than the page is
        quiet. A browser that blocks it never attaches it."""
        until = time.monotonic() + NEW_TAB_WAIT_S
        while tab.opening and (left_s := until - time.monotonic()) > 0:
            tab.changed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(tab.changed.wait(), left_s)
        tab.opening = 0

    # --- replies --------------------------------------------------------------------------------

    async def _describe(self, chat_id: str, tab: BrowserTab, *, is_new: bool) -> Json:
        """The page after an action: its beginning if it is another one, else what has changed."""
        if self._server.current_tab(chat_id) is None:
            return self._reply(chat_id, error="The page has been closed.")
        if tab.is_crashed:
            return self._reply(chat_id, error=_CRASHED_TEXT)
        lines, facts = await self._read_lines(tab)
        before, tab.last_lines = tab.last_lines, lines
        if is_new or not before:
            shown, count = _fit(lines, MAX_CHANGES_CHARS * (2 if is_new else 1))
            return self._reply(chat_id, facts, shown, _more(1, count, len(lines)))
        seen = Counter(before)
        seen.subtract(lines)
        gone = sum(count for count in seen.values() if count > 0)
        left = Counter({line: -count for line, count in seen.items() if count < 0})
        fresh: list[str] = []
        for number, line in enumerate(lines, 1):
            if left[line] > 0:
                left[line] -= 1
                fresh.append(f"{number}: {line}")
        shown, count = _fit(fresh, MAX_CHANGES_CHARS)
        more = "Nothing on the page has changed."
        if fresh or gone:
            more = f"{len(fresh)} lines of the page are new, {gone} are gone."
            more += f" The first {count} new ones are shown." if count < len(fresh) else ""
        return self._reply(chat_id, facts, shown, more)

    async def _read_lines(self, tab: BrowserTab) -> tuple[list[str], Json]:
        try:
            found = as_json(await self._server.evaluate(tab, "chatdPage.read()"))
            filled = await self._frames.read(tab, found)
        except (BrowserLost, CallRefused, CallTimeout) as error:
            raise _lost(tab, error) from error
        if tab.unreachable_url:
            found["url"] = tab.unreachable_url
            self._server.notify(tab.chat_id, "This page could not be loaded.")
        lines: list[str] = []
        for line in filled:
            lines += _wrap(line)
        return lines, found

    def _reply(
        self,
        chat_id: str,
        facts: Json | None = None,
        text: str = "",
        more: str = "",
        *,
        error: str = "",
    ) -> Json:
        facts = facts or {}
        status = facts.get("status")
        notices = self._server.take_notices(chat_id)
        if status == 401:
            notices.append(
                "The page asks for a name and a password by HTTP: open it as"
                " http://name:password@host/."
            )
        return {
            "url": text_of(facts, "url")[:MAX_URL_CHARS],
            "title": text_of(facts, "title"),
            "status": status if isinstance(status, int) else 0,
            "text": text,
            "more": more,
            "notices": notices,
            "error": error,
        }


def _is_file(path: str) -> bool:
    return os.path.isabs(path) and os.path.isfile(path)


def _lost(tab: BrowserTab, error: Exception) -> AgentError:
    if isinstance(error, BrowserLost):
        return AgentError(409, "The browser has ended. Open the page again.")
    if tab.is_crashed:
        return AgentError(409, _CRASHED_TEXT)
    if isinstance(error, CallTimeout):
        tab.is_hung = True
        return AgentError(409, _HUNG_TEXT)
    return AgentError(409, f"The page cannot be read now: {str(error)[:300]}. Try again.")


def _more(first: int, count: int, total: int) -> str:
    if first == 1 and count >= total:
        return ""
    last = first + count - 1
    text = f"Lines {first} to {last} of {total}."
    return text if last >= total else f"{text} Read on with offset {last + 1}."


def _wrap(line: str) -> list[str]:
    pieces: list[str] = []
    while len(line) > MAX_LINE_CHARS:
        at = line.rfind(" ", MAX_LINE_CHARS // 2, MAX_LINE_CHARS)
        at = at if at > 0 else MAX_LINE_CHARS
        pieces.append(line[:at])
        line = line[at:].lstrip()
    return [*pieces, line] if line else pieces


def _fit(lines: list[str], max_chars: int) -> tuple[str, int]:
    """As many lines as fit, at least one, and how many these are."""
    used = 0
    for count, line in enumerate(lines):
        used += len(line) + 1
        if used > max_chars and count:
            return "\n".join(lines[:count]), count
    return "\n".join(lines), len(lines)
