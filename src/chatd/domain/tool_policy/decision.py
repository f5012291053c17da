"""The decision on a tool call from all layers of policy.

The layers go from wide to narrow: deployment, template of the workspace, user, chat.

1. A `deny` that matches, in any layer, wins.
2. In one layer the narrowest matching rule counts; of two equally narrow ones `ask`, but in a chat
   the later one: an owner who approves «always» adds it at the end.
3. A narrower layer replaces a wider one's decision, except that it cannot turn an `ask` of the
   deployment or of the template into `auto` unless that policy says `may_loosen`.
4. Without any matching rule a call runs.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.text import Json
from chatd.domain.tool_policy.matching import (
    COMMAND_ARGUMENT,
    CallArguments,
    matches,
    read_arguments,
)
from chatd.domain.tool_policy.rules import (
    LayerName,
    PolicyAction,
    PolicyLayer,
    ToolPolicy,
    ToolRule,
)

_SET_BY_OTHERS: Final[frozenset[LayerName]] = frozenset({"deployment", "template"})


class PolicyDecision(Struct, frozen=True, kw_only=True):
    """`may_loosen`: a rule of the chat could let this call run without asking. `is_unread`: its
    arguments cannot be read, so that every pattern for them counts."""

    action: PolicyAction = "auto"
    layer: LayerName | None = None
    rule: ToolRule | None = None
    may_loosen: bool = True
    is_unread: bool = False

    @property
    def reason(self) -> str:
        return "" if self.rule is None else self.rule.reason


UNRULED: Final = PolicyDecision()


def decide(layers: Sequence[PolicyLayer], tool_name: str, args: Json) -> PolicyDecision:
    if not layers:
        return UNRULED
    given = CallArguments(args)
    is_unread = given.fields is None
    found = [
        (layer, [rule for rule in layer.policy.rules if matches(rule, tool_name, given)])
        for layer in layers
    ]
    for layer, rules in found:
        if (denial := _narrowest(rule for rule in rules if rule.action == "deny")) is not None:
            return PolicyDecision(
                action="deny",
                layer=layer.name,
                rule=denial,
                may_loosen=False,
                is_unread=is_unread,
            )
    decision = UNRULED
    for layer, rules in found:
        if (rule := _narrowest(rules, later_counts=layer.name == "chat")) is not None:
            decision = _combine(decision, layer, rule)
    return replace(decision, is_unread=True) if is_unread else decision


def _combine(wider: PolicyDecision, layer: PolicyLayer, rule: ToolRule) -> PolicyDecision:
    is_locked = wider.action == "ask" and not wider.may_loosen
    if is_locked and rule.action == "auto":
        return wider
    can_loosen = layer.policy.may_loosen or layer.name not in _SET_BY_OTHERS
    return PolicyDecision(
        action=rule.action,
        layer=layer.name,
        rule=rule,
        may_loosen=can_loosen and not is_locked,
    )


def _narrowest(rules: Iterable[ToolRule], *, later_counts: bool = False) -> ToolRule | None:
    def rank(numbered: tuple[int, ToolRule]) -> tuple[int, int, int]:
        place, rule = numbered
        return *rule.specificity, place if later_counts else rule.action != "auto"

    found = max(enumerate(rules), key=rank, default=None)
    return None if found is None else found[1]


def can_allow_always(layers: Sequence[PolicyLayer], tool_name: str, args: Json) -> bool:
    """Whether the chat's rule for such calls would let this one run."""
    rule = rule_for_call(tool_name, args)
    if rule is None:
        return False
    above = [layer for layer in layers if layer.name != "chat"]
    own = [rule for layer in layers if layer.name == "chat" for rule in layer.policy.rules]
    chat = PolicyLayer(name="chat", policy=ToolPolicy(rules=(*own, rule)))
    return decide((*above, chat), tool_name, args).action == "auto"


def denial_text(decision: PolicyDecision) -> str:
    """The result of a call that a policy denies."""
    owners = {"deployment": "server", "template": "workspace's template", None: "server"}
    owner = owners.get(decision.layer, str(decision.layer))
    why = f" {decision.reason}" if decision.reason else ""
    if decision.is_unread:
        why += " Its arguments could not be read: send them as a plain JSON object."
    return (
        f"Not run: the tool policy of the {owner} denies this call.{why}"
        " Do not try to reach the same effect in another way; say what you need instead."
    )


def rule_for_call(tool_name: str, args: Json) -> ToolRule | None:
    """The chat's rule that lets this call run without asking from now on: for a command exactly
    this one, for other tools any call. None if the arguments can be read in two ways."""
    fields = read_arguments(args)
    if fields is None:
        return None
    commands = [(key, value) for key, value in fields if key.casefold() == COMMAND_ARGUMENT]
    if not commands:
        return ToolRule(tool=tool_name, action="auto")
    key, value = commands[0]
    if len(commands) > 1 or key != COMMAND_ARGUMENT or not isinstance(value, str):
        return None
    return ToolRule(tool=tool_name, action="auto", args={COMMAND_ARGUMENT: f"={value}"})
