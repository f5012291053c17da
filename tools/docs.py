"""Write the generated tables of documents in docs/, between their markers, and the index of tested
behaviours.

`python -m tools.docs` rewrites them; with `--check` it only reports which would change.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import get_args

from chatd.api.error_codes import ERROR_CODES
from chatd.domain.chat.row import public_status, state_of
from chatd.domain.chat.states import TRANSITIONS, State, Status, Transition, TransitionSide
from chatd.domain.errors import InvariantBroken
from tools import (
    cell_statements,
    command_tables,
    limits_table,
    log_table,
    settings_table,
    terminal_tables,
)
from tools.behaviour_index import INDEX, write_index

ROOT = Path(__file__).parent.parent
KERNEL = ROOT / "docs" / "kernel.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
SOURCE = ROOT / "src" / "chatd"
SETTINGS = ROOT / "docs" / "settings.md"
LOG_EVENTS = ROOT / "docs" / "log-events.md"
LIMITS = ROOT / "docs" / "limits.md"
SCALING = ROOT / "docs" / "scaling.md"
API = ROOT / "docs" / "api.md"
ERRORS = ROOT / "docs" / "errors.md"
COMMANDS = ROOT / "docs" / "commands.md"
EVENTS = ROOT / "docs" / "events.md"
TERMINAL = ROOT / "docs" / "terminal.md"
SCHEMA = ROOT / "src" / "chatd" / "store" / "migrations" / "0001_schema.sql"


def states() -> Iterator[str]:
    yield "| state | status | queue | owner | shown as |"
    yield "|---|---|---|---|---|"
    for state, rows in _rows_by_state().items():
        status, queued, archived, _ = rows[0]
        owners = {owned for *_, owned in rows}
        owner = "either" if len(owners) == 2 else ("a worker" if True in owners else "none")
        queue = "not empty" if queued else "empty"
        shown = public_status(status, archived=archived, owned=True in owners)
        yield f"| {state} | {status} | {queue} | {owner} | {shown} |"


def _rows_by_state() -> dict[State, list[tuple[Status, bool, bool, bool]]]:
    found: dict[State, list[tuple[Status, bool, bool, bool]]] = {state: [] for state in State}
    statuses: tuple[Status, ...] = get_args(Status)
    no_yes = (False, True)
    for status, queued, archived, owned in product(statuses, no_yes, no_yes, no_yes):
        try:
            state = state_of(status, queued=queued, archived=archived, owned=owned)
        except InvariantBroken:
            continue
        found[state].append((status, queued, archived, owned))
    return found


def transitions() -> Iterator[str]:
    columns = [state for state in State if not state.startswith("X")]
    yield "| |" + "".join(f" {state} |" for state in columns)
    yield "|---|" + "---|" * len(columns)
    for side in TransitionSide:
        yield f"| *{side.value}* |" + " |" * len(columns)
        for move in Transition:
            if move.side is side and move is not Transition.UNARCHIVE:
                yield f"| {move} |" + "".join(f" {_cell(move, state)} |" for state in columns)


def _cell(move: Transition, state: State) -> str:
    targets = TRANSITIONS[move].get(state)
    if targets is None:
        return ""
    return _names(targets) if targets else "="


def _names(targets: frozenset[State]) -> str:
    """In the table's order; a letter alone stands for both, with and without a queue."""
    names: list[str] = []
    for target in State:
        letter = target.rstrip("01")
        both = {f"{letter}0", f"{letter}1"} <= targets
        name = letter if both else str(target)
        if target in targets and name not in names:
            names.append(name)
    return " ".join(names)


def unarchiving() -> Iterator[str]:
    cells = TRANSITIONS[Transition.UNARCHIVE].items()
    pairs = ", ".join(f"{state} to {' '.join(sorted(targets))}" for state, targets in cells)
    yield f"An archived chat refuses every transition but `unarchive`: {pairs}."


