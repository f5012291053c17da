"""Hooks through whole turns, with a real receiver: what they are asked, what their answers do, and
that a crash asks again under the same id."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from uuid import UUID

import msgspec
import pytest
from aiohttp import web
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.hooks import (
    MAX_HOOK_REPLY_BYTES,
    FailurePolicy,
    Hook,
    HookEvent,
)
from chatd.domain.deployment.webhooks import decode_secret, encode_secret
from chatd.domain.ports import Env, ToolContext
from chatd.domain.tool_policy.rules import ToolRule
from chatd.engine.hooks import (
    MAX_CALLS_OF_HOOK,
    MAX_HOOKS_AT_ONCE,
    HookCaller,
    TurnHooks,
)
from chatd.sealed_secrets import KeyRing, SecretKey
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool
from chatd.store.deployment import hooks as stored_hooks
from chatd.store.deployment.hooks import HOOK_SECRET
from tests.engine.test_approvals import approve
from tests.engine.test_tool_runner import CLIENT_TOOLS
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool

KEY: Final = SecretKey(bytes(32))
RING: Final = KeyRing([KEY], KEY.id)
SECRET: Final = encode_secret(bytes(range(32)))
Body = dict[str, Any]
Answer = Callable[[Body], web.StreamResponse]


def turn_hooks(pool: Pool, changes: ConfigChanges, env: Env) -> TurnHooks:
    return TurnHooks(pool, changes, env, HookCaller(RING, env, allow_private=True))


class Receiver:
    """Answers each request as scripted, then with an empty body. With `gate` cleared it waits."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[object] = []
        self.got: list[tuple[Mapping[str, str], Body]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}."
        digest = hmac.digest(decode_secret(SECRET), signed.encode() + raw, hashlib.sha256)
        assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append((headers, msgspec.json.decode(raw)))
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.json_response(answer) if answer is not None else web.Response(status=204)

    @property
    def ids(self) -> list[str]:
        return [headers["idempotency-key"] for headers, _ in self.got]

    @property
    def types(self) -> list[str]:
        return [body["type"] for _, body in self.got]

    async def wait_asked(self, count: int) -> None:
        async def is_there() -> bool:
            return len(self.got) >= count

        await eventually(is_there)


