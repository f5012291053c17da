"""Names of workspaces: which are allowed, and how one is made up. Randomness is passed in."""

import re
import unicodedata
from typing import Final

MOST: Final = 32
_SLUG: Final = 27  # leaves room for a dash and four digits
_NAME: Final = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_OTHER: Final = re.compile(r"[^a-z0-9]+")


def is_name(text: str) -> bool:
    return len(text) <= MOST and _NAME.fullmatch(text) is not None


def slug(text: str) -> str:
    """The letters and digits of a text, dashes for all else; empty if there are none."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return _OTHER.sub("-", plain).strip("-")[:_SLUG].rstrip("-")


def generated_name(seed: str, draw: bytes) -> str:
    """Two random bytes make a clash unlikely; whoever inserts it tries once more all the same."""
    return f"{slug(seed) or 'workspace'}-{draw[:2].hex().rjust(4, '0')}"


def name_for(wanted: str, template: str, draw: bytes) -> str:
    """The wanted name if it can be one, else one made of it, else one made of the template's."""
    if is_name(wanted):
        return wanted
    return generated_name(wanted if slug(wanted) else template, draw)
