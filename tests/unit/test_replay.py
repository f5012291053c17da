"""Promise P8: the stream is a function of the database.

Viewers come, go and come back at random versions while a chat lives its random life. Whenever
one has been served, its state is what a fresh read shows. All events pass through JSON.
"""

from random import Random

import msgspec
import pytest

from chatd.domain.chat.diff import ChatSnapshot, ViewerPosition, diff, needs_full_read
from chatd.domain.chat.events import DurableEvent
from tests.support.client_state import ClientState
from tests.support.walk import Walk

WIRE = msgspec.json.Decoder(tuple[DurableEvent, ...])


class Viewer:
    """`seen` is what the server keeps of a connected viewer, None if there is none."""

    def __init__(self) -> None:
        self.state = ClientState()
        self.seen: ViewerPosition | None = None

    def serve(self, snapshot: ChatSnapshot) -> None:
        """Live: one more group."""
        self.state = self.state.apply(self._events(snapshot))
        self.seen = ViewerPosition.of(snapshot.chat)

    def serve_and_cut(self, snapshot: ChatSnapshot, draw: Random) -> None:
        """The connection breaks somewhere within the group."""
        events = self._events(snapshot)
        self.state = self.state.apply(events[: draw.randrange(len(events) + 1)])
        self.seen = None

    def resume(self) -> None:
        self.seen = ViewerPosition(version=self.state.version)

    def _events(self, snapshot: ChatSnapshot) -> tuple[DurableEvent, ...]:
        return WIRE.decode(msgspec.json.encode(diff(self.seen, snapshot)))


def read_for(viewer: Viewer, walk: Walk) -> ChatSnapshot:
    version = viewer.seen.version if viewer.seen is not None else 0
    snapshot = walk.snapshot(since=version)
    return walk.snapshot() if needs_full_read(version, snapshot) else snapshot


def shows_the_truth(viewer: Viewer, walk: Walk) -> bool:
    return viewer.state == ClientState.of(walk.snapshot())


@pytest.mark.promise("P8")
@pytest.mark.parametrize("seed", range(10))
def test_a_viewer_that_comes_back_anywhere_ends_with_what_a_fresh_read_shows(seed: int) -> None:
    walk, draw = Walk(seed), Random(-seed - 1)
    viewers = [Viewer() for _ in range(4)]
    for _ in range(120):
        walk.step()
        for viewer in viewers:
            match draw.randrange(6):
                case 0 if viewer.seen is None:
                    viewer.resume()
                    viewer.serve(read_for(viewer, walk))
                case 1 | 2 if viewer.seen is not None:
                    viewer.serve(read_for(viewer, walk))
                case 3 if viewer.seen is not None:
                    viewer.serve_and_cut(read_for(viewer, walk), draw)
                    continue
                case _:
                    continue
            assert shows_the_truth(viewer, walk)


@pytest.mark.parametrize("seed", range(10))
def test_a_viewer_that_is_told_of_every_change_as_it_is_written_needs_no_read(seed: int) -> None:
    walk, viewer = Walk(seed), Viewer()
    viewer.serve(walk.snapshot())
    for _ in range(120):
        walk.step()
        viewer.serve(walk.written())
        assert shows_the_truth(viewer, walk)


@pytest.mark.parametrize("seed", range(10))
def test_viewers_of_a_database_that_lost_changes_are_told_all_anew(seed: int) -> None:
    walk, draw = Walk(seed), Random(-seed - 1)
    for _ in range(draw.randrange(60)):
        walk.step()
    saved = walk.saved()
    before, ahead = Viewer(), Viewer()
    before.serve(walk.snapshot())
    for _ in range(draw.randrange(1, 20)):
        walk.step()
    ahead.serve(walk.snapshot())
    walk.lose_all_since(saved)
    for viewer in (before, ahead):
        viewer.resume()
        viewer.serve(read_for(viewer, walk))
        assert shows_the_truth(viewer, walk)


@pytest.mark.parametrize("seed", range(4))
def test_one_read_serves_viewers_at_different_versions(seed: int) -> None:
    walk = Walk(seed)
    viewers: list[Viewer] = []
    for _ in range(30):
        viewers.append(Viewer())
        viewers[-1].serve(walk.snapshot())
        walk.step()
    for viewer in viewers:
        viewer.serve(walk.snapshot(since=1))
        assert shows_the_truth(viewer, walk)
