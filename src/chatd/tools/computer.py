"""The tools of an agent at a desktop: mouse, keyboard and screenshots.

Each call is done once: the workspace agent knows it by its key. A call whose outcome is unknown is
followed by a screenshot, which shows it.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Annotated, Final, Literal

from msgspec import Raw, Struct
from msgspec.structs import replace

from chatd.domain.answer.tool_output import ToolMedia, ToolOutput, error_output
from chatd.domain.chat.parts import FilePart
from chatd.domain.chat.row import Chat
from chatd.domain.computer_use import (
    COMPUTER_MODE,
    COMPUTER_TOOL,
    ComputerCall,
    Screen,
    computer_description,
    computer_schema,
    map_point,
    picture_size,
    read_call,
)
from chatd.domain.errors import ToolError, Unavailable
from chatd.domain.files import clean_file_name
from chatd.domain.ids import ChatId, MessageId
from chatd.domain.media_types import MP4
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import Clock, Env, Tool, ToolContext
from chatd.domain.workspace.agent_api import (
    ActedOnDesktop,
    AgentRefused,
    AgentUnreachable,
    DesktopPicture,
    WorkspaceUnavailable,
)
from chatd.domain.workspace.entities import DEFAULT_SCREEN
from chatd.domain.workspace.runners import RUNNER_WAIT_S
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.tool import WorkspaceAccess, WorkspaceTool, argument, json_output, workspace_tool
from chatd.workspaces.agents.agent_client import AgentClient

COMPUTER_TIMEOUT_S: Final = 420.0
"""Longer than actions wait for a person who has taken over, and then act and are seen."""
ATTACH_SCREENSHOT: Final = "attach_screenshot"
NO_DESKTOP_TEXT: Final = (
    "This workspace has no desktop. Its template must say `desktop = true`; say so in your report."
)
UNKNOWN_TEXT: Final = (
    "The outcome of this call is unknown: it may have happened, wholly or in part, and was not"
    " repeated. The screenshot shows the desktop now."
)
DONE_TEXT: Final = "The actions were done."
NO_PICTURE_TEXT: Final = (
    "There is no screenshot of what came of it: take one before you go on, and do not repeat this"
    " call."
)
AGENT_BACK_WAIT_S: Final = 30.0
AGENT_BACK_POLL_S: Final = 0.5
GAVE_BACK_TEXT: Final = (
    "Nothing was done: a person had taken over mouse and keyboard, and has given them back. The"
    " screenshot shows the desktop now. Look at it before you go on."
)
PERSON_ACTIVE_TEXT: Final = (
    "A person has taken over mouse and keyboard and still uses them. Do not act: wait, with the"
    " action wait, until the person gives them back."
)

LoadScreen = Callable[[Chat], Awaitable[Screen | None]]


class AttachScreenshotArguments(Struct, frozen=True, kw_only=True):
    name: Annotated[str, argument("The file's name. Default: screenshot.png.")] = ""


class ComputerTools:
    """Satisfies `ports.ToolFamily`: tools of chats that use a desktop. `load_screen` reads the size
    of the screen from the template of the chat's workspace."""

    def __init__(
        self,
        access: WorkspaceAccess,
        files: ChatFileWriter,
        load_screen: LoadScreen,
        env: Env,
        recordings: "DesktopRecordings | None" = None,
    ) -> None:
        self._access = access
        self._recordings = recordings
        self._load_screen = load_screen
        self._env = env
        self._attach = attach_screenshot(access, files)

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        if chat.mode != COMPUTER_MODE:
            return ()
        try:
            screen = await self._load_screen(chat)
        except Unavailable as error:
            self._env.emit("screen_not_read", chat_id=chat.id, error_kind=error.code)
            screen = None
        screen = screen or Screen(*DEFAULT_SCREEN)
        return (computer(self._access, screen, self._env.clock, self._recordings), self._attach)


