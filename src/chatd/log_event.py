"""The form of every log line: the name of an event, its fields, and an explanation for operators.

As text: `event field=value (explanation)`. As JSON: one object with the same parts.
"""

from collections.abc import Mapping

from msgspec import Struct


class LogEvent(Struct, frozen=True, kw_only=True):
    event: str
    fields: Mapping[str, object] = {}
    explanation: str | None = None

    def __str__(self) -> str:
        parts = [self.event, *(f"{name}={value}" for name, value in self.fields.items())]
        return " ".join(parts if self.explanation is None else [*parts, f"({self.explanation})"])
