"""What each generation of Claude understands, read off its name.

Owns the facts that decide how a request must look: a field that one model
needs is an error on another. A name that says nothing is taken for a model
that takes what it is given.
"""

import re
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.model.protocol import DEFAULT_MAX_OUTPUT_TOKENS, Effort

Platform = Literal["anthropic", "bedrock"]
Off = Literal["omit", "disabled", "between_tools", "impossible"]
"""How thinking is turned off."""

TOOLSET: Final = "computer_toolset_20260801"

_NAMED: Final = re.compile(
    r"claude-(?P<family>opus|sonnet|haiku|fable|mythos)-(?P<major>\d)(?:[-.](?P<minor>\d{1,2})(?!\d))?"
)
_NUMBERED: Final = re.compile(
    r"claude-(?P<major>\d)(?:[-.](?P<minor>\d{1,2}))?-(?P<family>opus|sonnet|haiku)"
)
_ANCIENT: Final = re.compile(r"claude-(?:instant|v?[12](?!\d))")


class Computer(Struct, frozen=True, kw_only=True):
    """The type of the tool for a screen, and what must be said to be allowed it."""

    type: str
    beta: str | None = None


class Claude(Struct, frozen=True, kw_only=True):
    family: str
    version: tuple[int, int]

    @property
    def _newest_rules(self) -> bool:
        """Since these, thoughts are bound to their conversation and tools cannot be forced."""
        since = (5, 1) if self.family in ("fable", "mythos") else (5, 5)
        return self.version >= since

    @property
    def thinks(self) -> bool:
        return self.version >= (3, 7)

    @property
    def takes_budget(self) -> bool:
        """A number of tokens to think with."""
        return (3, 7) <= self.version <= (4, 6)

    @property
    def adapts(self) -> bool:
        """Decides itself how long to think, guided by an effort."""
        return self.version >= (4, 6)

    @property
    def thinks_unasked(self) -> bool:
        return self.version >= (5, 0)

    @property
    def hides_thoughts(self) -> bool:
        """Sends thoughts without their text unless told otherwise."""
        return self.version >= (4, 7)

    @property
    def off(self) -> Off:
        if not self.thinks_unasked:
            return "omit"
        if self.family in ("fable", "mythos") or (self.family == "opus" and self._newest_rules):
            return "impossible"
        if self.family == "sonnet" and self._newest_rules:
            return "between_tools"
        return "disabled"

    @property
    def efforts(self) -> tuple[Effort, ...]:
        if self.version == (4, 6):
            return ("low", "medium", "high", "max")
        return ("low", "medium", "high", "xhigh", "max")

    @property
    def samples(self) -> bool:
        """Takes temperature and the like at all."""
        return self.version < (4, 7)

    @property
    def one_sampling_value(self) -> bool:
        """Takes temperature or top_p, not both."""
        return bool(self.family) and self.version >= (4, 1)

    @property
    def can_be_forced(self) -> bool:
        """To call a tool."""
        return not self._newest_rules

    @property
    def binds_thoughts(self) -> bool:
        """Refuses a conversation whose past has changed, unless told to forget those thoughts."""
        return self._newest_rules

    @property
    def writes_schemas(self) -> bool:
        """Answers in a given JSON schema."""
        return self.version >= (4, 5)

    @property
    def caches(self) -> bool:
        return self.version >= (3, 5)

    @property
    def default_max_tokens(self) -> int:
        if self.version < (3, 5):
            return 4096
        return 8192 if self.version < (3, 7) else DEFAULT_MAX_OUTPUT_TOKENS

    def computer(self, platform: Platform) -> Computer:
        if self.version >= (5, 5) or (self.family in ("fable", "mythos") and self._newest_rules):
            if platform == "anthropic":
                return Computer(type=TOOLSET)
        elif self.version < (3, 7):
            return Computer(type="computer_20241022", beta="computer-use-2024-10-22")
        elif self.version < (4, 5) or (self.version == (4, 5) and self.family != "opus"):
            return Computer(type="computer_20250124", beta="computer-use-2025-01-24")
        return Computer(type="computer_20251124", beta="computer-use-2025-11-24")


# Thinks when it is asked to, takes what it is given, forgets nothing: a model behind a gateway.
UNKNOWN: Final = Claude(family="", version=(4, 6))


def facts(model: str) -> Claude:
    name = model.lower()
    if match := _NAMED.search(name) or _NUMBERED.search(name):
        version = (int(match["major"]), int(match["minor"] or 0))
        return Claude(family=match["family"], version=version)
    if "claude-mythos" in name:
        return Claude(family="mythos", version=(4, 7))
    if _ANCIENT.search(name):
        return Claude(family="", version=(2, 0))
    return UNKNOWN
