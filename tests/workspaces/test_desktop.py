"""The desktop of a workspace: a real agent, a real X server and a real program with a window."""

import asyncio
import os
import re
import shutil
import signal
import struct
import subprocess
import zlib
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from pathlib import Path

import pytest

from chatd.agent.desktop.desktop_routes import MAX_VNC_STREAMS
from chatd.agent.desktop.desktop_server import DesktopPlace, find_server
from chatd.domain.computer_use import InputAction, PictureRegion, Screen
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable, DesktopPicture
from chatd.services.workspaces.people_access import AgentDesktop
from tests.support.eventually import eventually
from tests.support.outcomes import raised
from tests.workspaces.agent_process import AgentProcess, Workbench, workbench

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("Xvnc", "xterm"))),
    reason="needs Debian's packages tigervnc-standalone-server and xterm",
)
SCREEN = Screen(1600, 900)
REPORTS_MOUSE = "printf '\\033[?1000h\\033[?1006h'; exec cat -v > {}"
"""A program that writes each click down, as the terminal reports it: `^[[<0;column;rowM`."""


@pytest.fixture(scope="module")
def desktop_process(tmp_path_factory: pytest.TempPathFactory) -> Generator[AgentProcess]:
    place = tmp_path_factory.mktemp("desktop")
    process = AgentProcess(place, desktop=(SCREEN.width, SCREEN.height))
    process.start()
    yield process
    process.end(signal.SIGTERM)


