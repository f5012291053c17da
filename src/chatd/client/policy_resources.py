"""Tool policies. A rule that this client cannot read wholly is an error: a policy is replaced as a
whole, and what was not read would be lost."""

from typing import ClassVar

from msgspec import Struct

from chatd.domain.tool_policy.rules import ToolRule


class ToolPolicyState(Struct, frozen=True, kw_only=True):
    """The rules, with the version that a change must name."""

    api_name: ClassVar = "ToolPolicyReply"

    version: int = 0
    rules: tuple[ToolRule, ...] = ()
    may_loosen: bool = False
