"""Hooks: what receivers are asked during a turn, how their replies are read, and what they decide.

A hook is an HTTP receiver of the deployment or of a template. Unlike a webhook it is asked while
the turn waits, and its answer counts: it can refuse a turn, deny a call, have a person asked, or
change a call's arguments. A hook that cannot be asked counts by its own failure policy.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast, get_args
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from chatd.domain.chat.messages import (
    CallHooks,
    Draft,
    HookVerdict,
    Message,
    local_calls,
    notice_draft,
)
from chatd.domain.chat.parts import TextPart, ToolCallPart
from chatd.domain.chat.person_commands import command_of
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.ids import MessageId
from chatd.domain.text import Json, clip, replace_surrogates
from chatd.domain.tool_policy.rules import (
    LayerName,
    PolicyAction,
    PolicyLayer,
    ToolPolicy,
    ToolRule,
)
from chatd.domain.workspace.entities import TemplateId

HookEvent = Literal["turn_start", "before_tool", "after_tool", "step", "turn_end"]
HOOK_EVENTS: Final[tuple[HookEvent, ...]] = get_args(HookEvent)
FailurePolicy = Literal["open", "closed"]
HookDecision = Literal["allow", "ask", "deny"]

MAX_HOOKS: Final = 20
"""Of the deployment, and of each template."""
MAX_HOOK_NAME_CHARS: Final = 64
MIN_HOOK_TIMEOUT_MS: Final = 100
MAX_HOOK_TIMEOUT_MS: Final = 30_000
DEFAULT_HOOK_TIMEOUT_MS: Final = 5_000
MAX_HOOK_REPLY_BYTES: Final = 128 * 1024
MAX_CHANGED_ARGS_BYTES: Final = 64 * 1024
"""Of one call. They are kept in the row of the chat until the call has its result."""
MAX_HOOK_REASON_CHARS: Final = 1000
MAX_SENT_TEXT_CHARS: Final = 32_000
"""Of a result or an answer in a request to a hook."""
MAX_SHOWN_ARGS_CHARS: Final = 2000

_LAYERS: Final[tuple[LayerName, ...]] = ("deployment", "template")
_OWNERS: Final[Mapping[str, str]] = {"deployment": "server", "template": "workspace's template"}
_STRICTNESS: Final[Mapping[str, int]] = {"allow": 1, "ask": 2, "deny": 3}
_ACTIONS: Final[Mapping[str, PolicyAction]] = {"allow": "auto", "ask": "ask", "deny": "deny"}


class Hook(Struct, frozen=True, kw_only=True):
    """`template_id`: only chats with a workspace of this template ask it. Hooks are asked in the
    order of `position`, those of the deployment first."""

    id: UUID
    name: str
    url: str
    events: tuple[HookEvent, ...]
    failure: FailurePolicy = "closed"
    timeout_ms: int = DEFAULT_HOOK_TIMEOUT_MS
    template_id: TemplateId | None = None
    enabled: bool = True

    @property
    def layer(self) -> LayerName:
        return "deployment" if self.template_id is None else "template"

    @property
    def title(self) -> str:
        return f"hook «{self.name}» of the {_OWNERS[self.layer]}"


class HookReply(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a receiver answered. An empty body is no opinion. Unknown fields are refused: a
    misspelt «decision» must not count as none."""

    decision: HookDecision | None = None
    reason: str = ""
    arguments: dict[str, Any] | None = None


class HookRefused(Struct, frozen=True, kw_only=True):
    """A hook that denies, or a closed one that could not be asked, ends what it was asked for."""

    hook: Hook
    reason: str
    failed: bool = False

    @property
    def error(self) -> ChatError:
        if self.failed:
            return ChatError(
                kind="hook_failed",
                message=f"The {self.hook.title} could not be asked, and nothing runs without it.",
                detail=self.reason,
                retryable=True,
            )
        why = f" {self.reason}" if self.reason else ""
        return ChatError(kind="hook_denied", message=f"The {self.hook.title} refused.{why}")


_REPLY: Final = msgspec.json.Decoder(HookReply)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is given twice")
    return found


