"""An effect happens once: in one boot, over restarts, and wherever a crash cuts the journal."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from chatd.agent.durable_files import open_log_file
from chatd.agent.effect_guards import MAX_RESULT_BYTES, IdempotencyJournal
from chatd.agent.errors import AgentError
from tests.support.outcomes import raised

Json = dict[str, object]
TIMEOUT_S = 30


class CountedEffect:
    """Counts its runs; waits for `gate` if there is one."""

    def __init__(self, result: Json | None = None, gate: asyncio.Event | None = None) -> None:
        self.count = 0
        self.begun = asyncio.Event()
        self._result: Json = {"n": 1} if result is None else result
        self._gate = gate

    async def __call__(self) -> Json:
        self.count += 1
        self.begun.set()
        if self._gate is not None:
            await self._gate.wait()
        return self._result


def failing_effect(error: Exception) -> Callable[[], Coroutine[None, None, Json]]:
    async def effect() -> Json:
        raise error

    return effect


async def fail_if_run() -> Json:
    raise AssertionError("the effect was repeated")


async def repeat_error_code(journal: IdempotencyJournal, key: str) -> str:
    refusal = await raised(AgentError, journal.run_once(key, "test", fail_if_run))
    assert refusal.status == 409
    return refusal.code


def open_journal(run_dir: Path, **options: Any) -> IdempotencyJournal:
    return IdempotencyJournal(open_log_file(str(run_dir), "once.jsonl"), **options)


def read_records(run_dir: Path) -> list[Json]:
    return [json.loads(line) for line in (run_dir / "once.jsonl").read_text().splitlines()]


async def test_a_repeated_key_returns_the_first_result(tmp_path: Path) -> None:
    journal, effect = open_journal(tmp_path), CountedEffect({"id": "a"})
    assert await journal.run_once("k", "test", effect) == {"id": "a"}
    assert await journal.run_once("k", "test", fail_if_run) == {"id": "a"}
    assert await journal.run_once("k", "test", fail_if_run, repeat_fields={"again": True}) == {
        "id": "a",
        "again": True,
    }
    assert effect.count == 1
    await journal.close()


async def test_a_concurrent_key_waits_for_the_running_effect(tmp_path: Path) -> None:
    journal, gate = open_journal(tmp_path), asyncio.Event()
    effect = CountedEffect({"id": "a"}, gate)
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        first = group.create_task(journal.run_once("k", "test", effect))
        second = group.create_task(
            journal.run_once("k", "test", fail_if_run, repeat_fields={"again": True})
        )
        await effect.begun.wait()
        gate.set()
    assert first.result() == {"id": "a"}
    assert second.result() == {"id": "a", "again": True}
    await journal.close()


async def test_the_key_is_on_disk_before_the_effect_begins(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)

    async def effect() -> Json:
        return {"seen": read_records(tmp_path)[-1]["state"]}

    assert await journal.run_once("k", "test", effect) == {"seen": "begun"}
    assert [record["state"] for record in read_records(tmp_path)] == ["begun", "done"]
    await journal.close()


async def test_an_effect_continues_after_its_caller_is_cancelled(tmp_path: Path) -> None:
    journal, gate = open_journal(tmp_path), asyncio.Event()
    effect = CountedEffect({"id": "a"}, gate)
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        caller = group.create_task(journal.run_once("k", "test", effect))
        await effect.begun.wait()
        caller.cancel()
        await asyncio.wait([caller])
        gate.set()
        assert await journal.run_once("k", "test", fail_if_run) == {"id": "a"}
    await journal.close()


async def test_results_survive_a_restart(tmp_path: Path) -> None:
    before = open_journal(tmp_path)
    await before.run_once("k", "test", CountedEffect({"id": "a"}))
    await before.close()
    assert await open_journal(tmp_path).run_once("k", "test", fail_if_run) == {"id": "a"}


async def test_an_effect_interrupted_by_a_restart_is_unknown_and_not_repeated(
    tmp_path: Path,
) -> None:
    before, gate = open_journal(tmp_path), asyncio.Event()
    effect = CountedEffect(gate=gate)
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        group.create_task(before.run_once("k", "test", effect))
        await effect.begun.wait()
        after = open_journal(tmp_path)
        assert await repeat_error_code(after, "k") == "outcome_unknown"
        assert await repeat_error_code(after, "k") == "outcome_unknown"
        gate.set()
    await before.close()


async def test_an_exception_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(ZeroDivisionError):
        await journal.run_once("k", "test", failing_effect(ZeroDivisionError()))
    assert await repeat_error_code(journal, "k") == "outcome_unknown"
    await journal.close()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_key_refused_with_429_or_503_can_be_used_again(tmp_path: Path, status: int) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(AgentError):
        await journal.run_once("k", "test", failing_effect(AgentError(status, "later")))
    restarted = open_journal(tmp_path)
    assert await journal.run_once("k", "test", CountedEffect({"id": "a"})) == {"id": "a"}
    assert await restarted.run_once("k", "test", CountedEffect({"id": "b"})) == {"id": "b"}
    await journal.close()


async def test_any_other_failure_is_repeated_also_after_a_restart(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(AgentError):
        await journal.run_once("k", "test", failing_effect(AgentError(403, "no", code="closed")))
    for opened in (journal, open_journal(tmp_path)):
        with pytest.raises(AgentError, match=r"^no$") as refusal:
            await opened.run_once("k", "test", fail_if_run)
        assert (refusal.value.status, refusal.value.code) == (403, "closed")
    await journal.close()


async def test_a_key_cannot_be_used_for_another_kind(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    await journal.run_once("k", "other", CountedEffect())
    assert await repeat_error_code(journal, "k") == "key_reused"
    await journal.close()


async def test_running_effects_are_limited(tmp_path: Path) -> None:
    journal, gate = open_journal(tmp_path, max_running=4), asyncio.Event()
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        effects = [CountedEffect(gate=gate) for _ in range(4)]
        for number, effect in enumerate(effects):
            group.create_task(journal.run_once(f"k{number}", "test", effect))
        await effects[-1].begun.wait()
        refusal = await raised(AgentError, journal.run_once("more", "test", fail_if_run))
        assert refusal.status == 503
        gate.set()
    assert await journal.run_once("more", "test", CountedEffect({"id": "a"})) == {"id": "a"}
    await journal.close()


@pytest.mark.parametrize("key", ["", "k" * 513])
async def test_an_empty_or_long_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(AgentError) as refusal:
        await open_journal(tmp_path).run_once(key, "test", fail_if_run)
    assert refusal.value.status == 400


async def test_a_result_over_the_limit_is_not_stored(tmp_path: Path) -> None:
    journal, large = open_journal(tmp_path), {"diff": "x" * MAX_RESULT_BYTES}
    assert await journal.run_once("k", "test", CountedEffect(dict(large))) == large
    assert await repeat_error_code(journal, "k") == "result_not_kept"
    assert await repeat_error_code(open_journal(tmp_path), "k") == "result_not_kept"
    await journal.close()


async def test_an_effect_does_not_run_if_its_key_cannot_be_written(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    (tmp_path / "once.jsonl").mkdir()
    refusal = await raised(AgentError, journal.run_once("k", "test", fail_if_run))
    assert (refusal.status, refusal.code) == (503, "not_noted")
    (tmp_path / "once.jsonl").rmdir()
    assert await journal.run_once("k", "test", CountedEffect({"id": "a"})) == {"id": "a"}
    await journal.close()


async def test_keys_are_limited_in_memory_and_on_disk(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, max_keys=8)
    for number in range(40):
        await journal.run_once(f"k{number}", "test", CountedEffect({"n": number}))
    assert len(read_records(tmp_path)) <= 8 * 3 + 2
    for opened in (journal, open_journal(tmp_path, max_keys=8)):
        assert await opened.run_once("k39", "test", fail_if_run) == {"n": 39}
        assert await opened.run_once("k33", "test", fail_if_run) == {"n": 33}
    forgotten = CountedEffect()
    await journal.run_once("k0", "test", forgotten)
    assert forgotten.count == 1
    await journal.close()


async def test_a_corrected_clock_repeats_no_effect(tmp_path: Path) -> None:
    time = [1_000.0]
    journal = open_journal(tmp_path, now=lambda: time[0])
    await journal.run_once("early", "test", CountedEffect({"n": 1}))
    time[0] = 1_800_000_000.0
    await journal.run_once("late", "test", CountedEffect({"n": 2}))
    for opened in (journal, open_journal(tmp_path, now=lambda: time[0])):
        assert await opened.run_once("early", "test", fail_if_run) == {"n": 1}
        assert await opened.run_once("late", "test", fail_if_run) == {"n": 2}
    await journal.close()


async def test_a_journal_cut_at_any_byte_repeats_no_finished_effect(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for number in range(2):
        await journal.run_once(f"k{number}", "test", CountedEffect({"n": number}))
    await journal.close()
    path = tmp_path / "once.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        reopened = open_journal(tmp_path)
        for number in range(2):
            # A line without its line end is still valid.
            begun = cut >= len(b"".join(lines[: 2 * number + 1])) - 1
            done = cut >= len(b"".join(lines[: 2 * number + 2])) - 1
            if done:
                assert await reopened.run_once(f"k{number}", "test", fail_if_run) == {"n": number}
            elif begun:
                assert await repeat_error_code(reopened, f"k{number}") == "outcome_unknown"
        await reopened.close()


async def test_a_torn_line_does_not_corrupt_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "once.jsonl").write_bytes(b'{"key":"torn","kind":"te')
    journal = open_journal(tmp_path)
    await journal.run_once("k", "test", CountedEffect({"id": "a"}))
    await journal.close()
    assert await open_journal(tmp_path).run_once("k", "test", fail_if_run) == {"id": "a"}


async def test_invalid_lines_in_the_journal_are_ignored(tmp_path: Path) -> None:
    scribble = [b"[]", b"{}", b'{"key":1,"kind":"x","at":1}', b"\xff\xfe", b"[" * 9999, b""]
    good = {"key": "k", "kind": "test", "state": "done", "at": 2e9, "result": {"id": "a"}}
    lines = [*scribble, json.dumps(good).encode(), *scribble]
    (tmp_path / "once.jsonl").write_bytes(b"\n".join(lines))
    assert await open_journal(tmp_path).run_once("k", "test", fail_if_run) == {"id": "a"}
