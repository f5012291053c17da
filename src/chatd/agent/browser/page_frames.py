"""Frames of other origins inside a page. The page's script cannot read them, so each has a world of
its own, in the session of its process if it has one. Their elements are named `f2e5`: the fifth of
the second frame.
"""

from __future__ import annotations

import re
from typing import cast

from chatd.agent.browser.browser_server import BrowserServer, BrowserTab, PageFrame
from chatd.agent.browser.devtools_pipe import (
    CallRefused,
    CallTimeout,
    as_json,
    text_of,
)
from chatd.agent.durable_files import Json
from chatd.agent.errors import AgentError

MAX_READ_FRAMES = 12
"""Limit for one reading of a page."""
MAX_FRAME_DEPTH = 3
FRAME_TIMEOUT_S = 2.0
_REF = re.compile(r"\[?(?:f(\d{1,6}))?e(\d{1,9})\]?")


def read_ref(ref: str) -> tuple[int, int]:
    """The numbers of the frame (0: the page itself) and of the element. Raises AgentError."""
    found = _REF.fullmatch(ref.strip())
    if found is None:
        raise AgentError(400, "ref must be that of an element, such as e12: read the page first.")
    return int(found[1] or 0), int(found[2])


class PageFrames:
    def __init__(self, server: BrowserServer) -> None:
        self._server = server

    def find(self, tab: BrowserTab, number: int) -> BrowserTab | PageFrame | None:
        """Where the elements of this frame are; None if the frame was not read."""
        if number == 0:
            return tab
        return next((frame for frame in tab.frames.values() if frame.number == number), None)

    async def read(self, tab: BrowserTab, found: Json) -> list[str]:
        """The lines of a page that its script has read, with those of its frames in their places.
        Raises BrowserLost."""
        read = dict[str, PageFrame]()
        lines = await self._fill(tab, tab, found, read, 1)
        tab.frames = read  # those that have gone are forgotten
        return lines

    async def _fill(
        self,
        tab: BrowserTab,
        place: BrowserTab | PageFrame,
        found: Json,
        read: dict[str, PageFrame],
        depth: int,
    ) -> list[str]:
        number = found.get("next")
        if isinstance(number, int):
            self._server.next_number = max(self._server.next_number, number)
        inner = {
            cast(int, frame["at"]): frame for frame in cast("list[Json]", found.get("frames") or [])
        }
        lines: list[str] = []
        for at, line in enumerate(cast("list[str]", found.get("lines") or [])):
            if at not in inner:
                lines.append(line)
                continue
            name = f"frame {text_of(inner[at], 'src')}"
            if len(read) >= MAX_READ_FRAMES or depth > MAX_FRAME_DEPTH:
                lines.append(f"({name}: one of too many, open it to read it)")
                continue
            try:
                frame = await self._enter(tab, place, cast(int, inner[at]["number"]), read)
                content = as_json(
                    await self._server.evaluate(
                        frame, "chatdPage.read()", timeout_s=FRAME_TIMEOUT_S
                    )
                )
                within = await self._fill(tab, frame, content, read, depth + 1)
            except (CallRefused, CallTimeout):
                lines.append(f"({name}: it does not answer, open it to read it)")
                continue
            lines += [f"({name})", *within, "(end of frame)"]
        return lines

    async def _enter(
        self,
        tab: BrowserTab,
        place: BrowserTab | PageFrame,
        owner: int,
        read: dict[str, PageFrame],
    ) -> PageFrame:
        """Raises BrowserLost, CallRefused and CallTimeout."""
        element = await self._server.evaluate(
            place, f"chatdPage.find({owner})", timeout_s=FRAME_TIMEOUT_S, by_value=False
        )
        node = as_json(
            (await self._server.call(place, "DOM.describeNode", {"objectId": str(element)})).get(
                "node"
            )
        )
        frame_id = text_of(node, "frameId")
        if not frame_id:
            raise CallRefused("it has no content")
        session = tab.frame_sessions.get(frame_id, place.session)
        known = tab.frames.get(frame_id)
        if known is None or known.session != session:
            known = PageFrame(self._server.next_frame, frame_id, session, place, owner)
            self._server.next_frame += 1
        known.parent, known.owner = place, owner
        read[frame_id] = known
        return known

    async def point(self, place: BrowserTab | PageFrame, number: int) -> Json:
        """Where an element is in the page, `stale`, or an `error`."""
        found = as_json(await self._server.evaluate(place, f"chatdPage.point({number})"))
        while isinstance(place, PageFrame) and "x" in found:
            words = f"{place.owner}, {found['x']}, {found['y']}"
            place = place.parent
            found = as_json(await self._server.evaluate(place, f"chatdPage.through({words})"))
        return found
