"""Rules of which tool calls run at once, which a person must approve, and which never run."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.description import describe
from chatd.domain.errors import InvalidInput

PolicyAction = Literal["auto", "ask", "deny"]
LayerName = Literal["deployment", "template", "user", "chat"]

MAX_RULES: Final = 200
"""Of one policy. The deployment, a template, a user and a chat have one each."""
MAX_ARGUMENT_NAME_CHARS: Final = 200
MAX_PATTERN_CHARS: Final = 4096
MAX_ARGUMENT_PATTERNS: Final = 16
_MAX_REASON_CHARS: Final = 500


class ToolRule(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """What happens to calls of some tools."""

    tool: Annotated[
        str,
        describe("The tool's name; `*` stands for any text, `?` for one character.", "execute"),
    ]
    action: Annotated[
        PolicyAction,
        describe("`auto`: run it. `ask`: a person approves it first. `deny`: never run it.", "ask"),
    ]
    args: Annotated[
        Mapping[str, str],
        describe(
            "Patterns of arguments, by name. All must match. A pattern that begins with `=` is"
            " the exact text; in others `*` and `?` are wildcards.",
            {"command": "git push *"},
        ),
    ] = {}
    reason: Annotated[
        str,
        describe("Shown to people that are asked, and told to the model.", "Pushes need a review."),
    ] = ""

    @property
    def specificity(self) -> tuple[int, int]:
        """How narrow the rule is: patterns of arguments first, then fixed characters."""
        fixed = sum(_fixed_chars(pattern) for pattern in (self.tool, *self.args.values()))
        return len(self.args), fixed


class ToolPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The rules of one layer."""

    rules: Annotated[tuple[ToolRule, ...], describe("The rules, in any order.")] = ()
    may_loosen: Annotated[
        bool,
        describe(
            "For a deployment or template: users and chats may run without approval what this"
            " policy asks for. Its denials stay."
        ),
    ] = False


class PolicyLayer(Struct, frozen=True, kw_only=True):
    """`verdict` is what a hook of this layer says about the one call that is decided: it counts
    like a rule that is narrower than all others."""

    name: LayerName
    policy: ToolPolicy
    verdict: ToolRule | None = None


NO_POLICY: Final = ToolPolicy()
_DECODER: Final = msgspec.json.Decoder(ToolPolicy)


def _fixed_chars(pattern: str) -> int:
    text = pattern.removeprefix("=")
    return len(text) if text != pattern else sum(char not in "*?" for char in pattern)


def check_policy(policy: ToolPolicy) -> ToolPolicy:
    """Raises InvalidInput."""
    if len(policy.rules) > MAX_RULES:
        raise InvalidInput("rules", f"at most {MAX_RULES} rules")
    for index, rule in enumerate(policy.rules):
        check_rule(rule, f"rules[{index}]")
    return policy


def without_permissions(rules: Sequence[ToolRule]) -> tuple[ToolRule, ...]:
    """The rules that only restrict, for a chat whose rules somebody else may have written."""
    return tuple(rule for rule in rules if rule.action != "auto")


def check_rule(rule: ToolRule, field: str) -> ToolRule:
    """Raises InvalidInput."""
    _check_text(rule.tool, f"{field}.tool", MAX_PATTERN_CHARS)
    if not rule.tool or any(char.isspace() for char in rule.tool):
        raise InvalidInput(f"{field}.tool", "a tool's name is not empty and has no spaces")
    if len(rule.args) > MAX_ARGUMENT_PATTERNS:
        raise InvalidInput(f"{field}.args", f"at most {MAX_ARGUMENT_PATTERNS} arguments")
    for name, pattern in rule.args.items():
        _check_text(name, f"{field}.args", MAX_ARGUMENT_NAME_CHARS)
        _check_text(pattern, f"{field}.args.{name}", MAX_PATTERN_CHARS)
    _check_text(rule.reason, f"{field}.reason", _MAX_REASON_CHARS)
    return rule


def _check_text(text: str, field: str, limit: int) -> None:
    if len(text) > limit:
        raise InvalidInput(field, f"at most {limit} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, "is not valid text") from None
    if "\0" in text:
        raise InvalidInput(field, "has a NUL character")


def decode_policy(text: str | bytes | None) -> ToolPolicy:
    """A stored policy. Rules that this version cannot read fail closed: every call is asked for."""
    if not text:
        return NO_POLICY
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        return UNREADABLE_POLICY


UNREADABLE_POLICY: Final = ToolPolicy(
    rules=(
        ToolRule(
            tool="*",
            action="ask",
            reason="A rule of the tool policy cannot be read by this version of chatd.",
        ),
    )
)
