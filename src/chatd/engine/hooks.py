"""Asks the hooks of the deployment and of templates while a turn waits.

The hooks are read once and kept until they change, so that a deployment without hooks pays nothing.
Each question has an id that another worker would use too, and is bounded in time and size. What a
receiver answers about a call is committed before the call runs (`TurnLoop`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

import aiohttp
from msgspec import Struct

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.messages import CallHooks
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.hooks import (
    MAX_HOOK_REPLY_BYTES,
    MAX_SENT_TEXT_CHARS,
    HookEvent,
    HookRefused,
    HookReply,
    add_answer,
    ask_body,
    ask_id,
    call_facts,
    effective_args,
    is_denied,
    read_reply,
    withheld_text,
)
from chatd.domain.deployment.webhooks import signed_headers
from chatd.domain.errors import ChatdError
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.text import clip, replace_surrogates
from chatd.domain.workspace.entities import TemplateId
from chatd.guarded_dial import guarded_session, read_bounded
from chatd.sealed_secrets import KeyRing
from chatd.store.database.conn import Conn
from chatd.store.database.notifications import ConfigChanges
from chatd.store.deployment import hooks as stored_hooks
from chatd.store.deployment.hooks import HOOK_SECRET, LoadedHook

MAX_HOOKS_AT_ONCE: Final = 64
"""Questions of one process. Others wait; their time counts from when they are sent."""
MAX_CALLS_OF_HOOK: Final = 16
"""Of them, questions to one hook: one that is slow leaves places for the others."""
MAX_KEPT_TEMPLATES: Final = 10_000
CONNECT_TRIES: Final = 2
"""A connection that could not be made is tried once more, under the same id."""
PRIVATE_HOOK_TEXT: Final = (
    "The host is not on the public internet. Set hooks.private_addresses to allow it."
)


class HookCaller:
    """Asks one hook once. Never raises for what the receiver does."""

    def __init__(self, ring: KeyRing, env: Env, *, allow_private: bool) -> None:
        self._ring = ring
        self._env = env
        self._allow_private = allow_private
        self._slots = asyncio.Semaphore(MAX_HOOKS_AT_ONCE)
        # Kept while a question uses or waits for it.
        self._own_slots: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()

    async def ask(
        self, loaded: LoadedHook, event: HookEvent, name: str, body: bytes
    ) -> HookReply | str:
        """The receiver's answer, or why there is none. `name` is the id of the question."""
        hook = loaded.hook
        try:
            secret = self._ring.open(loaded.sealed_secret, HOOK_SECRET.context(hook.id))
            now_s = int(self._env.clock.now().timestamp())
            headers = signed_headers(name, body, secret, now_s) | {"idempotency-key": name}
            own = self._own_slots.setdefault(hook.id, asyncio.Semaphore(MAX_CALLS_OF_HOOK))
            async with own, self._slots, asyncio.timeout(hook.timeout_ms / 1000):
                return read_reply(await self._send(hook.url, headers, body), event)
        except TimeoutError:
            return f"No answer within {hook.timeout_ms / 1000:g} seconds."
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return clip(" ".join(str(error).split()), 300) or type(error).__name__
        except ChatdError as error:
            return clip(error.message, 300)

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """The body of its reply. Raises OSError, ClientError, ValueError."""
        tries = CONNECT_TRIES
        while True:
            try:
                async with (
                    guarded_session(
                        allow_private=self._allow_private, refusal_text=PRIVATE_HOOK_TEXT
                    ) as http,
                    http.post(url, data=body, headers=headers, allow_redirects=False) as response,
                ):
                    if not 200 <= response.status < 300:
                        raise ValueError(f"it answered with the status {response.status}")
                    return await read_bounded(response, MAX_HOOK_REPLY_BYTES)
            except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError):
                tries -= 1
                if not tries:
                    raise


class ChatHooks(Struct, frozen=True, kw_only=True):
    """The hooks that count for one chat now, in the order in which they are asked."""

    hooks: tuple[LoadedHook, ...] = ()

    def has(self, event: HookEvent) -> bool:
        return any(event in each.hook.events for each in self.hooks)

    def of(self, event: HookEvent) -> Sequence[LoadedHook]:
        return [each for each in self.hooks if event in each.hook.events]


NO_HOOKS: Final = ChatHooks()


