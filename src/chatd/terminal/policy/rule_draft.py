"""Rules of a tool policy while a person edits them: one argument a line. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from chatd.domain.errors import InvalidInput
from chatd.domain.text import Json
from chatd.domain.tool_policy.decision import decide, rule_for_call
from chatd.domain.tool_policy.rules import (
    PolicyAction,
    PolicyLayer,
    ToolPolicy,
    ToolRule,
    check_rule,
)
from chatd.terminal.answers.exact_text import exact_text

ACTIONS: Final[Mapping[PolicyAction, str]] = {
    "auto": "Run",
    "ask": "Ask first",
    "deny": "Never run",
}


class RuleProblem(Exception):
    """Says what a person is to change in a rule."""


class RuleDraft(Struct, frozen=True, kw_only=True):
    tool: str = ""
    action: PolicyAction = "ask"
    args: str = ""
    reason: str = ""


def draft_of_rule(rule: ToolRule) -> RuleDraft:
    return RuleDraft(
        tool=rule.tool, action=rule.action, args=pattern_lines(rule.args), reason=rule.reason
    )


def pattern_lines(args: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {pattern}" for name, pattern in args.items())


def read_patterns(lines: str) -> dict[str, str]:
    """Raises RuleProblem."""
    found: dict[str, str] = {}
    for line in lines.splitlines():
        if not line.strip():
            continue
        name, colon, pattern = line.partition(":")
        if not colon or not name.strip():
            raise RuleProblem(
                f"«{line.strip()}» is no argument: write its name, a colon and a pattern, such as"
                " command: git push *"
            )
        if name.strip() in found:
            raise RuleProblem(f"The argument {name.strip()} is there twice: keep one line of it.")
        found[name.strip()] = pattern.strip()
    return found


def rule_of_draft(draft: RuleDraft) -> ToolRule:
    """Raises RuleProblem."""
    rule = ToolRule(
        tool=draft.tool.strip(),
        action=draft.action,
        args=read_patterns(draft.args),
        reason=draft.reason.strip(),
    )
    try:
        return check_rule(rule, "rule")
    except InvalidInput as error:
        raise RuleProblem(error.message) from None


def can_edit(rule: ToolRule) -> bool:
    """Whether the lines say the same rule again when they are read: not so with line breaks, blanks
    at an end, and characters that cannot be seen."""
    lines = pattern_lines(rule.args)
    try:
        return exact_text(lines) == lines and read_patterns(lines) == dict(rule.args)
    except RuleProblem:
        return False


def always_rule(tool_name: str, args: Json) -> ToolRule | None:
    """What «always» stores if nothing else is written: of a command exactly this one, of another
    tool all calls."""
    return rule_for_call(tool_name, args)


def always_patterns(tool_name: str, args: Json, lines: str) -> dict[str, str]:
    """The patterns of an edited rule for «always». Raises RuleProblem if it would not match the
    call: the server refuses such a rule."""
    rule = rule_of_draft(RuleDraft(tool=tool_name, action="auto", args=lines))
    layer = PolicyLayer(name="chat", policy=ToolPolicy(rules=(rule,)))
    if decide((layer,), tool_name, args).rule is None:
        raise RuleProblem(
            "The rule does not match this call, or could match more than one plain command."
            " Patterns: * stands for any text, ? for one character, =text is exact."
        )
    return dict(rule.args)


def rule_text(rule: ToolRule) -> str:
    """In one line, for lists: the tool and the patterns, with nothing hidden."""
    patterns = ", ".join(f"{name}: {pattern}" for name, pattern in rule.args.items())
    return exact_text(f"{rule.tool}  {patterns}" if patterns else rule.tool).replace("\n", "\\n")