def schema() -> Iterator[str]:
    """The sections of the schema, with the summaries of its head, and the tables of the later
    migrations. Raises KeyError for a section that the head does not name."""
    head, *sections = re.split(r"^-- (\w[\w, ]*?) -{8,}\n", SCHEMA.read_text(), flags=re.MULTILINE)
    summaries = dict(re.findall(r"^--   (\w[\w, ]*?)  +(.+)$", head, flags=re.MULTILINE))
    yield "| part | what it has | tables |"
    yield "|---|---|---|"
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        tables = re.findall(r"^CREATE TABLE (\w+) ", text, flags=re.MULTILINE)
        yield f"| {name} | {summaries[name]} | {' '.join(f'`{table}`' for table in tables)} |"
    for file in sorted(SCHEMA.parent.glob("*.sql"))[1:]:
        text = re.sub(r"^-- .* -{8,}\n+", "", file.read_text())
        tables = re.findall(r"^CREATE (?:UNLOGGED )?TABLE (\w+) ", text, flags=re.MULTILINE)
        if tables:
            comment = " ".join(re.findall(r"\A(?:-- .*\n)+", text)[0].replace("-- ", "").split())
            summary = re.split(r"[.:] ", comment)[0].rstrip(".")
            shown = " ".join(f"`{table}`" for table in tables)
            yield f"| [{file.stem[:4]}](../{file.relative_to(ROOT)}) | {summary} | {shown} |"


def error_codes() -> Iterator[str]:
    yield "| status | code | meaning | what to do |"
    yield "|---|---|---|---|"
    for code, error in sorted(ERROR_CODES.items(), key=lambda item: item[1].status):
        yield f"| {error.status} | `{code}` | {error.meaning} | {error.remedy} |"


def packages() -> Iterator[str]:
    """The packages in the order of the layers, with their size in hundreds of lines."""
    yield "| package | files | lines | |"
    yield "|---|---|---|---|"
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    names = [name for layer in layers[0]["layers"] for name in layer.split(" : ")]
    total_files = total_lines = 0
    for name in names:
        files = sorted((SOURCE / name).rglob("*.py")) or [SOURCE / f"{name}.py"]
        lines = sum(len(file.read_text().splitlines()) for file in files)
        first = ast.get_docstring(ast.parse(files[0].read_text())) or ""
        shown = f"{name}/" if (SOURCE / name).is_dir() else f"{name}.py"
        text = " ".join(first.partition("\n\n")[0].split())
        yield f"| `{shown}` | {len(files)} | {_hundreds(lines)} | {text} |"
        total_files, total_lines = total_files + len(files), total_lines + lines
    yield f"| all | {total_files} | {_hundreds(total_lines)} | |"


def _hundreds(lines: int) -> str:
    return f"{round(lines, -2):,}" if lines >= 100 else "<100"


Section = Callable[[], Iterator[str]]
SECTIONS: dict[Path, dict[str, Section]] = {
    ARCHITECTURE: {"packages": packages},
    KERNEL: {
        "states": states,
        "transitions": transitions,
        "unarchiving": unarchiving,
        "schema": schema,
    },
    ERRORS: {"error codes": error_codes},
    COMMANDS: {"commands": command_tables.commands},
    EVENTS: {"events": command_tables.event_fields},
    TERMINAL: {"keys": terminal_tables.keys, "commands": terminal_tables.commands},
    SETTINGS: {"settings": settings_table.rows},
    LOG_EVENTS: {"events": log_table.rows},
    LIMITS: {"limits": limits_table.rows},
    SCALING: {"statements": cell_statements.rows},
}


def render(document: str, sections: dict[str, Section]) -> str:
    """The document with the body of every section replaced."""
    for name, lines in sections.items():
        begin, end = f"<!-- {name}: made by tools/docs.py -->\n", f"<!-- end of {name} -->\n"
        head, found, rest = document.partition(begin)
        _, closed, tail = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"The section {name!r} has lost its markers.")
        body = "".join(f"{line}\n" for line in lines())
        document = f"{head}{begin}{body}{end}{tail}"
    return document


def main(*, check: bool) -> int:
    texts = {path: render(path.read_text(), sections) for path, sections in SECTIONS.items()}
    texts[INDEX] = "".join(f"{line}\n" for line in write_index())
    stale = {
        path: text for path, text in texts.items() if not path.exists() or path.read_text() != text
    }
    for path, text in stale.items():
        if check:
            print(f"{path.name} is not current: run make docs.", file=sys.stderr)
        else:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
