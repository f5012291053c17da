"""Snapshots of trees: the diff of a turn and of a chat, without side effects on the repository."""

import os
from pathlib import Path

import pytest

from chatd.agent.git import git_snapshots
from chatd.agent.git.git_command import GitCommand
from chatd.agent.git.git_snapshots import (
    TreeSnapshots,
    count_changes,
    read_repository,
    read_scope,
    take_snapshot,
)
from chatd.agent.threads import WorkerThreads
from tests.agent.git.git_fixture import HOME, fake_git, run_git


@pytest.fixture
def git() -> GitCommand:
    return GitCommand(base={"PATH": os.defpath, "HOME": HOME}, timeout_s=30)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    run_git(root, "init", "-q", "-b", "trunk")
    (root / "a.txt").write_text("one\n")
    run_git(root, "add", ".")
    run_git(root, "commit", "-qm", "first")
    return root


def test_a_turn_shows_its_own_changes_and_the_chat_all_of_them(repo: Path, git: GitCommand) -> None:
    (repo / "before.txt").write_text("of the user\n")
    assert take_snapshot(git, str(repo), "c1", "1") == ""
    (repo / "a.txt").write_text("two\n")
    assert take_snapshot(git, str(repo), "c1", "1") == "", "a repeat keeps the first"
    run_git(repo, "commit", "-qam", "by the agent")
    assert take_snapshot(git, str(repo), "c1", "5") == ""
    (repo / "new.txt").write_text("x\ny\n")
    turn = read_scope(git, str(repo), "c1", "turn", "5") or ""
    chat = read_scope(git, str(repo), "c1", "chat", "5") or ""
    assert "+++ b/new.txt" in turn
    assert "a.txt" not in turn
    assert "-one\n+two" in chat
    assert "+++ b/new.txt" in chat
    assert "before.txt" not in turn + chat
    assert "before.txt" in (read_scope(git, str(repo), "c1", "git", "") or "")
    assert read_scope(git, str(repo), "c1", "turn", "1") is None
    found = read_repository(git, str(repo), "c1", "chat", "5") or {}
    assert (found["additions"], found["deletions"], found["changed_files"]) == (3, 1, 2)
    assert found["branch"] == "trunk"


def test_a_snapshot_changes_no_index_branch_or_working_tree_and_runs_no_hook(
    repo: Path, git: GitCommand
) -> None:
    for name in ("reference-transaction", "post-index-change"):
        hook = repo / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {repo}/hook-ran\n")
        hook.chmod(0o755)
    (repo / "staged").write_text("s\n")
    run_git(repo, "add", "staged")
    (repo / "hook-ran").unlink(missing_ok=True)
    (repo / "untracked").write_text("u\n")
    index = (repo / ".git/index").read_bytes()
    status, branches = run_git(repo, "status", "--porcelain"), run_git(repo, "branch", "-a")
    index = (repo / ".git/index").read_bytes()
    (repo / "hook-ran").unlink(missing_ok=True)
    assert take_snapshot(git, str(repo), "c1", "1") == ""
    assert (repo / ".git/index").read_bytes() == index
    assert not (repo / "hook-ran").exists()
    assert run_git(repo, "status", "--porcelain") == status
    assert run_git(repo, "branch", "-a") == branches
    assert run_git(repo, "stash", "list") == run_git(repo, "tag")


def test_a_repository_that_is_too_large_has_no_snapshot_and_says_so(
    repo: Path, git: GitCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_snapshots, "MAX_UNTRACKED_BYTES", 10)
    (repo / "big").write_text("x" * 100)
    assert "over 10 bytes" in take_snapshot(git, str(repo), "c1", "1")
    assert read_scope(git, str(repo), "c1", "turn", "1") is None


def test_the_trees_of_old_chats_are_deleted(
    repo: Path, git: GitCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_snapshots, "MAX_SNAPSHOT_CHATS", 2)
    for chat in ("c1", "c2", "c3"):
        assert take_snapshot(git, str(repo), chat, "1") == ""
    assert {path.name for path in (repo / ".git/chatd").iterdir()} == {"c2", "c3"}


def test_lines_that_look_like_headers_are_counted_as_lines() -> None:
    diff = (
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- old\n+++ new\n same\n"
        "diff --git a/y b/y\nnew file mode 100644\n"
    )
    assert count_changes(diff) == (1, 1, 2)


@pytest.mark.promise("P14")
async def test_an_effect_waits_for_a_slow_snapshot_only_a_moment_and_once_in_a_turn(
    repo: Path, tmp_path: Path, git: GitCommand
) -> None:
    """The snapshot that comes too late would have the effect in it: it is not kept."""
    gate, asked = tmp_path / "gate", tmp_path / "asked"
    os.mkfifo(gate)
    add = f'case "$*" in *" add "*) echo >> {asked}; read line < {gate};; esac'
    slow = fake_git(tmp_path / "bin", f'{add}\nexec /usr/bin/git "$@"')
    threads = WorkerThreads(1, 30.0)
    taken = TreeSnapshots(slow, threads, timeout_s=0.2)
    for _ in range(2):
        await taken.take("c1", "1", [str(repo)])
    assert "0.2 seconds" in taken.reason("c1", "1", str(repo))
    with gate.open("w") as opened:
        opened.write("go\n")
    assert await threads.run(asked.read_text) == "\n", "asked once; the thread is free"
    assert read_scope(git, str(repo), "c1", "turn", "1") is None
    await TreeSnapshots(git, threads, timeout_s=30).take("c1", "2", [str(repo)])
    found = read_repository(git, str(repo), "c1", "chat", "2") or {}
    assert found["late"], "the chat began before its first snapshot, and the diff says so"
    threads.close()


def test_a_mirror_has_no_snapshot_and_a_thorough_clean_up_keeps_them(
    repo: Path, git: GitCommand, tmp_path: Path
) -> None:
    (repo / "secret.txt").write_text("not to be published\n")
    (repo / "a.txt").write_text("by the user\n")
    assert take_snapshot(git, str(repo), "c1", "1") == ""
    (repo / "a.txt").write_text("by the agent\n")
    run_git(tmp_path, "init", "-q", "--bare", "mirror")
    run_git(repo, "push", "-q", "--mirror", str(tmp_path / "mirror"))
    assert (
        run_git(tmp_path / "mirror", "for-each-ref", "--format=%(refname)") == "refs/heads/trunk\n"
    )
    run_git(repo, "gc", "-q", "--prune=now")
    diff = read_scope(git, str(repo), "c1", "turn", "1") or ""
    assert "-by the user\n+by the agent" in diff
    assert "secret.txt" not in diff


def test_a_chat_whose_first_snapshot_failed_says_that_its_diff_begins_later(
    repo: Path, git: GitCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(git_snapshots, "MAX_UNTRACKED_BYTES", 1)
        (repo / "big").write_text("large")
        assert "over 1 bytes" in take_snapshot(git, str(repo), "c1", "1")
    (repo / "a.txt").write_text("changed in the first turn\n")
    assert take_snapshot(git, str(repo), "c1", "2") == ""
    (repo / "a.txt").write_text("and in the second\n")
    chat = read_repository(git, str(repo), "c1", "chat", "2") or {}
    turn = read_repository(git, str(repo), "c1", "turn", "2") or {}
    assert "over 1 bytes" in str(chat["late"])
    assert (chat["unified_diff"], turn["late"]) == (turn["unified_diff"], "")
