"""Scenes of the demo model, each followed by a viewer until the chat is at rest."""

from collections.abc import Awaitable, Callable
from typing import Final

from chatd.client.state import ShownChat
from tests.support.event_recorder import Json, Recorder

Scene = Callable[[Recorder], Awaitable[None]]

CLIENT_TOOL: Final[Json] = {
    "name": "open_page",
    "description": "Opens a page.",
    "input_schema": {"type": "object", "properties": {"url": {"type": "string"}}},
}


def body(words: str, **more: object) -> Json:
    return {"content": [{"type": "text", "text": words}], **more}


def is_at_rest(shown: ShownChat) -> bool:
    return shown.is_loaded and shown.status in ("waiting", "error") and not shown.queue


def has_parts(shown: ShownChat) -> bool:
    return shown.live is not None


def has_status(status: str) -> Callable[[ShownChat], bool]:
    return lambda shown: shown.is_loaded and shown.status == status


async def play_text(viewer: Recorder) -> None:
    async with viewer.following():
        await viewer.until(is_at_rest)
    async with viewer.following():
        await viewer.post("/messages", body("think about it"))
        await viewer.until(lambda shown: len(shown.messages) == 4 and is_at_rest(shown))


async def play_interrupt(viewer: Recorder) -> None:
    async with viewer.following():
        await viewer.until(has_parts)
    async with viewer.following():
        await viewer.until(has_parts)
        await viewer.post("/interrupt")
        await viewer.until(is_at_rest)


async def play_queue(viewer: Recorder) -> None:
    async with viewer.following():
        await viewer.until(has_parts)
        for words in ("show me a table", "think about it", "never sent"):
            await viewer.post("/messages", body(words))
        shown = await viewer.until(lambda shown: len(shown.queue) == 3)
        first, second, third = (item.id for item in shown.queue)
        await viewer.post(f"/queue/{second}/move", {"before": first})
        await viewer.patch(f"/queue/{first}", body("show me a list"))
        await viewer.delete(f"/queue/{third}")
        await viewer.until(lambda shown: [one.id for one in shown.queue] == [second, first])
        await viewer.post("/interrupt", {"queue": "hold"})
        await viewer.until(has_status("error"))
        await viewer.post("/resume")
        await viewer.until(is_at_rest)


async def play_steer(viewer: Recorder) -> None:
    """A call of a client tool keeps the turn open until its result is there."""
    async with viewer.following():
        shown = await viewer.until(has_status("requires_action"))
        await viewer.post("/messages", body("in English", busy_behavior="steer"))
        await viewer.until(lambda shown: len(shown.queue) == 1)
        call = shown.requested_calls[0].tool_call_id
        results = [{"tool_call_id": call, "output": {"title": "Example"}}]
        await viewer.post("/tool-results", {"results": results})
        await viewer.until(is_at_rest)


async def play_edit(viewer: Recorder) -> None:
    async with viewer.following():
        await viewer.until(is_at_rest)
        await viewer.post("/messages", body("think about it"))
        shown = await viewer.until(lambda shown: len(shown.messages) == 4 and is_at_rest(shown))
        await viewer.patch(f"/messages/{shown.messages[2].id}", body("show me a list"))
        last = shown.messages[-1].id
        await viewer.until(lambda shown: shown.messages[-1].id > last + 1 and is_at_rest(shown))


async def play_rollback(viewer: Recorder) -> None:
    async with viewer.following():
        await viewer.until(has_parts)
        await viewer.post("/messages", body("show me a table", busy_behavior="rollback"))
        await viewer.until(lambda shown: len(shown.messages) == 2 and is_at_rest(shown))


async def play_to_rest(viewer: Recorder) -> None:
    async with viewer.following():
        await viewer.until(is_at_rest)


async def play_compaction(viewer: Recorder) -> None:
    async with viewer.following():
        shown = await viewer.until(is_at_rest)
        last = shown.messages[-1].id
        await viewer.post("/compact")
        await viewer.until(lambda shown: shown.messages[-1].id > last and is_at_rest(shown))


SCENES: Final[dict[str, tuple[str, Scene]]] = {
    "text": ("show me a table", play_text),
    "interrupt": ("tell me a long story", play_interrupt),
    "queue": ("tell me a long story", play_queue),
    "steer": ("call open_page", play_steer),
    "edit": ("show me a table", play_edit),
    "rollback": ("tell me a long story", play_rollback),
    "retry": ("show me an error", play_to_rest),
    "error": ("show me a permanent error", play_to_rest),
    "compaction": ("show me a table", play_compaction),
}
"""By name: the first message of the chat, and what happens then."""
