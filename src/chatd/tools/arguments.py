"""Reading the arguments of a call, with complaints that a model can act on.

That they are one JSON object without doubled keys was seen to before a tool is asked. A field
that is not known is left alone: models invent some, and a call that says enough is a good call.
"""

import re
from collections.abc import Mapping
from typing import Final, cast

from msgspec import Raw

from chatd.domain.errors import ToolError
from chatd.domain.heal import parse

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Arguments:
    """`place` is where in the call these are, such as `files[1].`, for complaints."""

    def __init__(self, values: Mapping[str, object], place: str = "") -> None:
        self._values = values
        self._place = place

    @classmethod
    def of(cls, args: Raw) -> "Arguments":
        value = parse(args)
        return cls(cast("Mapping[str, object]", value) if isinstance(value, dict) else {})

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, *, why: str) -> str:
        """Must be there and not be blank; `why` says what belongs there."""
        found = self.optional_text(name)
        if found is None or not found.strip():
            raise self.wrong(name, f"is required: {why}")
        return found

    def optional_text(self, name: str) -> str | None:
        found = self._values.get(name)
        if found is None or isinstance(found, str):
            return found
        raise self.wrong(name, f"must be a string, not {_kind(found)}.")

    def whole(self, name: str, default: int, *, least: int) -> int:
        found = self._values.get(name)
        if found is None:
            return default
        if isinstance(found, str) and re.fullmatch(r"-?\d{1,18}", found.strip()):
            found = int(found)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self.wrong(name, f"must be a whole number, not {_kind(found)}.")
        if found < least:
            raise self.wrong(name, f"must be at least {least}, not {found}.")
        return found

    def flag(self, name: str) -> bool:
        found = self._values.get(name)
        if found is None or isinstance(found, bool):
            return bool(found)
        if isinstance(found, str) and found.strip().lower() in ("true", "false"):
            return found.strip().lower() == "true"
        raise self.wrong(name, f"must be true or false, not {_kind(found)}.")

    def seconds(self, name: str, default: float) -> float:
        found = self._values.get(name)
        if found is None or found == "":
            return default
        if isinstance(found, int | float) and not isinstance(found, bool) and found >= 0:
            return float(found)
        told = duration(found) if isinstance(found, str) else None
        if told is None:
            raise self.wrong(name, 'must be a duration such as "30s", "5m" or "1m30s".')
        return told

    def texts(self, name: str) -> dict[str, str]:
        """A map of strings. Numbers and flags are taken at their word."""
        found = self._values.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self.wrong(name, f"must be an object of strings, not {_kind(found)}.")
        return {
            str(key): self._plain(f"{name}.{key}", value)
            for key, value in cast("dict[object, object]", found).items()
        }

    def items(self, name: str, *, why: str) -> list["Arguments"]:
        """A list of objects that must not be empty."""
        found = self._values.get(name)
        if not isinstance(found, list) or not found:
            raise self.wrong(name, f"must be a list that is not empty: {why}")
        listed: list[Arguments] = []
        for index, item in enumerate(cast("list[object]", found)):
            if not isinstance(item, dict):
                raise self.wrong(f"{name}[{index}]", f"must be an object, not {_kind(item)}.")
            inside = f"{self._place}{name}[{index}]."
            listed.append(Arguments(cast("Mapping[str, object]", item), inside))
        return listed

    def wrong(self, name: str, complaint: str) -> ToolError:
        return ToolError(f"{self._place}{name} {complaint}")

    def _plain(self, name: str, value: object) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return f"{value:g}" if isinstance(value, float) else str(value)
        raise self.wrong(name, f"must be a string, not {_kind(value)}.")


def duration(text: str) -> float | None:
    """Seconds, from `90s`, `1m30s`, `500ms` or a bare number; None if it is none of these."""
    text = text.strip()
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text):
        return float(text)
    if not text or not re.fullmatch(rf"(?:{_DURATION.pattern})+", text):
        return None
    return sum(float(amount) * _SECONDS[unit] for amount, unit in _DURATION.findall(text))


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a flag"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
