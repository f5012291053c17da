"""The three scopes of changes, in words."""

from collections.abc import Mapping
from typing import Final, get_args

from chatd.domain.workspace.agent_api import DiffScope

SCOPES: Final[tuple[DiffScope, ...]] = get_args(DiffScope)
SCOPE_NAMES: Final[Mapping[DiffScope, str]] = {
    "turn": "This turn",
    "chat": "Chat",
    "git": "Working tree",
}
NOTHING: Final[Mapping[DiffScope, str]] = {
    "turn": "Nothing changed in this turn.",
    "chat": "This chat has changed nothing.",
    "git": "Nothing changed since the last commit, or there is no git repository.",
}


def read_scope(word: str) -> DiffScope:
    """By the word after /diff; this turn if it is none of them."""
    wanted = word.strip().lower()
    for one in SCOPES:
        if one == wanted:
            return one
    return "turn"


def next_scope(scope: DiffScope) -> DiffScope:
    return SCOPES[(SCOPES.index(scope) + 1) % len(SCOPES)]