def computer(
    access: WorkspaceAccess,
    screen: Screen,
    clock: Clock,
    recordings: "DesktopRecordings | None" = None,
) -> WorkspaceTool:
    async def handle(context: ToolContext, args: Raw) -> ToolOutput:
        agent = await access.connect(context)
        native = await _read_screen(agent)
        call = read_call(args, native)
        if recordings is not None:
            await recordings.start(context, agent)
        note = await _act(agent, call, context.call_key)
        if not call.actions:
            return _shown(call, note, await agent.screenshot(call.picture, call.region), native)
        try:
            picture = await _look_after(agent, call, clock)
        except (AgentRefused, AgentUnreachable, WorkspaceUnavailable) as error:
            done = note or DONE_TEXT
            return error_output(f"{done} {NO_PICTURE_TEXT} {error.message}")
        return _shown(call, note, picture, native)

    spec = ToolSpec(
        name=COMPUTER_TOOL,
        description=computer_description(picture_size(screen)),
        input_schema=computer_schema(),
        screen=screen,
    )
    return WorkspaceTool(
        spec=spec,
        handle=handle,
        serial=True,  # mouse and keyboard are one each
        timeout_s=COMPUTER_TIMEOUT_S + RUNNER_WAIT_S,
    )


async def _look_after(agent: AgentClient, call: ComputerCall, clock: Clock) -> DesktopPicture:
    """The screen after actions. An agent that died in them is back after a moment."""
    until = clock.monotonic() + AGENT_BACK_WAIT_S
    while True:
        try:
            return await agent.screenshot(call.picture, call.region, settles=True)
        except AgentUnreachable:
            if clock.monotonic() >= until:
                raise
            await clock.sleep(AGENT_BACK_POLL_S, "agent_back")


async def _read_screen(agent: AgentClient) -> Screen:
    """Of the running desktop: the template may have another one since."""
    state = await agent.desktop()
    if not state.enabled:
        raise ToolError(NO_DESKTOP_TEXT)
    return Screen(state.width, state.height)


async def _act(agent: AgentClient, call: ComputerCall, key: str) -> str:
    """What the model must know of its actions besides the screenshot."""
    if not call.actions:
        return ""
    try:
        outcome = await agent.act(call.actions, key=key)
    except AgentRefused as error:
        if error.code != "outcome_unknown":
            raise
        return UNKNOWN_TEXT
    return _describe(outcome, len(call.actions))


def _describe(outcome: ActedOnDesktop, count: int) -> str:
    done = f"{outcome.done} of {count} actions were done." if count > 1 or outcome.error else ""
    if outcome.person == "gave_back":
        return GAVE_BACK_TEXT
    if outcome.person == "active":
        return f"{done} {PERSON_ACTIVE_TEXT}".strip()
    if outcome.unknown:
        return f"{outcome.error} {done} {UNKNOWN_TEXT}"
    return f"{outcome.error} {done}".strip() if outcome.error else ""


def _shown(call: ComputerCall, note: str, picture: DesktopPicture, screen: Screen) -> ToolOutput:
    texts = [note]
    if call.tells_pointer:
        x, y = map_point((picture.x, picture.y), screen, call.picture)
        texts.append(f"The pointer is at ({x}, {y}).")
    if picture.taken_by and not note:
        texts.append(PERSON_ACTIVE_TEXT)
    if picture.note:
        texts.append(picture.note)
    media = ToolMedia(media_type="image/png", data=picture.image)
    return ToolOutput(text=" ".join(text for text in texts if text), media=media)


