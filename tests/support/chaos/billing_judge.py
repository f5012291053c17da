"""Compares the calls that the fake model served with the usage that the database holds.

No call is unbilled: every chat has at least as many usage events as its calls that the model
accepted. Calls around a failover to an older state may be lost with their chat's changes. The
record of a call does not wait for the disk: it may be lost if the database crashes within a second
and the worker dies before it has recorded the call again.

A subagent's id is made of the version of its parent, so one that a failover has lost is started
again under another id. Replicas may go on for a while with the lost one, and book its calls.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.ids import ChatId
from chatd.store.database.conn import Conn
from tests.support.chaos.lost_past import Crash, LostPast
from tests.support.chaos.transcript_judge import SentMessage
from tests.support.eventually import eventually

BOOKED_CALLS: Final[LiteralString] = """
    SELECT chat_id, root_chat_id, count(*) AS calls, sum(input_tokens)::bigint AS input_tokens,
        count(*) FILTER (WHERE input_tokens + output_tokens > 0) AS charged,
        sum(output_tokens)::bigint AS output_tokens,
        NOT EXISTS (SELECT FROM chats c WHERE c.id = e.chat_id) AS is_lost
    FROM usage_events e GROUP BY 1, 2"""

BOOKED_OF_FAMILY: Final[LiteralString] = """
    SELECT chat_id, at, call_id, ok, estimated, output_tokens, runtime_ms FROM usage_events
    WHERE root_chat_id = $1 ORDER BY at"""

SUBAGENTS: Final[LiteralString] = """
    SELECT c.id AS chat_id, c.root_chat_id, split_part(m.content -> 0 ->> 'text', ' ', 1) AS name
    FROM chats c JOIN chat_messages m ON m.chat_id = c.id AND m.id = 1
    WHERE c.parent_chat_id IS NOT NULL"""

SETTLE_TIMEOUT_S = 120.0
UNFLUSHED_S: Final = 1.0
"""So long a commit that does not wait for the disk may be lost: `wal_writer_delay` three times,
and more on a busy machine."""
SENDING_S: Final = 0.5
"""So long after its record a request arrives at the model, on a busy machine."""


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
        """A request whose record was written just before the crash may arrive just after it."""
        return crash.earliest - UNFLUSHED_S < self.began_at <= crash.latest + SENDING_S


class Family(Struct, kw_only=True):
    """Which chat a served call belongs to, by the first word of its message. Of subagents with the
    same task one stands for all."""

    chats: dict[str, ChatId]
    roots: dict[ChatId, ChatId]
    twins: dict[ChatId, ChatId]

    @staticmethod
    async def read(conn: Conn, sent: Iterable[SentMessage]) -> "Family":
        family = Family(chats={}, roots={}, twins={})
        for message in sent:
            family.chats[message.text.split(maxsplit=1)[0]] = message.chat
        for row in await conn.fetch(SUBAGENTS):
            family.add_subagent(row["name"], row["chat_id"], row["root_chat_id"])
        return family

    def add_subagent(self, name: str, chat: ChatId, root: ChatId) -> None:
        self.roots[chat] = root
        self.twins[chat] = self.chats.setdefault(name, chat)

    def root_of(self, chat: ChatId) -> ChatId:
        return self.roots.get(chat, chat)


class BookedCalls(Struct, frozen=True, kw_only=True):
    """The usage events of a chat. `is_lost`: the chat is not stored any more."""

    chat_id: ChatId
    root_chat_id: ChatId
    calls: int
    charged: int
    input_tokens: int
    output_tokens: int
    is_lost: bool


def find_missing(
    due: Counter[ChatId], booked: Iterable[BookedCalls], family: Family
) -> Counter[ChatId]:
    """The calls that no usage event is for. Events of a lost subagent are for calls of the one that
    took its place."""
    events: Counter[ChatId] = Counter()
    lost: Counter[ChatId] = Counter()
    for each in booked:
        if each.is_lost:
            lost[each.root_chat_id] += each.calls
        else:
            events[family.twins.get(each.chat_id, each.chat_id)] += each.calls
    missing = due - events
    for chat in sorted(missing):
        root = family.root_of(chat)
        paid = min(missing[chat], lost[root])
        missing[chat] -= paid
        lost[root] -= paid
    return +missing


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
    family = await Family.read(conn, sent)
    chats = family.chats
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
    booked = [BookedCalls(**dict(row)) for row in await conn.fetch(BOOKED_CALLS)]
    charged: Counter[ChatId] = Counter()
    for each in booked:
        charged[family.twins.get(each.chat_id, each.chat_id)] += each.charged
    sums = (
        f"served {len(calls)} calls, {sum(call.input_tokens for call in calls)} tokens in, "
        f"{sum(call.output_tokens for call in calls)} out; "
        f"booked {sum(each.calls for each in booked)} calls, "
        f"{sum(each.input_tokens for each in booked)} in, "
        f"{sum(each.output_tokens for each in booked)} out, "
        f"{sum(each.calls for each in booked if each.is_lost)} of them for chats that were lost, "
        f"{(charged - made).total()} more than served"
    )
    unflushed: Counter[ChatId] = Counter(
        chats[call.name] for call in calls if any(call.may_be_unflushed(crash) for crash in crashes)
    )
    missing = find_missing(due, booked, family)
    unbilled = missing - unflushed
    sums += f", {missing.total() - unbilled.total()} lost by a crash of the database"
    lines = [
        f"{chat}: "
        + "; ".join(str(call) for call in calls if chats[call.name] == chat)
        + "".join(
            [
                f"\n  booked: {dict(row)}"
                for row in await conn.fetch(BOOKED_OF_FAMILY, family.root_of(chat))
            ]
        )
        for chat in unbilled
    ]
    lines += [str(window) for window in (*pasts, *crashes)]
    assert not unbilled, "\n".join((f"unbilled: {unbilled.total()} calls", *lines, sums))
    return sums
