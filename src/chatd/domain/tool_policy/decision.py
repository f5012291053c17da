"""The decision on a tool call from all layers of policy.

The layers go from wide to narrow: deployment, template of the workspace, user, chat.

1. A `deny` that matches, in any layer, wins.
2. In one layer the narrowest matching rule counts; of two equally narrow ones `ask`, but in a chat
   the later one: an owner who approves «always» adds it at the end.
3. A narrower layer replaces a wider one's decision, except that it cannot turn an `ask` of the
   deployment or of the template into `auto` unless that policy says `may_loosen`.
4. What a hook of the deployment or of the template answers about a call is the narrowest rule of
   its layer. What it asks for stays asked, whatever `may_loosen` says of the policy.
5. Without any matching rule a call runs, except one on a desktop that the model's provider wants a
   person to check.

A command that may match, because it depends on what only the running shell knows, is asked for:
an `ask` counts as if it matched, and a `deny` becomes an `ask` that no rule can loosen.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.computer_use import COMPUTER_TOOL
from chatd.domain.text import Json
from chatd.domain.tool_policy.matching import (
    COMMAND_ARGUMENT,
    CallArguments,
    Commands,
    matches,
    read_arguments,
    scalar_text,
    simple_commands,
)
from chatd.domain.tool_policy.rules import (
    LayerName,
    PolicyAction,
    PolicyLayer,
    ToolPolicy,
    ToolRule,
)

_EXECUTE: Final = "execute"
"""Its command runs in `workdir`, or in the workspace's directory if the call has none."""
_WITHOUT_EFFECT: Final = frozenset({"model_intent", "run_in_background", "timeout"})
"""Arguments of a command that change neither what it does nor where."""
_OWNERS: Final[Mapping[LayerName, str]] = {
    "deployment": "server",
    "template": "workspace's template",
    "user": "user",
    "chat": "chat",
}
_SET_BY_OTHERS: Final[frozenset[LayerName]] = frozenset({"deployment", "template"})


class PolicyDecision(Struct, frozen=True, kw_only=True):
    """`may_loosen`: a rule of the chat could let this call run without asking. `is_unread`: its
    arguments cannot be read, so that every pattern for them counts. `may_be_denied`: a person is
    asked because a rule that denies may match. `by_hook`: `rule` is the answer of a hook."""

    action: PolicyAction = "auto"
    layer: LayerName | None = None
    rule: ToolRule | None = None
    may_loosen: bool = True
    is_unread: bool = False
    may_be_denied: bool = False
    by_hook: bool = False

    @property
    def reason(self) -> str:
        reason = "" if self.rule is None else self.rule.reason
        return f"{reason} {MAY_BE_DENIED}".strip() if self.may_be_denied else reason


UNRULED: Final = PolicyDecision()
_CONFIRMED: Final = ToolRule(
    tool=COMPUTER_TOOL,
    action="ask",
    args={"pending_safety_checks": "*"},
    reason="The model's provider wants a person to check this first.",
)
"""Some vendors see signs of a page that instructs the model, and name them with the call."""
MAY_BE_DENIED: Final = (
    "A rule denies some commands, and chatd cannot tell whether this is one of them."
)


def decide(layers: Sequence[PolicyLayer], tool_name: str, args: Json) -> PolicyDecision:
    if not layers and tool_name != COMPUTER_TOOL:
        return UNRULED
    given = CallArguments(args)
    is_unread = given.fields is None
    found = [
        (layer, [(rule, matches(rule, tool_name, given)) for rule in layer.policy.rules])
        for layer in layers
    ]
    for layer in layers:
        if layer.verdict is not None and layer.verdict.action == "deny":
            return PolicyDecision(
                action="deny", layer=layer.name, rule=layer.verdict, may_loosen=False, by_hook=True
            )
    for result in ("yes", "may"):
        for layer, rules in found:
            denials = (rule for rule, match in rules if rule.action == "deny" and match == result)
            if (denial := _narrowest(denials)) is not None:
                return PolicyDecision(
                    action="deny" if result == "yes" else "ask",
                    layer=layer.name,
                    rule=denial,
                    may_loosen=False,
                    is_unread=is_unread,
                    may_be_denied=result == "may",
                )
    decision = UNRULED
    for layer, rules in found:
        matching = [rule for rule, match in rules if match != "no"]
        rule = layer.verdict or _narrowest(matching, later_counts=layer.name == "chat")
        if rule is not None:
            decision = _combine(decision, layer, rule)
    if decision.layer is None and matches(_CONFIRMED, tool_name, given) == "yes":
        decision = PolicyDecision(action="ask", layer="deployment", rule=_CONFIRMED)
    return replace(decision, is_unread=True) if is_unread else decision


