"""The generated tables of the documents equal the code."""

from pathlib import Path

import pytest

from chatd.domain.chat.states import State, Transition
from tests.promises import PROMISES
from tools.docs import KERNEL, ROOT, SECTIONS, render, states, transitions

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
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
    assert len(ARCHITECTURE.encode()) <= 24_000
