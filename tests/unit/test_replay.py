"""Promise P8: the stream is a function of the database.

Viewers connect, disconnect and resume at random versions while a chat changes at random. After
each group a viewer's state equals a fresh read. All events pass through JSON.
"""

from random import Random

import msgspec
import pytest

from chatd.domain.chat_views.diff import ChatSnapshot, ViewerPosition, diff, needs_full_read
from chatd.domain.chat_views.events import DurableEvent
from tests.support.client_state import ClientState
from tests.support.domain.random_chat_run import RandomChatRun

WIRE = msgspec.json.Decoder(tuple[DurableEvent, ...])


class Viewer:
    """`position` is the server's state of a connected viewer; None without a connection."""

    def __init__(self) -> None:
        self.state = ClientState()
        self.position: ViewerPosition | None = None

    def serve(self, snapshot: ChatSnapshot) -> None:
        self.state = self.state.apply(self._events(snapshot))
        self.position = ViewerPosition.of(snapshot.chat)

    def serve_and_break(self, snapshot: ChatSnapshot, draw: Random) -> None:
        """The connection breaks within the group."""
        events = self._events(snapshot)
        self.state = self.state.apply(events[: draw.randrange(len(events) + 1)])
        self.position = None

    def resume(self) -> None:
        self.position = ViewerPosition(version=self.state.version)

    def _events(self, snapshot: ChatSnapshot) -> tuple[DurableEvent, ...]:
        return WIRE.decode(msgspec.json.encode(diff(self.position, snapshot)))


def read_for(viewer: Viewer, walk: RandomChatRun) -> ChatSnapshot:
    version = viewer.position.version if viewer.position is not None else 0
    snapshot = walk.snapshot(since=version)
    return walk.snapshot() if needs_full_read(version, snapshot) else snapshot


def is_current(viewer: Viewer, walk: RandomChatRun) -> bool:
    return viewer.state == ClientState.of(walk.snapshot())


@pytest.mark.promise("P8")
@pytest.mark.parametrize("seed", range(10))
def test_a_viewer_that_resumes_at_any_version_ends_in_the_state_of_a_fresh_read(seed: int) -> None:
    walk, draw = RandomChatRun(seed), Random(-seed - 1)
    viewers = [Viewer() for _ in range(4)]
    for _ in range(120):
        walk.step()
        for viewer in viewers:
            match draw.randrange(6):
                case 0 if viewer.position is None:
                    viewer.resume()
                    viewer.serve(read_for(viewer, walk))
                case 1 | 2 if viewer.position is not None:
                    viewer.serve(read_for(viewer, walk))
                case 3 if viewer.position is not None:
                    viewer.serve_and_break(read_for(viewer, walk), draw)
                    continue
                case _:
                    continue
            assert is_current(viewer, walk)


@pytest.mark.parametrize("seed", range(10))
def test_a_viewer_that_gets_every_change_as_written_needs_no_read(seed: int) -> None:
    walk, viewer = RandomChatRun(seed), Viewer()
    viewer.serve(walk.snapshot())
    for _ in range(120):
        walk.step()
        viewer.serve(walk.written())
        assert is_current(viewer, walk)


@pytest.mark.parametrize("seed", range(10))
def test_viewers_of_a_database_that_lost_changes_get_a_full_reset(seed: int) -> None:
    walk, draw = RandomChatRun(seed), Random(-seed - 1)
    for _ in range(draw.randrange(60)):
        walk.step()
    saved = walk.copy_rows()
    before, ahead = Viewer(), Viewer()
    before.serve(walk.snapshot())
    for _ in range(draw.randrange(1, 20)):
        walk.step()
    ahead.serve(walk.snapshot())
    walk.restore(saved)
    for viewer in (before, ahead):
        viewer.resume()
        viewer.serve(read_for(viewer, walk))
        assert is_current(viewer, walk)


@pytest.mark.parametrize("seed", range(4))
def test_one_read_serves_viewers_at_different_versions(seed: int) -> None:
    walk = RandomChatRun(seed)
    viewers: list[Viewer] = []
    for _ in range(30):
        viewers.append(Viewer())
        viewers[-1].serve(walk.snapshot())
        walk.step()
    for viewer in viewers:
        viewer.serve(walk.snapshot(since=1))
        assert is_current(viewer, walk)