class PolicyTrial(Struct, frozen=True, kw_only=True):
    """What would happen to a call, and why. `commands`: those in the text for a shell, each with
    whether the deciding rule means it."""

    decision: PolicyDecision
    explanation: str
    commands: Commands


def try_call(layers: Sequence[PolicyLayer], tool_name: str, args: Json) -> PolicyTrial:
    """The decision that a chat with these layers would make, for people."""
    decision = decide(layers, tool_name, args)
    return PolicyTrial(
        decision=decision,
        explanation=_explain(decision),
        commands=simple_commands(decision.rule, CallArguments(args)),
    )


def _explain(decision: PolicyDecision) -> str:
    if decision.layer is None:
        return "No rule fits this call, so it runs."
    owner = f"a rule of the {_OWNERS[decision.layer]}"
    if decision.may_be_denied:
        return f"A person is asked because {owner} denies some calls. {MAY_BE_DENIED}"
    if decision.action == "deny":
        return f"It never runs, because {owner} denies it. No other rule can allow it."
    if decision.action == "auto":
        return f"It runs at once, because {owner} allows it."
    locked = "" if decision.may_loosen else " Users and chats cannot loosen this."
    return f"A person is asked first, because {owner} says so.{locked}"


def _combine(wider: PolicyDecision, layer: PolicyLayer, rule: ToolRule) -> PolicyDecision:
    is_locked = wider.action == "ask" and not wider.may_loosen
    if is_locked and rule.action == "auto":
        return wider
    by_hook = rule is layer.verdict
    can_loosen = layer.name not in _SET_BY_OTHERS or (layer.policy.may_loosen and not by_hook)
    return PolicyDecision(
        action=rule.action,
        layer=layer.name,
        rule=rule,
        may_loosen=can_loosen and not is_locked,
        by_hook=by_hook,
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
    owner = _OWNERS[decision.layer or "deployment"]
    by = f"a hook of the {owner}" if decision.by_hook else f"the tool policy of the {owner}"
    why = f" {decision.reason}" if decision.reason else ""
    if decision.is_unread:
        why += " Its arguments could not be read: send them as a plain JSON object."
    return (
        f"Not run: {by} denies this call.{why}"
        " Do not try to reach the same effect in another way; say what you need instead."
    )


def rule_for_call(tool_name: str, args: Json) -> ToolRule | None:
    """The chat's rule that lets this call run without asking from now on: for a command exactly
    this one, with the same other arguments, for other tools any call. None if the arguments can be
    read in two ways."""
    fields = read_arguments(args)
    if fields is None:
        return None
    if all(key.casefold() != COMMAND_ARGUMENT for key, _ in fields):
        return ToolRule(tool=tool_name, action="auto")
    exact: dict[str, str] = {}
    names = [key.casefold() for key, _ in fields]
    for key, value in fields:
        if key.casefold() in _WITHOUT_EFFECT:
            continue
        text = scalar_text(value)
        if text is None or names.count(key.casefold()) > 1:
            return None
        exact[key] = f"={text}"
    if COMMAND_ARGUMENT not in exact:
        return None
    if tool_name == _EXECUTE and "workdir" not in names:
        exact["workdir"] = "="
    return ToolRule(tool=tool_name, action="auto", args=exact)
