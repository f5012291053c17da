"""A change is written exactly and as a whole, or not at all."""

from random import Random
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import EditMessage, SendMessage
from chatd.domain.chat.messages import TokenUsage, UsageEntry
from chatd.domain.chat.states import TRANSITIONS, State, Transition
from chatd.domain.chat.user_transitions import edit_message, send_message
from chatd.domain.chat.worker_transitions import commit_step, finish_turn
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import ChangeId, MessageId, ModelConfigId, UserId
from chatd.store.chat import chats, messages
from chatd.store.chat.change_writer import apply
from chatd.store.database.pool import Pool
from tests.model.driver import Driver
from tests.model.reference_store import ChatRows
from tests.support.domain.transition_cases import TransitionCase, list_cases, perform_transition
from tests.support.factories import CHAT, HARNESS, OWNER, draft, prompt, text
from tests.support.seeds import Seed, seed_chat, step
from tests.support.store import SEEDING, chat_id, dump, insert_seed, with_recent, write, write_all
from tests.support.stored import stored, timeless


class Recorder(Driver):
    """Records every written change in order."""

    def __init__(self, rng: Random) -> None:
        self.written: list[Change] = []
        super().__init__(rng)

    def _check_written(self, change: Change, rows: ChatRows) -> None:
        super()._check_written(change, rows)
        self.written.append(change)


@pytest.mark.promise("P1", "P9")
@pytest.mark.parametrize("seed", range(3))
async def test_a_random_sequence_is_stored_as_the_pure_model_has_it(pool: Pool, seed: int) -> None:
    """Two chat trees: models, efforts and authors of promoted messages, deletions, the
    order of queues and everything else that the model knows."""
    recorder = Recorder(Random(f"store {seed}"))
    for _ in range(200):
        recorder.step()
    await write_all(pool, recorder.written)
    meant = {
        chat: timeless(rows.chat, rows.messages, rows.queue)
        for chat, rows in recorder.world.chats.items()
    }
    assert {chat: found.timeless() for chat, found in (await stored(pool)).items()} == meant
    assert await paid_entries(pool) == recorder.world.usage
    keys = await pool.fetch("SELECT scope, request_id FROM chat_requests")
    assert {tuple(row) for row in keys} == set(recorder.world.requests)


async def paid_entries(pool: Pool) -> list[UsageEntry]:
    rows = await pool.fetch("SELECT * FROM usage_events ORDER BY id")
    return [
        UsageEntry(
            kind=row["kind"],
            provider=row["provider"],
            model=row["model"],
            usage=TokenUsage(
                input_tokens=row["input_tokens"],
                output_tokens=row["output_tokens"],
                reasoning_tokens=row["reasoning_tokens"],
                cache_creation_tokens=row["cache_creation_tokens"],
                cache_read_tokens=row["cache_read_tokens"],
            ),
            model_config_id=row["model_config_id"],
            message_id=row["message_id"],
            cost_micros=row["cost_micros"],
            price=None if row["price"] is None else Raw(row["price"]),
            runtime_ms=row["runtime_ms"],
            ok=row["ok"],
        )
        for row in rows
    ]


async def test_a_change_decided_from_an_older_row_writes_nothing(pool: Pool) -> None:
    changes: list[Change] = []
    for number, (wanted, moves) in enumerate(listed_moves().items(), 1):
        seed = msgspec.structs.replace(wanted, chat_id=chat_id(number))
        recent = (await insert_seed(pool, seed)).recent_changes
        made = (perform_transition(case, seed_chat(seed)) for case in moves)
        changes.extend(with_recent(change, recent) for change in made if change is not None)
    await pool.execute("UPDATE chats SET snapshot_version = snapshot_version + 1")
    before = await dump(pool)
    assert len(changes) > 100
    for change in changes:
        assert await apply(pool, change, ChangeId(SEEDING)) is None
    assert await dump(pool) == before


def listed_moves() -> dict[Seed, list[TransitionCase]]:
    found: dict[Seed, list[TransitionCase]] = {}
    for case in (
        next(list_cases(state, move)) for move in Transition for state in TRANSITIONS[move]
    ):
        found.setdefault(case.seed, []).append(case)
    return found


async def test_the_chat_takes_the_model_of_the_last_promoted_message_that_names_one(
    pool: Pool,
) -> None:
    """Four steering messages are promoted together; the last of them names no model."""
    first, second = ModelConfigId(UUID(int=50)), ModelConfigId(UUID(int=51))
    chat = await insert_seed(pool, Seed(state=State.R0))
    for wishes in (
        {"model_config_id": first, "reasoning_effort": "high"},
        {"model_config_id": second},
        {"reasoning_effort": "low"},
        {},
    ):
        command = SendMessage(prompt=prompt("go on", **wishes), when_busy="steer")
        chat = (await write(pool, send_message(chat, command, None))).chat
    answer = draft("assistant", text("Done."))
    done = await write(pool, commit_step(chat, step(chat, answer)))
    assert (done.chat.model_config_id, done.chat.reasoning_effort) == (second, "low")
    assert [(m.model_config_id, m.reasoning_effort) for m in done.messages] == [
        (None, None),
        (first, "high"),
        (second, None),
        (None, "low"),
        (None, None),
    ]
    assert await chats.get(pool, HARNESS, CHAT) == done.chat