@asynccontextmanager
async def hooked_rig(
    dsn: str,
    *events: HookEvent,
    failure: FailurePolicy = "closed",
    timeout_ms: int = 30_000,
    **options: object,
) -> AsyncGenerator[tuple[EngineRig, Receiver]]:
    """A replica with one hook of the deployment at these events."""
    found = Receiver()
    app = web.Application()
    app.router.add_post("/hook", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    found.url = f"http://{host}:{port}/hook"
    try:
        async with engine_rig(dsn, **{"hooks": turn_hooks, **options}) as rig:
            await add_hook(rig, found.url, events, failure=failure, timeout_ms=timeout_ms)
            yield rig, found
    finally:
        found.gate.set()
        await runner.cleanup()


async def add_hook(
    rig: EngineRig,
    url: str,
    events: tuple[HookEvent, ...],
    *,
    name: str = "policy",
    failure: FailurePolicy = "closed",
    timeout_ms: int = 30_000,
) -> None:
    await rig.pool.execute(
        "INSERT INTO secret_keys (id, check_value, state) VALUES ($1, '', 'current')"
        " ON CONFLICT DO NOTHING",
        KEY.id,
    )
    hook = Hook(
        id=rig.replica.env.new_id(),
        name=name,
        url=url,
        events=events,
        failure=failure,
        timeout_ms=timeout_ms,
    )
    sealed = RING.seal(SECRET, HOOK_SECRET.context(hook.id))
    async with rig.pool.transaction() as session:
        await stored_hooks.insert(session, HARNESS, hook, sealed)


async def run_call(rig: EngineRig, args: str = '{"say":"a"}') -> Chat:
    """A turn with one call of `echo` and an answer after it, until nothing runs."""
    rig.call_tools(("c1", "echo", args))
    rig.answer("done")
    return await rig.wait_chat_task_left(await rig.create("go"))


async def audited(rig: EngineRig) -> list[str]:
    rows = await rig.pool.fetch(
        "SELECT action FROM audit_log WHERE object_type = 'hook' AND action <> 'hook.create'"
        " ORDER BY id"
    )
    return [row["action"] for row in rows]


async def test_a_hook_that_allows_changes_nothing_and_is_asked_once(dsn: str) -> None:
    tool = GatedTool()
    async with hooked_rig(dsn, "before_tool", tools=[tool]) as (rig, receiver):
        receiver.answers = [{"decision": "allow"}]
        chat = await run_call(rig)
        assert (chat.state, tool.runs, receiver.types) == ("W", ["c1"], ["before_tool"])
        headers, body = receiver.got[0]
        assert headers["webhook-id"] == headers["idempotency-key"]
        assert body["data"]["arguments"] == {"say": "a"}
        assert (body["data"]["tool_name"], body["data"]["chat_id"]) == ("echo", str(chat.id))
        assert await audited(rig) == []


async def test_a_denied_call_does_not_run_and_the_model_is_told_why(dsn: str) -> None:
    tool = GatedTool()
    async with hooked_rig(dsn, "before_tool", tools=[tool]) as (rig, receiver):
        receiver.answers = [{"decision": "deny", "reason": "Not on a Friday."}]
        chat = await run_call(rig)
        assert tool.runs == []
        lines = await rig.transcript(chat.id)
        assert "a hook of the server denies this call. Hook «policy»: Not on a Friday." in lines[2]
        assert await audited(rig) == ["hook.deny"]


async def test_changed_arguments_run_and_are_kept_with_the_call(dsn: str) -> None:
    tool = GatedTool()
    async with hooked_rig(dsn, "before_tool", tools=[tool]) as (rig, receiver):
        receiver.answers = [{"arguments": {"say": "b"}, "reason": "Lower case only."}]
        chat = await run_call(rig)
        lines = await rig.transcript(chat.id)
        assert lines[2:] == [
            "system: notice(hook_changed)",
            "tool: result(c1) {'output': 'said {\"say\":\"b\"}'}",
            "assistant: done",
        ]
        results = [
            part
            for row in await rig.history(chat.id)
            for part in row.content
            if isinstance(part, ToolResultPart)
        ]
        assert bytes(cast("bytes", results[0].changed_args)) == b'{"say":"b"}'
        assert "changed the arguments" in str(rig.api.requests[-1].json)
        assert await audited(rig) == ["hook.change"]


async def test_a_hook_may_have_a_person_asked_who_sees_the_changed_arguments(dsn: str) -> None:
    tool = GatedTool()
    async with hooked_rig(dsn, "before_tool", tools=[tool]) as (rig, receiver):
        receiver.answers = [{"decision": "ask", "reason": "Look.", "arguments": {"say": "b"}}]
        chat = await run_call(rig)
        assert (chat.state, tool.runs) == ("A0", [])
        (call,) = chat.pending_calls
        assert bytes(cast("bytes", call.args)) == b'{"say":"b"}'
        assert (call.reason, call.always) == ("Hook «policy»: Look.", False)
        await rig.answer_calls(chat.id, approve())
        await rig.wait_state(chat.id, "W")
        assert (tool.runs, len(receiver.got)) == (["c1"], 1)


async def test_a_call_that_the_tool_policy_denies_is_not_shown_to_a_hook(dsn: str) -> None:
    tool = GatedTool()
    async with hooked_rig(dsn, "before_tool", tools=[tool]) as (rig, receiver):
        receiver.answers = [{"decision": "allow"}]
        await rig.set_policy(ToolRule(tool="echo", action="deny", args={"say": "*"}))
        await run_call(rig)
        assert (tool.runs, receiver.got) == ([], [])


HOSTILE: Final[Mapping[str, Callable[[], object]]] = {
    "500": lambda: web.Response(status=500),
    "redirect": lambda: web.Response(status=307, headers={"location": "http://127.0.0.1:1/x"}),
    "not JSON": lambda: web.Response(text="<html>"),
    "misspelt": lambda: {"decison": "deny"},
    "twice": lambda: web.Response(text='{"decision":"deny","decision":"allow"}'),
    "huge": lambda: web.Response(body=b" " * (MAX_HOOK_REPLY_BYTES + 1)),
    "deep": lambda: web.Response(text="[" * 100_000),
    "other arguments": lambda: {"arguments": [1]},
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_reply_that_cannot_be_read_counts_by_the_failure_policy(
    dsn: str, kind: str
) -> None:
    tool = GatedTool()
    async with hooked_rig(dsn, "before_tool", failure="open", tools=[tool]) as (rig, receiver):
        receiver.answers = [HOSTILE[kind]()]
        chat = await run_call(rig)
        assert tool.runs == ["c1"]
        assert "system: notice(hook_failed)" in await rig.transcript(chat.id)
        assert await audited(rig) == ["hook.fail"]
        await rig.pool.execute("UPDATE hooks SET failure = 'closed'")
        await add_hook(rig, receiver.url, ("turn_end",), name="another")  # tells of the change
        receiver.answers = [HOSTILE[kind]()]
        closed = await run_call(rig)
        assert tool.runs == ["c1"]
        assert "could not be asked, and no call runs" in (await rig.transcript(closed.id))[2]


async def test_a_slow_hook_is_given_up_in_its_own_time(dsn: str) -> None:
    tool = GatedTool()
    async with hooked_rig(dsn, "before_tool", timeout_ms=100, tools=[tool]) as (rig, receiver):
        receiver.gate.clear()
        chat = await run_call(rig)
        assert tool.runs == []
        assert "could not be asked" in (await rig.transcript(chat.id))[2]


async def test_an_address_that_is_not_public_is_not_asked(dsn: str) -> None:
    def guarded(pool: Pool, changes: ConfigChanges, env: Env) -> TurnHooks:
        return TurnHooks(pool, changes, env, HookCaller(RING, env, allow_private=False))

    tool = GatedTool()
    async with hooked_rig(dsn, "before_tool", tools=[tool], hooks=guarded) as (rig, receiver):
        await run_call(rig)
        failed = await rig.events.wait("hook_failed")
        assert "hooks.private_addresses" in str(failed["error"])
        assert (tool.runs, receiver.got) == ([], [])


async def test_a_worker_lost_between_hook_and_call_asks_again_under_the_same_id(dsn: str) -> None:
    tool = GatedTool()
    async with hooked_rig(dsn, "before_tool", tools=[tool]) as (rig, receiver):
        receiver.gate.clear()
        rig.call_tools(("c1", "echo", "{}"))
        rig.answer("done")
        chat_id = await rig.create("go")
        await receiver.wait_asked(1)
        await rig.reap_owner(chat_id)
        await receiver.wait_asked(2)
        receiver.answers = [{"decision": "allow"}, {"decision": "allow"}]
        receiver.gate.set()
        await rig.wait_state(chat_id, "W")
        assert tool.runs == ["c1"]
        assert len(receiver.ids) == 2
        assert len(set(receiver.ids)) == 1
        assert receiver.got[0][1] == receiver.got[1][1]


async def test_an_answer_that_is_committed_counts_once_for_every_worker(dsn: str) -> None:
    gate = Gate()
    async with hooked_rig(dsn, "before_tool", tools=[GatedTool(gate=gate)]) as (rig, receiver):
        receiver.answers = [{"arguments": {"say": "b"}}, {"decision": "deny"}]
        rig.call_tools(("c1", "echo", '{"say":"a"}'))
        rig.answer("done")
        chat_id = await rig.create("go")
        await gate.reached.wait()
        await rig.reap_owner(chat_id)
        gate.open()
        await rig.wait_state(chat_id, "W")
        assert len(receiver.got) == 1
        assert "tool: result(c1) {'output': 'said {\"say\":\"b\"}'}" in await rig.transcript(
            chat_id
        )


async def test_events_of_a_turn_come_in_order_and_each_once(dsn: str) -> None:
    tool = GatedTool()
    events: tuple[HookEvent, ...] = ("turn_start", "before_tool", "after_tool", "step", "turn_end")
    async with hooked_rig(dsn, *events, tools=[tool]) as (rig, receiver):
        chat = await run_call(rig)
        assert chat.state == "W"
        assert receiver.types == [
            "turn_start",
            "step",
            "before_tool",
            "after_tool",
            "step",
            "step",
            "turn_end",
        ]
        assert len(set(receiver.ids)) == 7
        data = [body["data"] for _, body in receiver.got]
        assert (data[0]["text"], data[3]["result"]) == ("go", 'said {"say":"a"}')
        assert (data[6]["reason"], data[6]["text"]) == ("complete", "done")


async def test_a_hook_refuses_a_turn_before_the_model_is_called(dsn: str) -> None:
    async with hooked_rig(dsn, "turn_start") as (rig, receiver):
        receiver.answers = [{"decision": "deny", "reason": "Office hours are over."}]
        chat = await rig.wait_chat_task_left(await rig.create("go"))
        assert chat.state == "E0"
        assert chat.last_error is not None
        assert chat.last_error.kind == "hook_denied"
        assert "Office hours are over." in chat.last_error.message
        assert rig.api.requests == []


async def test_a_result_that_a_hook_withholds_does_not_reach_the_model(dsn: str) -> None:
    tool = GatedTool()
    async with hooked_rig(dsn, "after_tool", tools=[tool]) as (rig, receiver):
        receiver.answers = [{"decision": "deny", "reason": "It has a secret."}]
        chat = await run_call(rig, '{"say":"hush"}')
        assert tool.runs == ["c1"]
        lines = await rig.transcript(chat.id)
        assert "withholds its result. It has a secret." in lines[2]
        assert "said {" not in str(rig.api.requests[-1].json)


async def test_calls_of_a_refused_step_never_ran_and_say_so(dsn: str) -> None:
    tool = GatedTool(effect="once")
    async with hooked_rig(dsn, "step", tools=[tool]) as (rig, receiver):
        receiver.answers = [{"decision": "deny", "reason": "Too many calls."}]
        rig.call_tools(("c1", "echo", "{}"), ("c2", "echo", "{}"))
        chat = await rig.wait_chat_task_left(await rig.create("go"))
        assert (chat.state, tool.runs, chat.pending_calls) == ("E0", [], ())
        lines = await rig.transcript(chat.id)
        refused = "Not run: the hook «policy» of the server refused this step. Too many calls."
        assert lines[-2:] == [
            f"tool: error({one}) {{'error': '{refused}'}}" for one in ("c1", "c2")
        ]
        rig.answer("I stop")
        await rig.send(chat.id, "why?")
        await rig.wait_state(chat.id, "W")
        assert "may have taken effect" not in str(rig.api.requests[-1].json)


async def test_a_step_that_is_refused_after_a_takeover_has_calls_of_unknown_outcome(
    dsn: str,
) -> None:
    """The worker before may have run them."""
    gate = Gate()
    tool = GatedTool(gate=gate, effect="once")
    async with hooked_rig(dsn, "step", tools=[tool]) as (rig, receiver):
        receiver.answers = [None, {"decision": "deny"}]
        chat_id = await rig.start_tool("go", gate)
        await rig.reap_owner(chat_id)
        gate.open()
        chat = await rig.wait_state(chat_id, "E0")
        assert len(chat.pending_calls) == 1, "nothing says that it never ran"


async def test_a_slow_hook_leaves_places_for_others(dsn: str) -> None:
    async with hooked_rig(dsn, "turn_start") as (rig, slow):
        slow.gate.clear()
        caller = HookCaller(RING, rig.replica.env, allow_private=True)
        [held] = await stored_hooks.load(rig.pool)
        async with asyncio.TaskGroup() as group:
            for number in range(MAX_HOOKS_AT_ONCE + MAX_CALLS_OF_HOOK):
                group.create_task(caller.ask(held, "turn_start", f"q{number}", b"{}"))
            await slow.wait_asked(MAX_CALLS_OF_HOOK)
            # Nobody listens there: it fails as soon as it gets a place.
            hook = replace(held.hook, id=UUID(int=77), url="http://127.0.0.1:9/hook")
            sealed = RING.seal(SECRET, HOOK_SECRET.context(hook.id))
            other = replace(held, hook=hook, sealed_secret=sealed)
            async with asyncio.timeout(20):
                answer = await caller.ask(other, "turn_start", "q", b"{}")
            assert isinstance(answer, str)
            assert "No answer" not in answer
            slow.gate.set()
        assert len(slow.got) == MAX_HOOKS_AT_ONCE + MAX_CALLS_OF_HOOK


async def test_a_deployment_without_hooks_reads_them_once_and_never_waits(dsn: str) -> None:
    sent: list[str] = []
    tool = GatedTool()
    async with engine_rig(dsn, hooks=turn_hooks, tools=[tool], on_statement=sent.append) as rig:
        await run_call(rig)
        await run_call(rig)
        assert sum(text == stored_hooks.LOAD for text in sent) == 1


class OddTool(GatedTool):
    """Its result has half of a surrogate pair, as a file name or a foreign server may have."""

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        del args
        self.runs.append(context.call_id)
        return ToolOutput(text="half \ud83d")


async def test_a_hook_is_asked_about_a_result_that_is_no_text(dsn: str) -> None:
    tool = OddTool()
    async with hooked_rig(dsn, "after_tool", tools=[tool]) as (rig, receiver):
        chat = await run_call(rig)
        assert (chat.state, tool.runs) == ("W", ["c1"])
        assert receiver.got[0][1]["data"]["result"] == "half \ufffd"


class LateTool(GatedTool):
    """Returns what it has when it is cancelled."""

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        try:
            return await super().run(context, args)
        except asyncio.CancelledError:
            return ToolOutput(text="hush")


async def test_an_interrupt_keeps_no_result_that_a_hook_has_not_passed(dsn: str) -> None:
    gate = Gate()
    tool = LateTool(gate=gate)
    async with hooked_rig(dsn, "after_tool", tools=[tool]) as (rig, _):
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.create("go")
        await gate.reached.wait()
        await rig.interrupt(chat_id)
        await rig.wait_state(chat_id, "W")
        lines = await rig.transcript(chat_id)
        assert "hush" not in str(lines)
        assert "before a hook of the server had checked its result" in lines[2]


async def test_a_client_gets_the_changed_arguments_and_the_model_is_told(dsn: str) -> None:
    async with hooked_rig(dsn, "before_tool") as (rig, receiver):
        receiver.answers = [{"arguments": {"from": "b"}}]
        rig.call_tools(("c1", "pick", '{"from":"a"}'))
        rig.answer("done")
        chat_id = await rig.create("go", client_tools=CLIENT_TOOLS)
        (call,) = (await rig.wait_state(chat_id, "A0")).pending_calls
        assert bytes(cast("bytes", call.args)) == b'{"from":"b"}'
        await rig.submit(chat_id, c1='"a page"')
        await rig.wait_state(chat_id, "W")
        assert "changed the arguments before the call ran:]" in str(rig.api.requests[-1].json)


async def test_a_hook_is_asked_about_a_clients_function_whatever_its_arguments_are(
    dsn: str,
) -> None:
    """A client may run it all the same."""
    async with hooked_rig(dsn, "before_tool") as (rig, receiver):
        receiver.answers = [{"decision": "deny"}]
        rig.call_tools(("c1", "pick", "{from: a}"))
        rig.answer("done")
        chat_id = await rig.create("go", client_tools=CLIENT_TOOLS)
        await rig.wait_state(chat_id, "W", "A0")
        assert receiver.got[0][1]["data"]["arguments"] == "{from: a}"
        assert "a hook of the server denies this call" in (await rig.transcript(chat_id))[2]
