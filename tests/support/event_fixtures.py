"""Recorded logs as files of `tests/data/events`: without what differs from run to run."""

import re
from pathlib import Path
from typing import Final

import msgspec

from tests.support.event_recorder import RecordedChat

DIRECTORY: Final = Path(__file__).parents[1] / "data" / "events"
_UUID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TIME: Final = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_CURSOR: Final = re.compile(r'"(\d+)-([0-9a-f]{6,16})"')


def save(recorded: RecordedChat) -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    text = _normal(msgspec.json.encode(recorded).decode())
    lines = msgspec.json.format(text, indent=1)
    (DIRECTORY / f"{recorded.scene}.json").write_text(lines + "\n")


def load(path: Path) -> RecordedChat:
    return msgspec.json.decode(path.read_bytes(), type=RecordedChat)


def files() -> list[Path]:
    return sorted(DIRECTORY.glob("*.json"))


def _normal(text: str) -> str:
    """Ids by their order of appearance, times by their order in time, a second apart."""
    ids = {found: number for number, found in enumerate(dict.fromkeys(_UUID.findall(text)), 1)}
    changes = dict.fromkeys(change for _, change in _CURSOR.findall(text))
    numbers = {change: number for number, change in enumerate(changes, 1)}
    times = {found: number for number, found in enumerate(sorted(set(_TIME.findall(text))))}
    text = _UUID.sub(lambda found: f"00000000-0000-4000-8000-{ids[found[0]]:012x}", text)
    text = _CURSOR.sub(lambda found: f'"{found[1]}-{numbers[found[2]]:x}"', text)
    return _TIME.sub(
        lambda found: f"2026-01-01T{times[found[0]] // 60:02d}:{times[found[0]] % 60:02d}:00Z", text
    )
