"""Reverts of one file to the state before a turn, before a chat, or of the last commit."""

import os
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.git.git_command import GitCommand
from chatd.agent.git.git_routes import revert_files
from chatd.agent.git.git_snapshots import read_scope, take_snapshot
from tests.agent.git.git_fixture import HOME, run_git


@pytest.fixture
def git() -> GitCommand:
    return GitCommand(base={"PATH": os.defpath, "HOME": HOME}, timeout_s=30)


@pytest.fixture
def repo(tmp_path: Path, git: GitCommand) -> Path:
    """The user changed `a.txt` and made `mine.txt`; then the turn of the chat began."""
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    run_git(root, "init", "-q", "-b", "trunk")
    (root / "a.txt").write_text("committed\n")
    (root / "src/b.txt").write_text("committed\n")
    run_git(root, "add", ".")
    run_git(root, "commit", "-qm", "first")
    (root / "a.txt").write_text("by the user\n")
    (root / "mine.txt").write_text("by the user\n")
    assert take_snapshot(git, str(root), "c1", "1") == ""
    return root


def revert(git: GitCommand, repo: Path, scope: str, *paths: str) -> None:
    revert_files(git, str(repo), "c1", scope, "1", *paths)


@pytest.mark.parametrize("scope", ["turn", "chat"])
def test_a_changed_a_new_and_a_deleted_file_go_back_to_the_snapshot(
    repo: Path, git: GitCommand, scope: str
) -> None:
    (repo / "a.txt").write_text("by the agent\n")
    (repo / "mine.txt").unlink()
    (repo / "new.txt").write_text("by the agent\n")
    (repo / "src/b.txt").unlink()
    status = run_git(repo, "diff", "--cached", "--name-only")
    revert(git, repo, scope, "a.txt")
    revert(git, repo, scope, "a.txt")
    assert (repo / "a.txt").read_text() == "by the user\n"
    revert(git, repo, scope, "mine.txt")
    assert (repo / "mine.txt").read_text() == "by the user\n"
    revert(git, repo, scope, "new.txt")
    revert(git, repo, scope, "new.txt")
    assert not (repo / "new.txt").exists()
    revert(git, repo, scope, "src/b.txt")
    assert read_scope(git, str(repo), "c1", scope, "1") == ""
    assert run_git(repo, "diff", "--cached", "--name-only") == status, "the index stays"


def test_a_renamed_file_has_its_old_name_again(repo: Path, git: GitCommand) -> None:
    run_git(repo, "mv", "src/b.txt", "src/c.txt")
    revert(git, repo, "git", "src/c.txt", "src/b.txt")
    assert (repo / "src/b.txt").read_text() == "committed\n"
    assert run_git(repo, "status", "--porcelain", "src") == ""


def test_of_the_last_commit_the_index_is_reset_too(repo: Path, git: GitCommand) -> None:
    (repo / "staged.txt").write_text("s\n")
    run_git(repo, "add", "a.txt", "staged.txt")
    for path in ("a.txt", "staged.txt", "mine.txt"):
        revert(git, repo, "git", path)
    assert run_git(repo, "status", "--porcelain") == ""


@pytest.mark.promise("P15")
@pytest.mark.parametrize("path", ["../a.txt", "/etc/passwd", ".git/config", "src/../a.txt", ""])
def test_a_path_that_leads_elsewhere_is_refused(repo: Path, git: GitCommand, path: str) -> None:
    with pytest.raises(AgentError, match="relative to the repository"):
        revert(git, repo, "git", path)


@pytest.mark.promise("P15")
def test_what_cannot_be_reverted_is_left_as_it_is(
    repo: Path, git: GitCommand, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.txt").write_text("not of the repository\n")
    (repo / "link").symlink_to(outside)
    with pytest.raises(AgentError):
        revert(git, repo, "turn", "link/x.txt")
    assert (outside / "x.txt").exists()
    (repo / "a.txt").unlink()
    (repo / "a.txt").mkdir()
    with pytest.raises(AgentError, match="is a directory now"):
        revert(git, repo, "turn", "a.txt")
    with pytest.raises(AgentError, match="no snapshot"):
        revert_files(git, str(repo), "c2", "turn", "1", "a.txt")


def test_a_name_with_the_characters_of_patterns_is_only_a_name(repo: Path, git: GitCommand) -> None:
    (repo / "*.txt").write_text("by the agent\n")
    (repo / "a.txt").write_text("by the agent\n")
    revert(git, repo, "turn", "*.txt")
    assert not (repo / "*.txt").exists()
    assert (repo / "a.txt").read_text() == "by the agent\n"


def test_a_file_with_a_filter_is_not_reverted_to_the_last_commit(
    repo: Path, git: GitCommand
) -> None:
    (repo / ".gitattributes").write_text("*.bin filter=lfs\n")
    (repo / "x.bin").write_text("pointer\n")
    run_git(repo, "add", ".")
    run_git(repo, "commit", "-qm", "second")
    (repo / "x.bin").write_text("content\n")
    with pytest.raises(AgentError, match="filter"):
        revert(git, repo, "git", "x.bin")
    assert (repo / "x.bin").read_text() == "content\n"
