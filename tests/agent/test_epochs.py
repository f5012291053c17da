"""The fence accepts the owner of a chat, and another worker only with a proof."""

import pytest

from chatd.agent.effect_guards import EpochFence, OwnerClaim, parse_claim
from chatd.agent.errors import AgentError

ONE, OTHER = "worker-one", "worker-other"


def mark_of(fence: EpochFence, claim: OwnerClaim, chat_id: str = "chat") -> str:
    """The mark with which the claim is refused."""
    with pytest.raises(AgentError) as refusal:
        fence.check_owner(chat_id, claim)
    assert (refusal.value.status, refusal.value.code) == (409, "stale_epoch")
    assert refusal.value.body()["fence"] == refusal.value.fence
    return refusal.value.fence


def prove(fence: EpochFence, epoch: int, worker: str, chat_id: str = "chat") -> None:
    mark = mark_of(fence, OwnerClaim(epoch, worker), chat_id)
    fence.check_owner(chat_id, OwnerClaim(epoch, worker, mark))


def test_an_owner_proves_itself_once() -> None:
    fence = EpochFence()
    prove(fence, 3, ONE)
    for _ in range(2):
        fence.check_owner("chat", OwnerClaim(3, ONE))


@pytest.mark.promise("P3")
@pytest.mark.parametrize("epoch", [2, 3, 4], ids=["lower", "same", "higher"])
def test_any_other_worker_is_refused_without_a_proof(epoch: int) -> None:
    """A higher epoch too: it may be of a past that the database has lost."""
    fence = EpochFence()
    prove(fence, 3, ONE)
    mark_of(fence, OwnerClaim(epoch, OTHER))
    fence.check_owner("chat", OwnerClaim(3, ONE))


@pytest.mark.promise("P3")
def test_a_restored_database_may_count_from_a_lower_epoch() -> None:
    fence = EpochFence()
    prove(fence, 7, ONE)
    prove(fence, 4, OTHER)
    mark_of(fence, OwnerClaim(7, ONE))
    fence.check_owner("chat", OwnerClaim(4, OTHER))


@pytest.mark.promise("P3")
def test_a_mark_that_was_read_before_the_owner_changed_proves_nothing() -> None:
    """Also if the epochs come back to the same numbers."""
    fence = EpochFence()
    prove(fence, 7, ONE)
    early = mark_of(fence, OwnerClaim(4, OTHER))
    prove(fence, 5, ONE)
    mark_of(fence, OwnerClaim(4, OTHER, early))
    prove(fence, 7, ONE)
    mark_of(fence, OwnerClaim(4, OTHER, early))


def test_each_chat_has_its_own_owner_and_mark() -> None:
    fence = EpochFence()
    prove(fence, 9, ONE, "one")
    prove(fence, 1, OTHER, "other")
    foreign = mark_of(fence, OwnerClaim(2, OTHER), "one")
    mark_of(fence, OwnerClaim(2, ONE, foreign), "other")


@pytest.mark.parametrize(("chat_id", "claim"), [("", OwnerClaim(1, ONE)), ("chat", None)])
def test_a_request_without_chat_or_claim_is_not_fenced(
    chat_id: str, claim: OwnerClaim | None
) -> None:
    fence = EpochFence()
    prove(fence, 9, ONE)
    fence.check_owner(chat_id, claim)


def test_an_older_server_which_proves_nothing_is_refused_a_lower_epoch_only() -> None:
    fence = EpochFence()
    for epoch in (3, 3, 7):
        fence.check_owner("chat", OwnerClaim(epoch))
    mark_of(fence, OwnerClaim(6))
    prove(fence, 8, ONE)
    mark_of(fence, OwnerClaim(7))
    fence.check_owner("chat", OwnerClaim(9))


def test_the_number_of_chats_is_limited() -> None:
    fence = EpochFence(max_chats=4)
    for number in range(40):
        prove(fence, 5, ONE, f"chat{number}")
    for number in range(36, 40):
        fence.check_owner(f"chat{number}", OwnerClaim(5, ONE))
    mark_of(fence, OwnerClaim(5, ONE), "chat0")


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("7", OwnerClaim(7)),
        ("7 a-1 -", OwnerClaim(7, "a-1")),
        (f"7 a-1 {'0f' * 16}", OwnerClaim(7, "a-1", "0f" * 16)),
    ],
)
def test_a_claim_is_read(text: str, claim: OwnerClaim) -> None:
    assert parse_claim(text) == claim


@pytest.mark.parametrize("text", ["", "x", "-1", "7 ", "7 a", "7 a x", "7 a - ", "7  -", "7 a b c"])
def test_a_malformed_claim_is_refused(text: str) -> None:
    with pytest.raises(AgentError, match="malformed"):
        parse_claim(text)
