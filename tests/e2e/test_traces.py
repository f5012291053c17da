"""Traces and metrics of a real `chatd serve`, as a collector gets them over HTTP."""

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession, web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chatd.app.traces import choose_sampler, turn_trace_id
from chatd.settings.schema import OtelSettings
from tests.e2e.test_serve import address, chatd, create_chat
from tests.e2e.test_two_replicas import ask
from tests.support.chaos.servers import AUTH, TOKEN
from tests.support.eventually import eventually
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)

SECRET = "marker-of-a-message"


class Span(msgspec.Struct, frozen=True):
    name: str
    trace: bytes
    id: bytes
    parent: bytes
    attributes: dict[str, str]


class Point(msgspec.Struct, frozen=True):
    """A histogram, with its labels."""

    name: str
    labels: dict[str, str]
    count: int
    sum: float


class Collector:
    """Keeps all spans, and the last metrics."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.points: list[Point] = []
        self.bodies: list[bytes] = []

    async def take_metrics(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies.append(body)
        found = ExportMetricsServiceRequest.FromString(body)
        self.points = [
            Point(
                metric.name,
                {one.key: one.value.string_value for one in point.attributes},
                point.count,
                point.sum,
            )
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.histogram.data_points
        ]
        return web.Response(content_type="application/x-protobuf")

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies.append(body)
        found = ExportTraceServiceRequest.FromString(body)
        for resource in found.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {one.key: str(one.value).strip() for one in span.attributes}
                    ids = (span.trace_id, span.span_id, span.parent_span_id)
                    self.spans.append(Span(span.name, *ids, values))
        return web.Response(content_type="application/x-protobuf")

    def named(self, name: str) -> Span:
        return next(span for span in self.spans if span.name == name)

    def has(self, *names: str) -> bool:
        return {span.name for span in self.spans} >= set(names)


class McpTools:
    """The least that an MCP server must answer over HTTP, with one tool. `told` is the place in
    the trace that each call named."""

    def __init__(self) -> None:
        self.told: list[object] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        result: dict[str, object] = {}
        match message["method"]:
            case "initialize":
                result = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "notes", "version": "1"},
                }
            case "tools/list":
                schema = {"type": "object"}
                result = {"tools": [{"name": "find", "description": "", "inputSchema": schema}]}
            case "tools/call":
                self.told.append(message["params"].get("_meta", {}).get("traceparent"))
                result = {"content": [{"type": "text", "text": f"found {SECRET}"}]}
            case _:
                error = {"code": -32601, "message": "unknown method"}
                return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})


@asynccontextmanager
async def listening() -> AsyncGenerator[tuple[str, Collector, McpTools]]:
    collector, tools = Collector(), McpTools()
    app = web.Application()
    app.add_routes(
        [
            web.post("/v1/traces", collector.take),
            web.post("/v1/metrics", collector.take_metrics),
            web.route("*", "/mcp", tools.answer),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", collector, tools
    finally:
        await runner.cleanup()


def settings(dsn: str, url: str, model_url: str) -> dict[str, str]:
    provider = {"name": "own", "kind": "openai-compat", "base_url": f"{model_url}/v1"}
    model = {"name": "m", "provider": "own", "model": "m-1", "default": True}
    mcp = {"slug": "notes", "url": f"{url}/mcp", "availability": "force_on"}
    return {
        "CHATD_DATABASE_URL": dsn,
        "CHATD_ADMIN_TOKEN": TOKEN,
        "CHATD_PROVIDERS": msgspec.json.encode([provider]).decode(),
        "CHATD_MODELS": msgspec.json.encode([model]).decode(),
        "CHATD_MCP_SERVERS": msgspec.json.encode([mcp]).decode(),
        "CHATD_MCP_PRIVATE_HOSTS": '["127.0.0.1"]',
        "CHATD_CHATS_TITLES": "false",
        "CHATD_WORKSPACES_ENABLED": "false",
        "CHATD_OTEL_TRACES": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }


def script_turn(model: FakeCompatible, *, gate: Gate | None = None) -> None:
    """A call of the MCP server's tool, and then a text."""
    function = {"name": "notes__find", "arguments": "{}"}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    model.script(chunk(tool_calls=[call]), chunk(finish="tool_calls"), DONE)
    gates = () if gate is None else (gate,)
    model.script(chunk(content=f"here: {SECRET}"), *gates, chunk(finish="stop"), DONE)


