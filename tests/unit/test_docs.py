"""The generated tables of the documents equal the code; links and commands of all pages work."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from typer._click.exceptions import BadParameter, MissingParameter, UsageError

from chatd.cli.main import app
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


# The pages as a site, and their examples

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
READ_HERE = [
    ROOT / f"{name}.md"
    for name in ("README", "CONTRIBUTING", "ARCHITECTURE", "CHANGELOG", "SECURITY")
]
REFERENCE = {"benchmarks.md", "commands.md", "errors.md", "limits.md", "settings.md"}
MAX_PAGE_BYTES = 25_000
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]+)?\)")
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
VARIABLES = {
    *("CHATD", "TOKEN", "CHAT", "CURSOR", "WORKSPACE"),  # of examples over the API
    *("HOME", "EDITOR", "VISUAL", "CI_JOB_ID", "ADA", "TEAM", "X"),
}


@cache
def anchors(page: Path) -> set[str]:
    """As GitHub names the headings."""
    text = FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def is_broken(page: Path, path: str, anchor: str) -> bool:
    target = (page.parent / path).resolve() if path else page
    has_anchors = anchor and target.suffix == ".md"
    return not target.exists() or bool(has_anchors and anchor[1:] not in anchors(target))


def test_every_link_leads_somewhere() -> None:
    broken = [
        f"{page.name}: {path}{anchor}"
        for page in (*PAGES, *READ_HERE)
        for path, anchor in LINK.findall(FENCE.sub("", page.read_text()))
        if is_broken(page, path, anchor)
    ]
    assert not broken
    assert is_broken(PAGES[0], "nowhere.md", "")
    assert is_broken(PAGES[0], "api.md", "#nowhere")


def test_a_page_is_short_enough_to_be_read() -> None:
    """A longer one is split by task; the changelog is folded into what a version has."""
    pages = [page for page in (*PAGES, ROOT / "CHANGELOG.md") if page.name not in REFERENCE]
    sizes = {page.name: page.stat().st_size for page in pages}
    assert not {name: size for name, size in sizes.items() if size > MAX_PAGE_BYTES}


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"^ +- (?:.*: )?([\w-]+\.md)$", config, re.MULTILINE)
    assert len(listed) == len(set(listed))
    left_out = {"walks.md"}
    assert set(listed) - {"changelog.md"} == {page.name for page in PAGES} - left_out


def test_examples_spell_variables_alike() -> None:
    for page in (*PAGES, ROOT / "README.md"):
        for language, text in FENCE.findall(page.read_text()):
            if language in ("sh", "console"):
                named = set(re.findall(r"\$\{?([A-Z][A-Z_]+)", text))
                own = set(re.findall(r"\b([A-Z][A-Z_]*)=", text))
                assert named <= VARIABLES | own, f"{page.name}: {named - VARIABLES - own}"


def examples(page: Path) -> list[str]:
    """Commands of chatd in blocks, one line each, without what the shell reads itself."""
    found: list[str] = []
    for language, text in FENCE.findall(page.read_text()):
        if language not in ("sh", "console"):
            continue
        for line in text.replace("\\\n", " ").splitlines():
            line = re.sub(r"^\s*(\$ )?((sudo|exec) |[A-Z_]+=\S+ )*", "", line)  # noqa: PLW2901
            if re.match(r"(\S*/bin/)?chatd [a-z-]", line) and not line.endswith("."):
                found.append(re.split(r" +#| \|\|? | [<>] | \[| && |;| 2>", line)[0])
    return found


def spoken(page: Path) -> list[str]:
    """Commands of chatd in the text."""
    prose = FENCE.sub("", page.read_text())
    return [each.partition(" [")[0] for each in re.findall(r"`(chatd (?!on )[a-z][^`|]*)`", prose)]


@cache
def root_command() -> Any:
    return typer.main.get_command(app)


def parse(line: str, *, whole: bool) -> None:
    """Raises UsageError for a command or an option that does not exist; `whole`: also for a missing
    argument."""
    words = shlex.split(line.replace("$(", "(").replace("'", '"') if line.count("'") % 2 else line)
    command, rest = root_command(), words[1:]
    while getattr(command, "commands", None):
        if not rest and (not whole or command.invoke_without_command):
            return
        found = command.commands.get(rest[0] if rest else "")
        if found is None and not rest[0].startswith("-"):
            raise UsageError(f"there is no command {rest[0]}")
        if found is None:
            return
        command, rest = found, rest[1:]
    if "..." in rest:
        return
    try:
        command.make_context(line, rest)
    except typer.Exit:
        pass
    except (BadParameter, MissingParameter) as error:
        if whole and isinstance(error, MissingParameter):
            raise


def complaint(line: str, *, whole: bool) -> str:
    try:
        parse(line, whole=whole)
    except (UsageError, ValueError) as error:
        return str(error)
    return ""


def test_every_command_of_the_pages_exists() -> None:
    wrong: list[str] = []
    for page in (*PAGES, ROOT / "README.md"):
        lines = [(line, True) for line in examples(page)]
        lines += [(line, False) for line in spoken(page)]
        said = ((line, complaint(line, whole=whole)) for line, whole in lines)
        wrong += [f"{page.name}: {line}: {text}" for line, text in said if text]
    assert not wrong


@pytest.mark.parametrize(
    "line", ["chatd admin runers list", "chatd backup --encypt", "chatd restore"]
)
def test_a_wrong_command_is_noticed(line: str) -> None:
    assert complaint(line, whole=True)
