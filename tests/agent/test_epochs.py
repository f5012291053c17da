"""The epoch fence accepts only the newest worker of a chat, also after a restart."""

from pathlib import Path

import pytest

from chatd.agent.epochs import EpochFence
from chatd.agent.errors import AgentError


async def epoch_error(fence: EpochFence, chat_id: str, epoch: int) -> AgentError:
    with pytest.raises(AgentError) as refusal:
        await fence.check_epoch(chat_id, epoch)
    return refusal.value


async def test_only_a_lower_epoch_is_refused(tmp_path: Path) -> None:
    fence = EpochFence(str(tmp_path))
    for epoch in (3, 3, 7):
        await fence.check_epoch("chat", epoch)
    refused = await epoch_error(fence, "chat", 6)
    assert (refused.status, refused.code) == (409, "stale_epoch")
    await fence.check_epoch("chat", 7)


async def test_each_chat_has_its_own_epoch(tmp_path: Path) -> None:
    fence = EpochFence(str(tmp_path))
    await fence.check_epoch("one", 9)
    await fence.check_epoch("other", 1)
    assert (await epoch_error(fence, "one", 1)).code == "stale_epoch"


@pytest.mark.parametrize(("chat_id", "epoch"), [("", 1), ("chat", None)])
async def test_a_request_without_chat_or_epoch_is_not_fenced(
    tmp_path: Path, chat_id: str, epoch: int | None
) -> None:
    fence = EpochFence(str(tmp_path))
    await fence.check_epoch("chat", 9)
    await fence.check_epoch(chat_id, epoch)


async def test_epochs_survive_a_restart(tmp_path: Path) -> None:
    before = EpochFence(str(tmp_path))
    await before.check_epoch("chat", 4)
    await before.check_epoch("chat", 5)
    with (tmp_path / "fence.jsonl").open("ab") as file:
        file.write(b'{"chat":"chat","epo')
    after = EpochFence(str(tmp_path))
    assert (await epoch_error(after, "chat", 4)).code == "stale_epoch"
    await after.check_epoch("chat", 6)
    assert (await epoch_error(EpochFence(str(tmp_path)), "chat", 5)).code == "stale_epoch"


async def test_a_higher_epoch_counts_even_if_the_disk_fails(tmp_path: Path) -> None:
    fence = EpochFence(str(tmp_path))
    (tmp_path / "fence.jsonl").mkdir()
    assert (await epoch_error(fence, "chat", 2)).status == 503
    assert (await epoch_error(fence, "chat", 1)).code == "stale_epoch"


async def test_an_epoch_is_refused_until_it_is_on_disk(tmp_path: Path) -> None:
    """Otherwise a restart would accept lower epochs again."""
    fence = EpochFence(str(tmp_path))
    (tmp_path / "fence.jsonl").mkdir()
    for _ in range(2):
        assert (await epoch_error(fence, "chat", 2)).code == "not_noted"
    (tmp_path / "fence.jsonl").rmdir()
    await fence.check_epoch("chat", 2)
    assert (await epoch_error(EpochFence(str(tmp_path)), "chat", 1)).code == "stale_epoch"


async def test_chats_are_limited_in_memory_and_on_disk(tmp_path: Path) -> None:
    fence = EpochFence(str(tmp_path), max_chats=4)
    for number in range(40):
        await fence.check_epoch(f"chat{number}", 5)
    assert (tmp_path / "fence.jsonl").read_bytes().count(b"\n") <= 4 * 3 + 1
    for kept in (fence, EpochFence(str(tmp_path), max_chats=4)):
        for number in range(36, 40):
            assert (await epoch_error(kept, f"chat{number}", 4)).code == "stale_epoch"
    await fence.check_epoch("chat0", 1)
