"""`~` and `$HOME` in the texts of calls and in patterns, for rules that ask or deny.

The rules do not know the home directory of a workspace. So a `~` stands for every home directory
that the other side names, or for the usual ones: such a rule may match more than its author meant.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final

_USUAL: Final = ("/root", "/home/dev")
_VARIABLE: Final = re.compile(
    r""""\$HOME"|"\$\{HOME\}"|\$HOME(?!\w)|\$\{HOME\}|(?:^|(?<=[\s=:'"(]))~(?=[/\s'")]|$)"""
)
_DIRECTORY: Final = re.compile(r"/(?:home|Users)/[^/\s'\"]{1,255}|/root(?![^/\s'\"])")
_MAX_HOMES: Final = 4
_MAX_VARIABLES: Final = 256
"""What a model sends must cost neither much memory nor much time."""


def with_homes(pattern: str, text: str) -> Iterator[tuple[str, str]]:
    """The pattern and the text with each home directory that a `~` or `$HOME` in them may be.
    Nothing if they have none."""
    if _VARIABLE.search(text):
        homes = [_plain(home) for home in _named(pattern)]
    elif _VARIABLE.search(pattern):
        homes = _named(text)
    else:
        return
    for home in dict.fromkeys(homes or _USUAL):
        yield _fill_in(pattern, home), _fill_in(text, home)


def _named(text: str) -> list[str]:
    return [found[0] for found in islice(_DIRECTORY.finditer(text), _MAX_HOMES)]


@lru_cache(maxsize=16)  # many rules look at one call
def _fill_in(text: str, home: str) -> str:
    return _VARIABLE.sub(lambda _: home, text, _MAX_VARIABLES)


def _plain(pattern: str) -> str:
    """A directory that the pattern matches."""
    return pattern.replace("*", "x").replace("?", "x")
