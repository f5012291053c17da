"""Events become a count, a log line of the right level, and nothing else."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from chatd.app.telemetry import (
    SLOW_STATEMENT_LOG_INTERVAL_S,
    SlowStatements,
    Telemetry,
    explained,
)
from tests.support.clock import FakeClock


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def emit(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> Telemetry:
    caplog.set_level(logging.DEBUG, "chatd")
    return Telemetry(registry)


def test_an_event_is_counted_with_its_failure_and_its_time(
    emit: Telemetry, registry: CollectorRegistry
) -> None:
    emit("model_failed", error_kind="overloaded", provider="house")
    emit("tool_finished", tool="echo", duration_ms=20)
    assert registry.get_sample_value("chatd_events_total", {"event": "model_failed"}) == 1
    failure = {"event": "model_failed", "kind": "overloaded"}
    assert registry.get_sample_value("chatd_errors_total", failure) == 1
    of_whom = {"provider": "house", "kind": "overloaded"}
    assert registry.get_sample_value("chatd_model_failures_total", of_whom) == 1
    took = {"event": "tool_finished"}
    assert registry.get_sample_value("chatd_duration_seconds_sum", took) == 0.02


@pytest.mark.parametrize(
    ("event", "fields", "level"),
    [
        ("chat_task_failed", {"error_kind": "X"}, "ERROR"),
        ("heartbeat_failed", {"error_kind": "database_down"}, "WARNING"),
        ("heartbeat_failed", {"error_kind": "database_down", "failures": 2}, "DEBUG"),
        ("database_recovered", {"failed_ticks": 7}, "INFO"),
        ("drain_started", {"running": 2}, "INFO"),
        ("drain_started", {"running": 0}, "DEBUG"),
        ("drain_finished", {"released": 0}, "DEBUG"),
        ("worker_failed", {"error": ValueError("oh")}, "ERROR"),
        ("feed_failed", {"error_kind": "database_down"}, "DEBUG"),
        ("tail_failed", {"error_kind": "database_down", "failures": 1}, "WARNING"),
        ("tail_failed", {"error_kind": "database_down", "failures": 2}, "DEBUG"),
        ("workers_reaped", {"workers": 1, "chats": 3}, "WARNING"),
        ("chat_taken_over", {"epoch": 2}, "INFO"),
        ("workspace_down", {"workspace_id": 1}, "WARNING"),
        ("agent_disconnected", {"agent_id": 1}, "WARNING"),
        ("agent_check_missed", {"agent_id": 1, "reason": "agent_lost"}, "DEBUG"),
        ("build_ended", {"build_id": 1, "status": "failed"}, "INFO"),
        ("build_crashed", {"error": ValueError("oh")}, "ERROR"),
        ("build_worker_failed", {"error": ValueError("oh")}, "ERROR"),
        ("build_worker_waiting", {"error_kind": "database_down"}, "DEBUG"),
        ("anything_else", {}, "DEBUG"),
        ("anything_else", {"error_kind": "X"}, "WARNING"),
        ("anything_else", {"error": ValueError("oh")}, "WARNING"),
    ],
)
def test_each_event_has_its_level(
    emit: Telemetry,
    caplog: pytest.LogCaptureFixture,
    event: str,
    fields: dict[str, object],
    level: str,
) -> None:
    emit(event, **fields)
    assert [(record.levelname, record.getMessage().split()[0]) for record in caplog.records] == [
        (level, event)
    ]


def test_a_bug_is_logged_with_its_traceback_and_other_failures_without(
    emit: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    emit("chat_task_crashed", error=ValueError("oh"))
    emit("tool_failed", error=ValueError("oh"))
    assert [record.exc_info is not None for record in caplog.records] == [True, False]


@pytest.mark.parametrize(
    "event",
    [
        "agent_disconnected",
        "build_abandoned",
        "build_crashed",
        "build_worker_failed",
        "context_rejected",
        "orphan_not_removed",
        "workspace_down",
        "workspace_overdue",
    ],
)
def test_what_happens_to_workspaces_is_told_in_words(event: str) -> None:
    assert explained(event=event, fields={}).explanation


def test_an_operator_is_told_in_words_what_a_takeover_is() -> None:
    line = explained(event="workers_reaped", fields={"workers": 1, "chats": 3})
    assert str(line) == (
        "workers_reaped workers=1 chats=3"
        " (a replica died or lost its connection; its chats were released)"
    )


def test_the_explanation_names_a_full_disk_for_every_event() -> None:
    for event in ("commit_delayed", "heartbeat_failed", "anything"):
        line = explained(event=event, fields={"error_kind": "database_full"})
        assert "disk is full" in str(line)
    away = explained(event="commit_delayed", fields={"error_kind": "database_down"})
    assert "slow or away" in str(away)


def test_recorded_usage_is_counted_by_model() -> None:
    registry = CollectorRegistry()
    emit = Telemetry(registry)
    for cost in (1_500_000, 0):
        emit(
            "usage_recorded",
            provider="p",
            model="m",
            input_tokens=10,
            output_tokens=2,
            cache_read_tokens=0,
            cache_creation_tokens=1,
            cost_micros=cost,
        )
    model = {"provider": "p", "model": "m"}
    counts = {
        kind: registry.get_sample_value("chatd_tokens_total", {**model, "kind": kind})
        for kind in ("input", "output", "cache_read", "cache_creation")
    }
    assert counts == {"input": 20, "output": 4, "cache_read": None, "cache_creation": 2}
    assert registry.get_sample_value("chatd_cost_usd_total", model) == 1.5


def test_prompts_that_do_not_extend_the_previous_one_are_counted_by_cause() -> None:
    registry = CollectorRegistry()
    emit = Telemetry(registry)
    for cause, lost in (("none", 0), ("tools", 700), ("tools", 300)):
        emit("prompt_extended", cause=cause, lost_tokens=lost)
    for name, expected in (("chatd_prompts_total", 2), ("chatd_prompt_lost_tokens_total", 1000)):
        assert registry.get_sample_value(name, {"cause": "tools"}) == expected


def test_a_slow_statement_is_counted_each_time_and_logged_once_a_minute(
    emit: Telemetry, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    slow = SlowStatements(registry, emit, clock)
    assert slow.watch(0.0) is None
    for _ in range(3):
        slow.report("SELECT 1", 2.5)
    clock.advance(SLOW_STATEMENT_LOG_INTERVAL_S)
    slow.report("SELECT 1", 2.5)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "DEBUG", "DEBUG", "WARNING"]
    name = {"statement": "SELECT 1"}
    assert registry.get_sample_value("chatd_slow_statements_total", name) == 4
