"""SQL with named parameters, for statements too wide to count `$1..$n` by hand.

`:name` becomes a numbered parameter, the same number wherever the name stands;
`::type` stays a cast. Fragments are joined before numbering, so two statements
can share one.
"""

import re
from collections.abc import Mapping
from typing import LiteralString, cast

from msgspec import Struct

_NAME = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


class Statement(Struct, frozen=True, kw_only=True):
    text: LiteralString
    names: tuple[str, ...]

    def args(self, values: Mapping[str, object]) -> list[object]:
        return [values[name] for name in self.names]


def named(*fragments: LiteralString) -> Statement:
    sql = "".join(fragments)
    names = tuple(dict.fromkeys(_NAME.findall(sql)))
    numbers = {name: f"${index}" for index, name in enumerate(names, 1)}
    text = _NAME.sub(lambda match: numbers[match[1]], sql)
    # Made of literals only: the substitution puts in numbers.
    return Statement(text=cast("LiteralString", text), names=names)