def read_reply(body: bytes, event: HookEvent) -> HookReply:
    """Raises ValueError with what is wrong: such a reply counts as a failure."""
    if len(body) > MAX_HOOK_REPLY_BYTES:
        raise ValueError("its answer is too long")
    if not body.strip():
        return HookReply()
    try:
        json.loads(body, object_pairs_hook=_unique)
        reply = _REPLY.decode(body)
    except RecursionError:
        raise ValueError("its answer is nested too deeply") from None
    except (UnicodeError, ValueError) as error:
        raise ValueError(f"its answer cannot be read: {clip(str(error), 200)}") from None
    if reply.arguments is not None and event != "before_tool":
        raise ValueError("only before a tool call can arguments be changed")
    if reply.decision == "ask" and event != "before_tool":
        raise ValueError("only before a tool call can a person be asked")
    if reply.arguments is not None and len(_encode(reply.arguments)) > MAX_CHANGED_ARGS_BYTES:
        raise ValueError(f"the arguments have more than {MAX_CHANGED_ARGS_BYTES:,} bytes")
    return replace(
        reply, reason=clip(replace_surrogates(reply.reason).strip(), MAX_HOOK_REASON_CHARS)
    )


def _encode(value: object) -> bytes:
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise ValueError("its answer has a lone surrogate") from None
    if b"\\u0000" in encoded:
        raise ValueError("its answer has a NUL character")
    return encoded


def ask_id(hook: Hook, chat: Chat, event: HookEvent, key: str) -> str:
    """The same whenever the same thing is asked again, also by another worker."""
    text = f"{hook.id}:{chat.id}:{event}:{key}"
    return f"hook_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def ask_body(chat: Chat, event: HookEvent, data: Mapping[str, object]) -> bytes:
    """Without a time, so that the same question has the same bytes."""
    facts: dict[str, object] = {
        "chat_id": chat.id,
        "root_chat_id": chat.root_chat_id,
        "owner_id": chat.owner_id,
        "workspace_id": chat.workspace_id,
        "title": chat.title,
        "labels": chat.labels,
    }
    return msgspec.json.encode({"type": event, "data": facts | dict(data)})


# Before and after a tool call


def call_facts(call: ToolCallPart) -> dict[str, object]:
    """Arguments that are no JSON are sent as a text: a client may read them all the same."""
    unread = None if call.args_text is None else replace_surrogates(call.args_text)
    return {
        "tool_call_id": call.tool_call_id,
        "tool_name": call.tool_name,
        "arguments": call.args if call.args is not UNSET else unread,
    }


def add_answer(found: CallHooks, hook: Hook, answer: HookReply | str) -> CallHooks:
    """With the answer of one more hook; a text says why it gave none. A closed hook that fails
    counts as a denial."""
    if isinstance(answer, str):
        verdict = HookVerdict(
            hook=hook.name,
            layer=hook.layer,
            decision="deny" if hook.failure == "closed" else "",
            reason="It could not be asked, and no call runs without it."
            if hook.failure == "closed"
            else "",
            failed=clip(replace_surrogates(answer), 300) or "It failed.",
        )
        return replace(found, verdicts=(*found.verdicts, verdict))
    verdict = HookVerdict(
        hook=hook.name,
        layer=hook.layer,
        decision=answer.decision or "",
        reason=answer.reason,
        changed=answer.arguments is not None,
    )
    args = found.args if answer.arguments is None else Raw(_encode(answer.arguments))
    return CallHooks(verdicts=(*found.verdicts, verdict), args=args)


def is_denied(found: CallHooks) -> bool:
    return any(verdict.decision == "deny" for verdict in found.verdicts)


def with_hooks(
    layers: Sequence[PolicyLayer], tool_name: str, hooks: CallHooks | None
) -> tuple[PolicyLayer, ...]:
    """The tool policy for one call, with what hooks answered about it. Each answer is a rule of
    the hook's layer that is narrower than all others, so that the order of the policy decides:
    a denial wins, and a narrower layer cannot loosen what the deployment asks for. Of several
    hooks in a layer the strictest counts."""
    if hooks is None:
        return tuple(layers)
    known = {layer.name: layer for layer in layers}
    for name in _LAYERS:
        own = [one for one in hooks.verdicts if one.layer == name and one.decision in _ACTIONS]
        if not own:
            continue
        strictest = max(own, key=lambda one: _STRICTNESS[one.decision])
        reason = f"Hook «{strictest.hook}»: {strictest.reason}" if strictest.reason else ""
        rule = ToolRule(
            tool=tool_name,
            action=_ACTIONS[strictest.decision],
            reason=reason or f"Hook «{strictest.hook}» says so.",
        )
        layer = known.get(name, PolicyLayer(name=name, policy=ToolPolicy()))
        known[name] = replace(layer, verdict=rule)
    order: tuple[LayerName, ...] = get_args(LayerName)
    return tuple(known[name] for name in order if name in known)


