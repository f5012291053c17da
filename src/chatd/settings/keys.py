"""The keys: the leaves of `Settings`, with the name of each in files, variables and flags.

The names are derived, so that a new setting gets its variable and its flag without further code.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final, Literal, TypeGuard, get_args, get_origin

import msgspec

from chatd.settings.schema import Settings

ENV_PREFIX: Final = "CHATD_"


class SettingKey(msgspec.Struct, frozen=True, kw_only=True):
    path: tuple[str, ...]
    type: object

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return ENV_PREFIX + "_".join(self.path).upper()

    @property
    def flag(self) -> str:
        """The flag; short for `server` keys, which are used most: --port."""
        words = self.path[1:] if self.path[0] == "server" else self.path
        return "--" + "-".join(words).replace("_", "-")

    @property
    def is_list(self) -> bool:
        """A list has tables in a file, JSON in a variable, and no flag."""
        return any(get_origin(arg) is tuple for arg in get_args(self.type))

    @property
    def help(self) -> str:
        return next((meta.description for meta in self._metas() if meta.description), "")

    @property
    def expected(self) -> str | None:
        """The expected form, where name and description do not imply it."""
        base = get_args(self.type)[0] if self._metas() else self.type
        if get_origin(base) is Literal:
            return f"one of {', '.join(get_args(base))}"
        return next((meta.extra["expected"] for meta in self._metas() if meta.extra), None)

    def _metas(self) -> list[msgspec.Meta]:
        return [arg for arg in get_args(self.type) if isinstance(arg, msgspec.Meta)]


@cache
def setting_keys() -> dict[str, SettingKey]:
    """All keys by dotted name."""
    return {key.name: key for key in _keys_of(Settings, ())}


def fields(struct: type[msgspec.Struct]) -> dict[str, object]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def is_section(field: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(field, type) and issubclass(field, msgspec.Struct)


def _keys_of(section: type[msgspec.Struct], at: tuple[str, ...]) -> Iterator[SettingKey]:
    for name, field in fields(section).items():
        if is_section(field):
            yield from _keys_of(field, (*at, name))
        else:
            yield SettingKey(path=(*at, name), type=field)
