"""The generated tables of the documents equal the code."""

import re
from pathlib import Path

import pytest

from chatd.domain.chat.states import State, Transition
from tests.promises import PROMISES
from tools.docs import KERNEL, ROOT, SECTIONS, SOURCE, render, states, transitions

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
MAP = ARCHITECTURE.partition("## Where to go")[2]
WALKS = ROOT / "docs" / "walks.md"
TEXT = KERNEL.read_text()


@pytest.mark.parametrize("document", SECTIONS, ids=lambda path: path.name)
def test_the_tables_are_those_of_the_code(document: Path) -> None:
    text = document.read_text()
    assert render(text, SECTIONS[document]) == text, "run make docs"


def test_every_state_and_every_transition_is_in_the_tables() -> None:
    assert len(list(states())) == 2 + len(State)
    listed = {line.split("|")[1].strip() for line in transitions()}
    assert listed >= set(Transition) - {Transition.UNARCHIVE}


def test_a_table_that_has_drifted_is_noticed() -> None:
    drifted = TEXT.replace("| W | waiting |", "| W | dreaming |")
    assert drifted != TEXT
    assert render(drifted, SECTIONS[KERNEL]) == TEXT


@pytest.mark.parametrize("name", SECTIONS[KERNEL])
def test_a_lost_marker_is_noticed(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        render(TEXT.replace(f"<!-- end of {name} -->\n", ""), SECTIONS[KERNEL])


def test_every_promise_is_named() -> None:
    assert all(f"| {promise.id} |" in ARCHITECTURE for promise in PROMISES)


def test_the_page_stays_short() -> None:
    assert len(ARCHITECTURE.encode()) <= 12_000


@pytest.mark.parametrize("place", sorted(set(re.findall(r"`([\w/]+(?:\.py|/))", MAP))))
def test_every_place_on_the_map_exists(place: str) -> None:
    """A bare file name is in one of the directories that its row names."""
    found = [ROOT / place, SOURCE / place]
    if "/" not in place:
        found = list(SOURCE.rglob(place))
    assert any(path.exists() for path in found), place


def test_every_place_of_the_walks_exists() -> None:
    """The order comes from a trace; a place that was renamed since is noticed here."""
    package = ""
    for line in WALKS.read_text().splitlines():
        match = re.fullmatch(r"(\S*)\s+([\w/]+\.py): ([\w.]+)", line)
        if match is None:
            continue
        package = match[1] or package
        file = SOURCE / ("" if package == "(top)" else package) / match[2]
        assert file.exists(), f"{line}: run python -m tools.turn_trace --write"
        name = match[3].rpartition(".")[2]
        assert re.search(rf"\bdef {name}\b", file.read_text()), line