def attach_screenshot(access: WorkspaceAccess, files: ChatFileWriter) -> WorkspaceTool:
    async def handle(context: ToolContext, args: AttachScreenshotArguments) -> ToolOutput:
        name = clean_file_name(args.name.strip() or "screenshot.png")
        if name is None:
            raise ToolError("name must be the name of a file.")
        name = name if name.lower().endswith(".png") else f"{name}.png"
        stored = await files.find(context)
        if stored is None:
            agent = await access.connect(context)
            picture = await agent.screenshot(await _read_screen(agent))
            stored = await files.store(context, name, "image/png", _pieces(picture.image))
        shown = FilePart(media_type=stored.media_type, file_id=str(stored.id), name=name)
        output = json_output({"file_id": str(stored.id), "name": name, "size": stored.size_bytes})
        return replace(output, files=(shown,))

    return workspace_tool(
        ATTACH_SCREENSHOT,
        "Give the user a picture of the whole desktop as it is now, in full size. The user sees it"
        " in the chat and can download it.",
        AttachScreenshotArguments,
        handle,
        serial=True,  # so that the limit of files of a chat holds
    )


async def _pieces(data: bytes) -> AsyncGenerator[bytes]:
    yield data


# Recordings

RECORDING_START_TIMEOUT_S: Final = 20.0
RECORDING_TIMEOUT_S: Final = 45.0
"""To end a recording and store it; less than the time of the call that waits for the subagent."""
MAX_KNOWN_RECORDINGS: Final = 1000
_RECORDING_ERRORS: Final = (AgentRefused, AgentUnreachable, ToolError, Unavailable, TimeoutError)


class DesktopRecordings:
    """Videos of what subagents do at a desktop, one for each turn. Best effort: an action and a
    wait go on without one, and the log says why."""

    def __init__(self, access: WorkspaceAccess, files: ChatFileWriter, env: Env) -> None:
        self._access = access
        self._files = files
        self._env = env
        self._started: dict[tuple[ChatId, MessageId | None], None] = {}

    async def start(self, context: ToolContext, agent: AgentClient) -> None:
        """Asks once for each turn; the workspace agent goes on with one that runs."""
        chat = context.chat
        turn = (chat.id, chat.turn_message_id)
        if turn in self._started:
            return
        self._started[turn] = None
        while len(self._started) > MAX_KNOWN_RECORDINGS:
            del self._started[next(iter(self._started))]
        try:
            async with asyncio.timeout(RECORDING_START_TIMEOUT_S):
                refusal = await agent.start_recording(str(chat.id))
        except _RECORDING_ERRORS as error:
            refusal = str(error) or type(error).__name__
        if refusal:
            self._env.emit("desktop_not_recorded", chat_id=chat.id, reason=refusal)

    async def collect(self, context: ToolContext, child: ChatId) -> tuple[FilePart, ...]:
        """End the recording of a subagent, and store video and poster in its parent's chat."""
        try:
            async with asyncio.timeout(RECORDING_TIMEOUT_S):
                return await self._collect(context, child)
        except _RECORDING_ERRORS as error:
            reason = str(error) or type(error).__name__
            self._env.emit("desktop_not_recorded", chat_id=child, reason=reason)
            return ()

    async def _collect(self, context: ToolContext, child: ChatId) -> tuple[FilePart, ...]:
        video = await self._files.find(context, "recording")
        poster = await self._files.find(context, "poster")
        if video is None:
            agent = await self._access.connect(context)
            found = await agent.stop_recording(str(child))
            if not found.video:
                return ()
            if found.poster and poster is None:
                pieces = _recorded(agent, child, "jpg")
                poster = await self._files.store(
                    context, "recording.jpg", "image/jpeg", pieces, part="poster"
                )
            pieces = _recorded(agent, child, "mp4")
            video = await self._files.store(context, "recording.mp4", MP4, pieces, part="recording")
        stored = (video,) if poster is None else (video, poster)
        return tuple(
            FilePart(media_type=file.media_type, file_id=str(file.id), name=file.name)
            for file in stored
        )


async def _recorded(
    agent: AgentClient, child: ChatId, kind: Literal["mp4", "jpg"]
) -> AsyncGenerator[bytes]:
    offset = 0
    while piece := await agent.read_recording(str(child), kind, offset):
        offset += len(piece)
        yield piece