@pytest.mark.promise("P13")
async def test_a_turn_is_one_trace_with_its_model_and_tool_calls_also_after_a_kill(
    dsn: str, tmp_path: Path
) -> None:
    """Two servers, of which one is killed: that takes seconds. No text of the chat is sent."""
    async with FakeCompatible.running() as model, listening() as (url, collector, tools):
        env = settings(dsn, url, model.url)
        gate = Gate()
        script_turn(model, gate=gate)
        async with chatd("serve", "--port", 0, "--data-dir", tmp_path / "a", **env) as first:
            async with ClientSession(await address(first), headers=AUTH) as http:
                chat = await create_chat(http, f"find {SECRET}")
            await gate.reached.wait()

            async def has_tool() -> bool:
                return collector.has("execute_tool notes__find", "step RunTools")

            await eventually(has_tool, within_s=30)
            first.send_signal(signal.SIGKILL)
            await first.wait()
        model.script(chunk(content="again"), chunk(finish="stop"), DONE)
        async with chatd("serve", "--port", 0, "--data-dir", tmp_path / "b", **env) as second:
            async with ClientSession(await address(second), headers=AUTH) as http:

                async def is_done() -> bool:
                    return (await ask(http, "GET", f"/chats/{chat}"))[1]["status"] == "waiting"

                await eventually(is_done, within_s=60)
            second.send_signal(signal.SIGTERM)
            await second.communicate()
            assert second.returncode == 0
    tool, run = collector.named("execute_tool notes__find"), collector.named("step RunTools")
    sent = collector.named("MCP send tools/call find")
    turn = collector.named("invoke_agent chatd")  # of the second server: the first was killed
    calls = [span for span in collector.spans if span.name == "chat m-1"]
    assert {span.trace for span in (tool, run, sent, turn, *calls)} == {turn.trace}
    assert (tool.parent, sent.parent) == (run.id, tool.id)
    steps = {span.id: span for span in collector.spans if span.name == "step Generate"}
    assert len(calls) == 2
    assert all(call.parent in steps for call in calls)
    assert steps[calls[-1].parent].parent == turn.id
    assert turn.attributes["gen_ai.conversation.id"] == f'string_value: "{chat}"'
    assert calls[0].attributes["gen_ai.request.model"] == 'string_value: "m-1"'
    assert tools.told == [f"00-{sent.trace.hex()}-{sent.id.hex()}-01"]
    assert not any(SECRET.encode() in body for body in collector.bodies)


async def test_a_collector_that_is_away_delays_no_turn_and_no_stop(
    dsn: str, tmp_path: Path
) -> None:
    async with FakeCompatible.running() as model, listening() as (url, _, _):
        model.script(chunk(content="fine"), chunk(finish="stop"), DONE)
        env = settings(dsn, url, model.url) | {"CHATD_OTEL_ENDPOINT": "http://127.0.0.1:1"}
        async with chatd("serve", "--port", 0, "--data-dir", tmp_path, **env) as process:
            async with ClientSession(await address(process), headers=AUTH) as http:
                chat = await create_chat(http, "hello")

                async def is_done() -> bool:
                    return (await ask(http, "GET", f"/chats/{chat}"))[1]["status"] == "waiting"

                await eventually(is_done, within_s=60)
            process.send_signal(signal.SIGTERM)
            _, err = await process.communicate()
            assert process.returncode == 0
            assert err.count(b"traces_not_sent") <= 1


@pytest.mark.promise("P13")
async def test_metrics_count_every_call_also_of_turns_that_are_not_sampled(
    dsn: str, tmp_path: Path
) -> None:
    """With a share of nothing no span is sent, and an MCP server is told so."""
    async with FakeCompatible.running() as model, listening() as (url, collector, tools):
        script_turn(model)
        more = {"CHATD_OTEL_SAMPLE": "0", "CHATD_OTEL_METRICS": "true"}
        env = settings(dsn, url, model.url) | more
        async with chatd("serve", "--port", 0, "--data-dir", tmp_path, **env) as process:
            async with ClientSession(await address(process), headers=AUTH) as http:
                chat = await create_chat(http, f"find {SECRET}")

                async def is_done() -> bool:
                    return (await ask(http, "GET", f"/chats/{chat}"))[1]["status"] == "waiting"

                await eventually(is_done, within_s=60)
            process.send_signal(signal.SIGTERM)  # sends what is left
            await process.communicate()
    calls = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m-1",
    }
    found = {(one.name, one.labels.get("gen_ai.token.type")): one for one in collector.points}
    duration = found["gen_ai.client.operation.duration", None]
    assert (duration.labels, duration.count) == (calls, 2)
    assert duration.sum > 0
    for kind in ("input", "output"):
        tokens = found["gen_ai.client.token.usage", kind]
        assert (tokens.labels, tokens.count) == ({**calls, "gen_ai.token.type": kind}, 2)
        assert tokens.sum > 0
    assert collector.spans == []
    assert [str(place)[-3:] for place in tools.told] == ["-00"]
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_all_workers_of_a_turn_decide_alike_whether_it_is_traced() -> None:
    """By the id of the trace, which follows from the turn."""
    names = [f"chat:{number}" for number in range(1000)]

    def traced(share: float) -> set[str]:
        sampler = choose_sampler(OtelSettings(traces=True, sample=share))
        assert sampler is not None
        decisions = {name: sampler.should_sample(None, turn_trace_id(name), "") for name in names}
        return {name for name, told in decisions.items() if told.decision.is_sampled()}

    tenth, half = traced(0.1), traced(0.5)
    assert traced(0.1) == tenth < half
    assert (len(traced(0)), len(traced(1))) == (0, len(names))
    assert 50 < len(tenth) < 150
    assert 400 < len(half) < 600
    off = choose_sampler(OtelSettings(metrics=True))
    assert off is not None
    assert not off.should_sample(None, turn_trace_id("a"), "").decision.is_sampled()
