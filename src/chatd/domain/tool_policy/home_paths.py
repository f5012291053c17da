"""`~` and `$HOME` in the texts of calls and in patterns, for rules that ask or deny.

The rules do not know the home directory of a workspace. So a `~` stands for every home directory
that the other side names, or for the usual ones: such a rule may match more than its author meant.
"""

import re
from functools import lru_cache
from itertools import islice
from typing import Final

_USUAL: Final = ("/root", "/home/dev")
_VARIABLE: Final = re.compile(
    r""""\$HOME"|"\$\{HOME\}"|\$HOME(?!\w)|\$\{HOME\}|(?:^|(?<=[\s=:'"(]))~(?=[/\s'")]|$)"""
)
_DIRECTORY: Final = re.compile(r"/(?:home|Users)/[^/\s'\"]{1,255}|/root(?![^/\s'\"])")
_USER: Final = re.compile(r"""(?:^|(?<=[\s=:'"(]))~(\w[\w.-]{0,31})(?=[/\s'")]|$)""")
_MAX_HOMES: Final = 16
_MAX_VARIABLES: Final = 256
"""What a model sends must cost neither much memory nor much time. A call with more counts as a
match, so that nothing hides behind the bound."""


def with_homes(pattern: str, text: str) -> list[tuple[str, str]] | None:
    """The pattern and the text with each home directory that a `~` or `$HOME` in them may be.
    Nothing if they have none; None if there are too many to tell."""
    found: list[tuple[str, str]] = []
    named = _name_users(pattern), _name_users(text)
    if named != (pattern, text):
        found.append(named)
        pattern, text = named
    homes: list[str] = []
    in_pattern, in_text = _count_variables(pattern), _count_variables(text)
    if in_text > _MAX_VARIABLES and (in_pattern or "/" in pattern):
        return None
    if in_text:
        homes += [_plain(home) for home in _named(pattern)]
    if in_pattern:
        homes += _named(text)
    if len(homes) > _MAX_HOMES:
        return None
    if in_pattern or in_text:
        filled = dict.fromkeys(homes or _USUAL)
        found += [(_fill_in(pattern, home), _fill_in(text, home)) for home in filled]
    return found


@lru_cache(maxsize=16)  # many rules look at one call
def _named(text: str) -> tuple[str, ...]:
    """Each once, and one more than the bound at most."""
    found: dict[str, None] = {}
    for one in _DIRECTORY.finditer(text):
        found[one[0]] = None
        if len(found) > _MAX_HOMES:
            break
    return tuple(found)


@lru_cache(maxsize=16)
def _count_variables(text: str) -> int:
    """No more than one above the bound."""
    return sum(1 for _ in islice(_VARIABLE.finditer(text), _MAX_VARIABLES + 1))


@lru_cache(maxsize=16)
def _name_users(text: str) -> str:
    """`~dev` is the home directory of that user."""
    return _USER.sub(lambda one: "/root" if one[1] == "root" else f"/home/{one[1]}", text)


@lru_cache(maxsize=16)
def _fill_in(text: str, home: str) -> str:
    return _VARIABLE.sub(lambda _: home, text, _MAX_VARIABLES)


def _plain(pattern: str) -> str:
    """A directory that the pattern matches."""
    return pattern.replace("*", "x").replace("?", "x")
