"""The keys: the leaves of the settings tree, and the name each has in every source.

Owns the derivation, so that a key that is added to the tree has its variable and its flag too.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final, Literal, TypeGuard, get_args, get_origin

import msgspec

from chatd.settings.tree import Settings

PREFIX: Final = "CHATD_"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    path: tuple[str, ...]
    type: object

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return PREFIX + "_".join(self.path).upper()

    @property
    def flag(self) -> str:
        """Where the server listens is asked for often enough to be short: --port."""
        words = self.path[1:] if self.path[0] == "server" else self.path
        return "--" + "-".join(words).replace("_", "-")

    @property
    def is_list(self) -> bool:
        """Tables in a file, JSON in a variable, and no flag."""
        return any(get_origin(arg) is tuple for arg in get_args(self.type))

    @property
    def help(self) -> str:
        return next((meta.description for meta in self._metas() if meta.description), "")

    @property
    def expected(self) -> str | None:
        """What a person should write, where the rest of its line does not say it."""
        base = get_args(self.type)[0] if self._metas() else self.type
        if get_origin(base) is Literal:
            return f"one of {', '.join(get_args(base))}"
        return next((meta.extra["expected"] for meta in self._metas() if meta.extra), None)

    def _metas(self) -> list[msgspec.Meta]:
        return [arg for arg in get_args(self.type) if isinstance(arg, msgspec.Meta)]


@cache
def keys() -> dict[str, Key]:
    """All of them, by dotted name."""
    return {key.name: key for key in _keys_of(Settings, ())}


def fields(struct: type[msgspec.Struct]) -> dict[str, object]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def is_section(field: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(field, type) and issubclass(field, msgspec.Struct)


def _keys_of(section: type[msgspec.Struct], at: tuple[str, ...]) -> Iterator[Key]:
    for name, field in fields(section).items():
        if is_section(field):
            yield from _keys_of(field, (*at, name))
        else:
            yield Key(path=(*at, name), type=field)