def effective_args(call: ToolCallPart, hooks: CallHooks | None) -> ToolCallPart:
    """The call as it runs."""
    if hooks is None or hooks.args is UNSET:
        return call
    return replace(call, args=hooks.args)


def hook_notices(call_name: str, call_id: str, hooks: CallHooks | None) -> list[Draft]:
    """What people are told beside the result of a call. A denial and a question tell their own
    reason."""
    found: list[Draft] = []
    for verdict in () if hooks is None else hooks.verdicts:
        detail = {"hook": verdict.hook, "tool": call_name, "tool_call_id": call_id}
        if verdict.changed:
            args = _shown_args(hooks.args) if hooks is not None else ""
            why = f" {verdict.reason}" if verdict.reason else ""
            text = f"Hook «{verdict.hook}» changed the arguments of {call_name} to {args}.{why}"
            found.append(notice_draft("hook_changed", text, detail))
        elif verdict.failed and verdict.decision != "deny":
            text = (
                f"Hook «{verdict.hook}» could not be asked before {call_name}: {verdict.failed}"
                " The call went on, as the hook's failure policy says."
            )
            found.append(notice_draft("hook_failed", text, detail))
    return found


def _shown_args(args: Json) -> str:
    text = "{}" if args is UNSET else bytes(args).decode("utf-8", "replace")
    return clip(text, MAX_SHOWN_ARGS_CHARS)


def unrun_text(refused: HookRefused) -> str:
    """The result of a call of a step that was refused before any call of it ran."""
    if refused.failed:
        return f"Not run: the {refused.hook.title} could not be asked about this step."
    why = f" {refused.reason}" if refused.reason else ""
    return f"Not run: the {refused.hook.title} refused this step.{why}"


def withheld_text(refused: HookRefused) -> str:
    """The result of a call that ran and whose result a hook keeps from the model."""
    if refused.failed:
        return (
            f"The call ran, but its result is withheld: the {refused.hook.title} could not be"
            " asked. Do not repeat the call; say that its result cannot be shown."
        )
    why = f" {refused.reason}" if refused.reason else ""
    return (
        f"The call ran, but the {refused.hook.title} withholds its result.{why}"
        " Do not try to get the same in another way."
    )


# At a step's commit, and at the end of a turn


def step_facts(turn: Sequence[Message]) -> dict[str, object]:
    """The newest answer of the turn, and the results after it."""
    start = max((i for i, row in enumerate(turn) if row.role == "assistant"), default=0)
    rows = [row for row in turn[start:] if not row.is_notice]
    calls = [call for row in rows for call in local_calls(row.content)]
    return {
        "message_ids": [row.id for row in rows],
        "text": answer_text(rows),
        "calls": [{"tool_call_id": one.tool_call_id, "tool_name": one.tool_name} for one in calls],
    }


def answer_text(rows: Sequence[Message]) -> str:
    """What the newest answer among these rows says."""
    answer = next((row for row in reversed(rows) if row.role == "assistant"), None)
    return "" if answer is None else _text_of(answer)


def find_prompt(rows: Sequence[Message]) -> tuple[MessageId | None, str]:
    """The newest message of a user, with its id: the one that began the turn, or joined it."""
    prompt = next((row for row in reversed(rows) if row.starts_turn and not row.deleted), None)
    return (None, "") if prompt is None else (prompt.id, _text_of(prompt))


def _text_of(row: Message) -> str:
    command = command_of(row)
    said = [part.text for part in row.content if isinstance(part, TextPart)]
    joined = "\n".join(said if command is None else [f"! {command}"])
    return clip(replace_surrogates(joined), MAX_SENT_TEXT_CHARS)


def decode_events(values: Sequence[str]) -> tuple[HookEvent, ...]:
    """As stored; one of a newer version is left out."""
    return cast("tuple[HookEvent, ...]", tuple(one for one in values if one in HOOK_EVENTS))