@pytest.fixture
async def bench(desktop_process: AgentProcess, tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with workbench(desktop_process, tmp_path) as bench:
        yield bench
        await close_windows(bench)


async def open_terminal(bench: Workbench, script: str, name: str = "t") -> None:
    """Start a program in a window, and wait until the window is shown and has the keyboard."""
    await bench.conn.screenshot(SCREEN)
    ready = Path(bench.path(f"{name}.ready"))
    file = bench.path(f"{name}.sh")
    text = f"stty -echo -icanon\ntouch {ready}\n{script}\n"
    await bench.conn.write_file(file, text.encode(), key=bench.key(f"write {name}"))
    await bench.conn.start_process(
        f"exec xterm -u8 -bg white -geometry 100x30+200+100 -e sh {file}",
        key=bench.key(f"open {name}"),
        background=True,
    )
    await eventually_holds(ready, "")
    await eventually(lambda: is_shown(bench), within_s=20)
    await act(bench, InputAction(kind="click", points=((400, 300),)), name=f"focus {name}")


async def is_shown(bench: Workbench) -> bool:
    picture = await bench.conn.screenshot(Screen(1, 1), PictureRegion(400, 300, 1, 1))
    return pixels_of(picture)[2] == b"\xff\xff\xff"


async def close_windows(bench: Workbench) -> None:
    """So that the next window is the only one."""
    for process in await bench.conn.processes():
        if process.running:
            await bench.conn.signal(process.id, "kill")
            await bench.conn.output(process.id, wait_s=20)

    async def is_empty() -> bool:
        return not await is_shown(bench)

    await eventually(is_empty, within_s=20)


async def act(bench: Workbench, *actions: InputAction, name: str) -> None:
    outcome = await bench.conn.act(actions, key=bench.key(name))
    assert (outcome.done, outcome.error) == (len(actions), "")


def read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def run(words: list[str], env: dict[str, str]) -> int:
    return subprocess.run(words, env=env, capture_output=True, check=False, timeout=20).returncode


async def eventually_holds(path: Path, wanted: str) -> None:
    """`wanted` is a text, or a pattern with a backslash."""
    pattern = re.compile(wanted if "\\" in wanted else re.escape(wanted))

    async def holds() -> bool:
        text = read(path)
        return text is not None and pattern.search(text) is not None

    await eventually(holds, within_s=20)


def pixels_of(picture: DesktopPicture) -> tuple[int, int, bytes]:
    """Width, height and colours of a PNG as the agent writes them: one chunk, no filter."""
    image = picture.image
    width, height = struct.unpack_from(">II", image, 16)
    (length,) = struct.unpack_from(">I", image, 33)
    rows = zlib.decompress(image[41 : 41 + length])
    step = width * 3 + 1
    assert len(rows) == step * height
    return width, height, b"".join(rows[at + 1 : at + step] for at in range(0, len(rows), step))


async def test_text_is_typed_into_a_program_with_every_character(bench: Workbench) -> None:
    written = Path(bench.path("typed"))
    await open_terminal(bench, f"exec cat > {written}")
    text = "Hello, World! ~`@#$%^&*()_+| äöß € 你好 Ω"
    await act(
        bench,
        InputAction(kind="type", text=text),
        InputAction(kind="key", keys=("Return",)),
        InputAction(kind="key", keys=("shift", "a")),
        InputAction(kind="key", keys=("b",), count=3),
        name="type",
    )
    await eventually_holds(written, f"{text}\nAbbb")


async def test_clicks_and_scrolls_reach_the_window_under_the_pointer(bench: Workbench) -> None:
    written = Path(bench.path("clicks"))
    await open_terminal(bench, REPORTS_MOUSE.format(written))
    await act(
        bench,
        InputAction(kind="click", points=((500, 400),), button="right", count=2),
        InputAction(kind="scroll", points=((300, 250),), down="2"),
        InputAction(kind="drag", points=((300, 250), (500, 400))),
        InputAction(kind="key", keys=("x",)),
        name="clicks",
    )
    await eventually_holds(written, "x")
    kinds = [each.partition(";")[0] for each in (read(written) or "").split("^[[<")[1:]]
    # The first left click gave the window the keyboard; 2 is right, 65 the wheel.
    assert kinds[-8:] == ["2", "2", "2", "2", "65", "65", "0", "0"]
    picture = await bench.conn.screenshot(SCREEN)
    assert (picture.x, picture.y) == (500, 400)


async def test_a_failed_action_releases_what_is_held_and_tells_how_far_it_came(
    bench: Workbench,
) -> None:
    written = Path(bench.path("held"))
    await open_terminal(bench, REPORTS_MOUSE.format(written))
    outside = InputAction(kind="move", points=((SCREEN.width, 10),))
    held = InputAction(kind="button", points=((500, 400),), button="right", is_down=True)
    outcome = await bench.conn.act([held, outside, held], key=bench.key("held"))
    assert outcome.done == 1
    assert "outside of the screen" in outcome.error
    await eventually_holds(written, r"\[<2;\d+;\d+M.*\[<2;\d+;\d+m")

    for wrong in (
        InputAction(kind="key", keys=("nosuch",)),
        InputAction(kind="dance"),
        InputAction(kind="drag", points=((1, 1),)),
        InputAction(kind="wait", ms=61_000),
        InputAction(kind="type", text="x" * 20_001),
    ):
        refused = await raised(
            AgentRefused, bench.conn.act([wrong], key=bench.key(f"wrong {wrong.kind}"))
        )
        assert refused.status == 400


async def test_a_repeated_key_acts_once(bench: Workbench) -> None:
    written = Path(bench.path("once"))
    await open_terminal(bench, f"exec cat > {written}")
    for _ in range(3):
        await act(bench, InputAction(kind="type", text="1"), name="same")
    await act(bench, InputAction(kind="type", text="2"), name="other")
    await eventually_holds(written, "12")
    assert read(written) == "12"


async def test_screenshots_are_scaled_and_zoomed_by_the_display(bench: Workbench) -> None:
    whole = await bench.conn.screenshot(SCREEN)
    half = await bench.conn.screenshot(Screen(800, 450))
    third = await bench.conn.screenshot(Screen(400, 225))
    zoomed = await bench.conn.screenshot(SCREEN, PictureRegion(800, 0, 400, 225))
    assert [pixels_of(each)[:2] for each in (whole, half, third, zoomed)] == [
        (1600, 900),
        (800, 450),
        (400, 225),
        (1600, 900),
    ]
    refused = await raised(
        AgentRefused, bench.conn.screenshot(SCREEN, PictureRegion(1500, 0, 400, 225))
    )
    assert refused.status == 400


async def test_a_killed_x_server_is_started_again(bench: Workbench) -> None:
    before = await bench.conn.screenshot(SCREEN)
    os.kill(find_server(DesktopPlace.of(str(bench.process.run_dir))), signal.SIGKILL)
    after = await bench.conn.screenshot(SCREEN)
    assert after.starts == before.starts + 1
    await open_terminal(bench, f"exec cat > {bench.path('again')}", "again")
    await act(bench, InputAction(kind="type", text="alive"), name="alive")
    await eventually_holds(Path(bench.path("again")), "alive")


async def test_a_long_action_ends_when_its_x_server_is_killed(bench: Workbench) -> None:
    """Takes a second: the agent asks the X server whether it lives twice a second."""
    written = Path(bench.path("held"))
    await open_terminal(bench, f"exec cat > {written}", "held")
    hold = InputAction(kind="hold", keys=("Return",), ms=50_000)
    async with asyncio.timeout(25), asyncio.TaskGroup() as tasks:
        acting = bench.conn.act([hold], key=bench.key("hold"))
        held = tasks.create_task(acting, name="hold")

        async def is_entered() -> bool:
            return bool(read(written))

        await eventually(is_entered, within_s=20)
        os.kill(find_server(DesktopPlace.of(str(bench.process.run_dir))), signal.SIGKILL)
    outcome = held.result()
    assert outcome.done == 0
    assert "desktop failed" in outcome.error


async def test_a_killed_agent_finds_its_desktop_again_and_says_what_it_does_not_know(
    tmp_path: Path,
) -> None:
    """Starts an X server of its own: the agent is killed."""
    process = AgentProcess(tmp_path, desktop=(640, 480))
    process.start()
    screen = Screen(640, 480)
    try:
        async with workbench(process, process.home) as bench:
            await bench.conn.screenshot(screen)
            place = DesktopPlace.of(str(process.run_dir))
            server = find_server(place)
            waits = [InputAction(kind="wait", ms=50_000)]
            async with asyncio.TaskGroup() as tasks:
                acting = raised(AgentUnreachable, bench.conn.act(waits, key=bench.key("long")))
                tasks.create_task(acting, name="act")
                await eventually_holds(process.run_dir / "once.jsonl", "desktop act")
                process.end(signal.SIGKILL)
        process.start()
        async with workbench(process, process.home) as again:
            again.chat_id = bench.chat_id
            conn = again.on_behalf()
            unknown = await raised(AgentRefused, conn.act(waits, key=bench.key("long")))
            assert unknown.code == "outcome_unknown"
            assert (await conn.screenshot(screen)).image
            assert find_server(place) == server
    finally:
        process.end(signal.SIGTERM)
    assert find_server(place) == 0


async def _first(pieces: AsyncGenerator[bytes]) -> bytes:
    return await anext(pieces)


async def test_viewers_that_leave_while_the_desktop_starts_take_no_place(tmp_path: Path) -> None:
    """Starts an X server of its own: the viewers come before it."""
    process = AgentProcess(tmp_path, desktop=(640, 480))
    process.start()
    try:
        async with workbench(process, process.home) as bench:
            for number in range(MAX_VNC_STREAMS + 4):
                viewer = AgentDesktop(bench.connected, f"person {number}", lambda: None)
                async with asyncio.TaskGroup() as tasks:
                    watching = viewer.watch(f"early{number}")
                    leaving = tasks.create_task(_first(watching), name="watch")
                    for _ in range(2):
                        await bench.conn.desktop()  # by then the viewer's request has been sent
                    leaving.cancel()
            await bench.conn.screenshot(Screen(640, 480))
            late = AgentDesktop(bench.connected, "late", lambda: None)
            async with aclosing(late.watch("late")) as pieces:
                assert (await anext(pieces)).startswith(b"RFB")
    finally:
        process.end(signal.SIGTERM)


@pytest.mark.skipif(not shutil.which("ffprobe"), reason="needs Debian's package ffmpeg")
async def test_a_recording_goes_on_although_its_x_server_and_its_agent_are_killed(
    tmp_path: Path,
) -> None:
    """Starts X servers of its own, which are killed. Records for some seconds."""
    process = AgentProcess(tmp_path, desktop=(640, 480))
    process.start()
    screen, name = Screen(640, 480), "00000000-0000-4000-8000-00000000000f"
    try:
        async with workbench(process, process.home) as bench:
            assert not (await bench.conn.stop_recording("none")).video
            place = Path(DesktopPlace.of(str(process.run_dir)).directory)
            server = DesktopPlace.of(str(process.run_dir))

            async def has_pictures(number: int) -> bool:
                part = place / f"recording-{name}.part{number}.mp4"
                return part.exists() and part.stat().st_size > 2000

            for _ in range(2):
                assert await bench.conn.start_recording(name) == ""  # the second goes on with it
                begun = (place / f"recording-{name}.part1.mp4").stat()
                assert begun.st_size  # the first picture has been taken: no action is missed
            await bench.conn.act(
                [InputAction(kind="move", points=((9, 9),))], key=bench.key("move")
            )
            await eventually(lambda: has_pictures(1), within_s=40)
            os.kill(find_server(server), signal.SIGKILL)
            assert (await bench.conn.screenshot(screen)).image
            await eventually(lambda: has_pictures(2), within_s=40)
            process.end(signal.SIGKILL)
        process.start()
        async with workbench(process, process.home) as again:
            found = await again.conn.stop_recording(name)
            assert (found.video, found.poster) == (True, True)
            assert (await again.conn.stop_recording(name)) == found
            video, poster = tmp_path / "video.mp4", tmp_path / "poster.jpg"
            for file in (video, poster):
                data, kind = b"", "mp4" if file is video else "jpg"
                while piece := await again.conn.read_recording(name, kind, len(data)):
                    data += piece
                file.write_bytes(data)
                assert run(["ffprobe", "-v", "error", str(file)], {"PATH": os.defpath}) == 0
            left = [each for each in os.listdir(place) if each.startswith("recording-")]
            assert sorted(left) == [f"recording-{name}.{end}" for end in ("jpg", "list", "mp4")]
            refused = await raised(AgentRefused, again.conn.read_recording("none", "mp4", 0))
            assert refused.code == "no_recording"
            assert (await again.conn.screenshot(screen)).image
    finally:
        process.end(signal.SIGTERM)


async def test_a_workspace_without_a_desktop_says_so(tmp_path: Path) -> None:
    process = AgentProcess(tmp_path)
    process.start()
    try:
        async with workbench(process, process.home) as bench:
            assert not (await bench.conn.desktop()).enabled
            refused = await raised(AgentRefused, bench.conn.screenshot(SCREEN))
            assert refused.code == "no_desktop"
    finally:
        process.end(signal.SIGKILL)


async def test_other_accounts_cannot_use_the_display(bench: Workbench) -> None:
    await bench.conn.screenshot(SCREEN)
    place = DesktopPlace.of(str(bench.process.run_dir))
    env = {"DISPLAY": f":{place.number}", "PATH": os.defpath, "HOME": "/nonexistent"}
    assert run(["xterm", "-e", "true"], env) != 0
    assert os.stat(place.vnc_socket).st_mode & 0o077 == 0
    assert os.stat(place.directory).st_mode & 0o077 == 0