async def test_a_promoted_message_keeps_its_author_and_its_time_is_that_of_promotion(
    pool: Pool,
) -> None:
    guest = UserId(UUID(int=60))
    chat = await insert_seed(pool, Seed(state=State.R0))
    command = SendMessage(prompt=prompt("mine", created_by=guest))
    chat = (await write(pool, send_message(chat, command, None))).chat
    done = await write(pool, finish_turn(chat, step(chat, draft("assistant", text("Two.")))))
    *_, promoted = await messages.load_history(pool, HARNESS, CHAT)
    assert (promoted.created_by, promoted.content) == (guest, (text("mine"),))
    assert promoted.created_at == done.chat.updated_at
    assert done.messages[-1] == promoted


async def test_an_edit_marks_deleted_messages_with_its_version(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.R1, calls="local", plain=2))
    target = (await messages.load_history(pool, HARNESS, CHAT))[1]
    change = edit_message(
        chat, target, EditMessage(message_id=MessageId(1), prompt=prompt("instead")), None
    )
    done = await write(pool, change)
    found = (await stored(pool))[CHAT]
    gone = [message for message in found.messages if message.deleted]
    assert done.deleted_ids == tuple(message.id for message in gone)
    assert gone[0].id == target.id
    assert {message.revision for message in gone} == {done.chat.snapshot_version}
    assert [message.role for message in found.messages if not message.deleted] == [
        "system",
        "user",
    ]
    assert found.queue == ()


PAID = UsageEntry(
    kind="turn",
    provider="anthropic",
    model="large",
    usage=TokenUsage(
        input_tokens=1,
        output_tokens=2,
        reasoning_tokens=3,
        cache_creation_tokens=4,
        cache_read_tokens=5,
    ),
    model_config_id=ModelConfigId(UUID(int=50)),
    message_id=MessageId(5),
    cost_micros=7,
    price=Raw(b'{"in" : 3}'),
    runtime_ms=8,
)
UNPRICED = UsageEntry(kind="compaction", provider="local", model="m", usage=TokenUsage(), ok=False)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("entries", [(PAID,), (UNPRICED,), (PAID, UNPRICED), ()])
@pytest.mark.parametrize("queued", [0, 1])
async def test_every_model_call_of_a_step_is_recorded_in_the_same_write(
    pool: Pool, entries: tuple[UsageEntry, ...], queued: int
) -> None:
    """By every statement: with a steering message the change writes to the queue."""
    chat = await insert_seed(pool, Seed(state=State.R1 if queued else State.R0, steer=queued))
    taken = step(chat, draft("assistant", text("Two.")), usage=entries)
    done = await write(pool, commit_step(chat, taken))
    assert await paid_entries(pool) == list(entries)
    for row in await pool.fetch("SELECT * FROM usage_events"):
        assert (row["owner_id"], row["chat_id"], row["root_chat_id"]) == (OWNER, CHAT, CHAT)
        assert row["at"] == done.messages[0].created_at


async def test_every_column_of_a_message_is_stored_by_every_statement(pool: Pool) -> None:
    """One message alone, two at once, and one beside a promotion."""
    full = draft(
        "assistant",
        text("Two."),
        visibility="user",
        compressed=True,
        model_config_id=ModelConfigId(UUID(int=50)),
        reasoning_effort="high",
        created_by=UserId(UUID(int=60)),
        usage=TokenUsage(input_tokens=1, context_limit=9),
        cost_micros=0,
        runtime_ms=12,
        provider_response_id="resp_1",
    )
    for number, (drafts, steer) in enumerate((((full,), 0), ((full, full), 0), ((full,), 1)), 1):
        state = State.R1 if steer else State.R0
        chat = await insert_seed(pool, Seed(state=state, steer=steer, chat_id=chat_id(number)))
        done = await write(pool, commit_step(chat, step(chat, *drafts)))
        found = (await stored(pool))[chat.id].messages
        assert found[-len(done.messages) :] == done.messages
        for message in done.messages[: len(drafts)]:
            kept = {name: getattr(message, name) for name in full.__struct_fields__}
            assert kept == msgspec.structs.asdict(full)


async def test_more_than_one_queued_message_at_once_is_refused(
    pool: Pool,
) -> None:
    chat = await insert_seed(pool, Seed(state=State.R0))
    change = Change.of(chat).enqueue_message(prompt("one")).enqueue_message(prompt("two"))
    with pytest.raises(InvariantBroken):
        await apply(pool, change, ChangeId(SEEDING))
    assert (await stored(pool))[CHAT].chat == chat