class TurnHooks:
    def __init__(self, conn: Conn, changes: ConfigChanges, env: Env, caller: HookCaller) -> None:
        self._conn = conn
        self._changes = changes
        self._env = env
        self._caller = caller
        self._generation = 0
        self._known: tuple[LoadedHook, ...] | None = None
        self._templates: OrderedDict[WorkspaceId, TemplateId] = OrderedDict()
        changes.subscribe(self._on_change)

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind == "hook":
            self._generation += 1
            self._known = None

    @property
    def has_none(self) -> bool:
        """Known without a look into the database: a turn then need not wait for `load`."""
        return self._changes.is_current and self._known == ()

    async def load(self, chat: Chat) -> ChatHooks:
        """Raises Unavailable."""
        known = self._known if self._changes.is_current else None
        if known is None:
            generation = self._generation
            known = tuple(await stored_hooks.load(self._conn))
            if generation == self._generation:
                self._known = known
        if not known:
            return NO_HOOKS
        template = None
        if any(each.hook.template_id is not None for each in known):
            template = await self._template_of(chat)
        return ChatHooks(
            hooks=tuple(each for each in known if each.hook.template_id in (None, template))
        )

    async def _template_of(self, chat: Chat) -> TemplateId | None:
        """A workspace keeps its template."""
        if chat.workspace_id is None:
            return None
        found = self._templates.get(chat.workspace_id)
        if found is None:
            found = await stored_hooks.template_of(self._conn, chat.workspace_id)
            if found is not None:
                self._templates[chat.workspace_id] = found
                if len(self._templates) > MAX_KEPT_TEMPLATES:
                    self._templates.popitem(last=False)
        return found

    async def check(
        self,
        hooks: ChatHooks,
        chat: Chat,
        event: HookEvent,
        key: str,
        facts: Mapping[str, object],
    ) -> HookRefused | None:
        """Ask all hooks of an event that decides about no call. The first one that refuses counts,
        and no other is asked then. Raises Unavailable."""
        body = ask_body(chat, event, facts)
        for loaded in hooks.of(event):
            hook = loaded.hook
            answer = await self._ask(chat, loaded, event, key, body)
            if isinstance(answer, str):
                await self._record(loaded, chat, "hook.fail", {"event": event, "reason": answer})
                if hook.failure == "closed":
                    return HookRefused(hook=hook, reason=answer, failed=True)
            elif answer.decision == "deny":
                await self._record(
                    loaded, chat, "hook.deny", {"event": event, "reason": answer.reason}
                )
                return HookRefused(hook=hook, reason=answer.reason)
        return None

    async def before_call(self, hooks: ChatHooks, chat: Chat, call: ToolCallPart) -> CallHooks:
        """What all hooks say about a call. Each sees the arguments that the one before it left; a
        denial ends the asking. Raises Unavailable."""
        found, event = CallHooks(), "before_tool"
        key = f"{chat.history_version}:{call.tool_call_id}"
        for loaded in hooks.of(event):
            body = ask_body(chat, event, call_facts(effective_args(call, found)))
            answer = await self._ask(chat, loaded, event, key, body)
            found = add_answer(found, loaded.hook, answer)
            verdict = found.verdicts[-1]
            detail = {
                "tool": call.tool_name,
                "tool_call_id": call.tool_call_id,
                "reason": verdict.failed or verdict.reason,
            }
            if verdict.failed:
                await self._record(loaded, chat, "hook.fail", detail)
            if verdict.changed:
                await self._record(loaded, chat, "hook.change", detail)
            if verdict.decision in ("ask", "deny") and not verdict.failed:
                await self._record(loaded, chat, f"hook.{verdict.decision}", detail)
            if is_denied(found):
                break
        return found

    async def after_call(
        self, hooks: ChatHooks, chat: Chat, call: ToolCallPart, output: ToolOutput
    ) -> ToolOutput:
        """The result, or an error in its place if a hook withholds it. Raises Unavailable."""
        if not hooks.has("after_tool"):
            return output
        facts = call_facts(call) | {
            "result": clip(replace_surrogates(output.text), MAX_SENT_TEXT_CHARS),
            "is_error": output.is_error,
        }
        key = f"{chat.history_version}:{call.tool_call_id}"
        refused = await self.check(hooks, chat, "after_tool", key, facts)
        return output if refused is None else error_output(withheld_text(refused))

    async def _ask(
        self, chat: Chat, loaded: LoadedHook, event: HookEvent, key: str, body: bytes
    ) -> HookReply | str:
        hook, began = loaded.hook, self._env.clock.monotonic()
        answer = await self._caller.ask(loaded, event, ask_id(hook, chat, event, key), body)
        duration_ms = round((self._env.clock.monotonic() - began) * 1000)
        facts = {"chat_id": chat.id, "hook": hook.name, "hook_event": event}
        if isinstance(answer, str):
            self._env.emit("hook_failed", **facts, error=answer, duration_ms=duration_ms)
        else:
            decision = answer.decision or "none"
            self._env.emit("hook_answered", **facts, decision=decision, duration_ms=duration_ms)
        return answer

    async def _record(
        self, loaded: LoadedHook, chat: Chat, action: str, detail: Mapping[str, object]
    ) -> None:
        """Before the commit that the answer leads to: it is rather there twice than not at all."""
        await stored_hooks.record_answer(self._conn, loaded.hook, chat, action, detail)
