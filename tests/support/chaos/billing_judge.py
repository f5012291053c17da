"""Compares the calls that the fake model served with the usage that the database holds.

No call is unbilled: every chat has at least as many usage events as its calls that the model
accepted. Calls around a failover to an older state may be lost with their chat's changes. The
record of a call does not wait for the disk: it may be lost if the database crashes within a second
and the worker dies before it has recorded the call again.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.ids import ChatId
from chatd.store.conn import Conn
from tests.support.chaos.lost_past import Crash, LostPast
from tests.support.chaos.transcript_judge import SentMessage
from tests.support.eventually import eventually

BOOKED_CALLS: Final[LiteralString] = """
    SELECT chat_id, count(*) AS calls, sum(input_tokens)::bigint AS input_tokens,
        count(*) FILTER (WHERE input_tokens + output_tokens > 0) AS charged,
        sum(output_tokens)::bigint AS output_tokens
    FROM usage_events GROUP BY 1"""

BOOKED_OF_CHAT: Final[LiteralString] = """
    SELECT at, call_id, ok, estimated, output_tokens, runtime_ms FROM usage_events
    WHERE chat_id = $1 ORDER BY at"""

SUBAGENT_NAMES: Final[LiteralString] = """
    SELECT c.id AS chat_id, split_part(m.content -> 0 ->> 'text', ' ', 1) AS name
    FROM chats c JOIN chat_messages m ON m.chat_id = c.id AND m.id = 1
    WHERE c.parent_chat_id IS NOT NULL"""

SETTLE_TIMEOUT_S = 120.0
UNFLUSHED_S: Final = 1.0
"""So long a commit that does not wait for the disk may be lost: `wal_writer_delay` three times,
and more on a busy machine."""


class ServedCall(Struct, kw_only=True):
    """A call that the model accepted. `name` is the first word of the message that it answers,
    `step` names the step; `ended_at` is 0 while it runs. The tokens are those served until the end
    or the cut; a whole answer would be `whole_tokens`. `continues`: it went on from a text."""

    name: str
    step: str = ""
    whole_tokens: int = 0
    continues: bool = False
    began_at: float
    ended_at: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0

    def __str__(self) -> str:
        return (
            f"{self.name} from {self.began_at:.2f} to {self.ended_at:.2f}, "
            f"{self.output_tokens} of {self.whole_tokens} tokens out"
        )

    def may_be_lost(self, past: LostPast) -> bool:
        ended_at = self.ended_at or float("inf")
        return self.began_at < past.back_at and past.copied_at < ended_at

    def may_be_unflushed(self, crash: Crash) -> bool:
        return crash.earliest - UNFLUSHED_S < self.began_at <= crash.latest


async def _subagents(conn: Conn) -> dict[str, ChatId]:
    """By the first word of their task."""
    return {row["name"]: row["chat_id"] for row in await conn.fetch(SUBAGENT_NAMES)}


async def check_billing(
    conn: Conn,
    served: Iterable[ServedCall],
    sent: Iterable[SentMessage],
    pasts: list[LostPast],
    crashes: list[Crash],
) -> str:
    """Returns the sums. Raises AssertionError if a call has no usage event. First waits until the
    replicas have recorded the calls of those that stopped."""

    async def is_settled() -> bool:
        return not await conn.fetchval("SELECT count(*) FROM open_calls")

    await eventually(is_settled, within_s=SETTLE_TIMEOUT_S)
    chats = {message.text.split(maxsplit=1)[0]: message.chat for message in sent}
    chats |= await _subagents(conn)
    # A replica may go on for a while with a subagent that a failover has lost.
    calls = [
        call
        for call in served
        if call.name in chats
        or not (any(map(call.may_be_lost, pasts)) or (pasts and "." in call.name))
    ]
    due: Counter[ChatId] = Counter(
        chats[call.name] for call in calls if not any(call.may_be_lost(past) for past in pasts)
    )
    made = Counter(chats[call.name] for call in calls)
    booked: Counter[ChatId] = Counter()
    charged: Counter[ChatId] = Counter()
    input_tokens = output_tokens = 0
    for row in await conn.fetch(BOOKED_CALLS):
        booked[row["chat_id"]] = row["calls"]
        charged[row["chat_id"]] = row["charged"]
        input_tokens += row["input_tokens"]
        output_tokens += row["output_tokens"]
    sums = (
        f"served {len(calls)} calls, {sum(call.input_tokens for call in calls)} tokens in, "
        f"{sum(call.output_tokens for call in calls)} out; "
        f"booked {booked.total()} calls, {input_tokens} in, {output_tokens} out, "
        f"{(charged - made).total()} more than served"
    )
    unflushed: Counter[ChatId] = Counter(
        chats[call.name] for call in calls if any(call.may_be_unflushed(crash) for crash in crashes)
    )
    missing = due - booked
    unbilled = missing - unflushed
    sums += f", {missing.total() - unbilled.total()} lost by a crash of the database"
    lines = [
        f"{chat}: booked {booked[chat]} of "
        + "; ".join(str(call) for call in calls if chats[call.name] == chat)
        + "".join([f"\n  booked: {row}" for row in await conn.fetch(BOOKED_OF_CHAT, chat)])
        for chat in unbilled
    ]
    lines += [str(window) for window in (*pasts, *crashes)]
    assert not unbilled, "\n".join((f"unbilled: {unbilled.total()} calls", *lines, sums))
    return sums
