"""What hooks may answer, and how their answers combine with the tool policy."""

from uuid import UUID

import pytest
from msgspec import UNSET, Raw

from chatd.domain.chat.messages import CallHooks, HookVerdict
from chatd.domain.deployment.hooks import (
    Hook,
    HookEvent,
    HookReply,
    add_answer,
    ask_id,
    hook_notices,
    read_reply,
    with_hooks,
)
from chatd.domain.tool_policy.decision import decide
from chatd.domain.tool_policy.rules import (
    LayerName,
    PolicyAction,
    PolicyLayer,
    ToolPolicy,
    ToolRule,
)
from tests.support.factories import chat

HOOK = Hook(id=UUID(int=1), name="policy", url="https://a.test/", events=("before_tool",))


@pytest.mark.parametrize(
    ("body", "event", "expected"),
    [
        (b"", "turn_start", HookReply()),
        (b" \n", "step", HookReply()),
        (b"{}", "before_tool", HookReply()),
        (
            b'{"decision":"deny","reason":" no "}',
            "turn_start",
            HookReply(decision="deny", reason="no"),
        ),
        (b'{"decision":"ask"}', "before_tool", HookReply(decision="ask")),
        (b'{"arguments":{"a":1}}', "before_tool", HookReply(arguments={"a": 1})),
        (b'{"decision":"ask"}', "turn_start", "only before a tool call"),
        (b'{"arguments":{}}', "after_tool", "only before a tool call"),
        (b'{"decision":"maybe"}', "before_tool", "cannot be read"),
        (b'{"Decision":"deny"}', "before_tool", "cannot be read"),
        (b'{"decision":"deny","decision":"allow"}', "before_tool", "given twice"),
        (b'{"arguments":{"a":1,"a":2}}', "before_tool", "given twice"),
        (b'{"arguments":{"a":"\\u0000"}}', "before_tool", "NUL"),
        (b'{"arguments":{"a":"' + b"x" * 70_000 + b'"}}', "before_tool", "more than 65,536 bytes"),
        (b'{"arguments":"rm"}', "before_tool", "cannot be read"),
        (b"[]", "before_tool", "cannot be read"),
        (b"null", "before_tool", "cannot be read"),
        (b"\xff", "before_tool", "cannot be read"),
        (b" " * 200_000, "before_tool", "too long"),
        (b'{"reason":' + b"[" * 60_000, "before_tool", "nested|read"),
    ],
)
def test_a_reply_is_read_strictly(body: bytes, event: HookEvent, expected: HookReply | str) -> None:
    if isinstance(expected, HookReply):
        assert read_reply(body, event) == expected
    else:
        with pytest.raises(ValueError, match=expected):
            read_reply(body, event)


def layer(name: LayerName, action: PolicyAction, *, may_loosen: bool = False) -> PolicyLayer:
    rule = ToolRule(tool="*", action=action)
    return PolicyLayer(name=name, policy=ToolPolicy(rules=(rule,), may_loosen=may_loosen))


def said(decision: str, by: LayerName = "deployment") -> CallHooks:
    return CallHooks(verdicts=(HookVerdict(hook="policy", layer=by, decision=decision),))


@pytest.mark.parametrize(
    ("layers", "hooks", "expected"),
    [
        ((), None, "auto"),
        ((), said(""), "auto"),
        ((), said("allow"), "auto"),
        ((), said("ask"), "ask"),
        ((), said("deny"), "deny"),
        # the hook is the narrowest rule of its own layer
        ((layer("deployment", "ask"),), said("allow"), "auto"),
        ((layer("deployment", "ask"),), said(""), "ask"),
        # a denial wins in every layer
        ((layer("deployment", "deny"),), said("allow"), "deny"),
        ((layer("chat", "deny"),), said("allow"), "deny"),
        ((layer("chat", "auto"),), said("deny"), "deny"),
        # a template's hook cannot loosen what the deployment asks for, unless it may
        ((layer("deployment", "ask"),), said("allow", "template"), "ask"),
        ((layer("deployment", "ask", may_loosen=True),), said("allow", "template"), "auto"),
        # neither can users and chats loosen what a hook asks for
        ((layer("user", "auto"), layer("chat", "auto")), said("ask"), "ask"),
        ((layer("chat", "auto"),), said("ask", "template"), "ask"),
        (
            (layer("deployment", "auto", may_loosen=True), layer("user", "auto")),
            said("ask"),
            "ask",
        ),
        (
            (layer("template", "ask", may_loosen=True), layer("chat", "auto")),
            said("ask", "template"),
            "ask",
        ),
        # but they can be stricter than it
        ((layer("user", "ask"),), said("allow"), "ask"),
        # of several hooks in one layer the strictest counts, and both layers are heard
        ((), CallHooks(verdicts=(*said("allow").verdicts, *said("ask").verdicts)), "ask"),
        (
            (),
            CallHooks(verdicts=(*said("ask").verdicts, *said("deny", "template").verdicts)),
            "deny",
        ),
        # a word of a newer version is no opinion
        ((layer("user", "ask"),), said("perhaps"), "ask"),
    ],
)
def test_answers_combine_with_the_tool_policy_by_its_own_order(
    layers: tuple[PolicyLayer, ...], hooks: CallHooks | None, expected: PolicyAction
) -> None:
    combined = with_hooks(layers, "execute", hooks)
    assert decide(combined, "execute", Raw(b"{}")).action == expected


def test_a_hook_that_fails_denies_only_if_it_is_closed() -> None:
    closed = add_answer(CallHooks(), HOOK, "No answer.")
    opened = add_answer(
        CallHooks(), Hook(id=HOOK.id, name="o", url="", events=(), failure="open"), "No answer."
    )
    assert [one.verdicts[0].decision for one in (closed, opened)] == ["deny", ""]
    assert [len(hook_notices("execute", "c1", one)) for one in (closed, opened)] == [0, 1]


def test_each_hook_changes_the_arguments_that_the_one_before_it_left() -> None:
    first = add_answer(CallHooks(), HOOK, HookReply(arguments={"a": 1}))
    second = add_answer(first, HOOK, HookReply(decision="allow"))
    assert (first.args, second.args) == (Raw(b'{"a":1}'), Raw(b'{"a":1}'))
    assert CallHooks().args is UNSET
    assert [one.changed for one in second.verdicts] == [True, False]


def test_the_id_of_a_question_depends_on_what_is_asked_and_on_nothing_else() -> None:
    one = chat()
    ids = {
        ask_id(HOOK, one, event, key)
        for event in ("before_tool", "after_tool")
        for key in ("1:c1", "1:c2", "2:c1")
    }
    assert len(ids) == 6
    assert ask_id(HOOK, one, "step", "v3") == ask_id(HOOK, one, "step", "v3")
