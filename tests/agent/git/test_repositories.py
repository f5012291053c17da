"""What git says of a repository, asked in a bounded and harmless way."""

import os
from pathlib import Path

import pytest

from chatd.agent.git import repositories as git_module
from chatd.agent.git.command import GitCommand, GitError, quote_path
from chatd.agent.git.repositories import RepositoryState, find_roots, read_state, scan
from tests.agent.git.git_fixture import HOME, fake_git, run_git


@pytest.fixture
def git() -> GitCommand:
    return GitCommand(base={"PATH": os.defpath, "HOME": HOME}, timeout_s=30)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    run_git(root, "init", "-q")
    (root / "a.txt").write_text("one\n")
    run_git(root, "add", ".")
    run_git(root, "commit", "-qm", "first")
    return root


def test_a_clean_repository_has_a_branch_and_no_diff(repo: Path, git: GitCommand) -> None:
    assert scan(git, str(repo)) == RepositoryState(repo_root=str(repo), branch="main")


def test_staged_unstaged_and_unknown_files_are_in_the_diff(repo: Path, git: GitCommand) -> None:
    (repo / "a.txt").write_text("two\n")
    (repo / "staged").write_text("s\n")
    run_git(repo, "add", "staged")
    (repo / "new é.txt").write_text("n\nm")
    (repo / ".gitignore").write_text("*.log\n")
    (repo / "x.log").write_text("ignored\n")
    diff = scan(git, str(repo)).unified_diff
    assert "-one\n+two\n" in diff
    assert "+++ b/staged\n@@ -0,0 +1 @@\n+s\n" in diff
    assert "+++ b/new é.txt\n@@ -0,0 +1,2 @@\n+n\n+m\n\\ No newline at end of file\n" in diff
    assert "x.log" not in diff


def test_the_diff_is_a_patch_that_git_takes(repo: Path, git: GitCommand, tmp_path: Path) -> None:
    (repo / "a.txt").write_text("one\nmore\n")
    (repo / 'odd "name"\t.txt').write_text("x\n")
    (repo / "empty").touch()
    (repo / "tool").write_text("#!/bin/sh\n")
    (repo / "tool").chmod(0o755)
    (repo / "link").symlink_to("a.txt")
    (repo / "sub").mkdir()
    (repo / "sub/deep").write_text("no newline")
    (tmp_path / "patch").write_text(scan(git, str(repo)).unified_diff)
    copy = tmp_path / "copy"
    run_git(tmp_path, "clone", "-q", str(repo), str(copy))
    run_git(copy, "apply", str(tmp_path / "patch"))
    for name in ("a.txt", 'odd "name"\t.txt', "empty", "tool", "sub/deep"):
        assert (copy / name).read_bytes() == (repo / name).read_bytes()
    assert os.readlink(copy / "link") == "a.txt"
    assert os.access(copy / "tool", os.X_OK)


def test_a_repository_without_a_commit_and_one_on_no_branch(
    repo: Path, git: GitCommand, tmp_path: Path
) -> None:
    unborn = tmp_path / "unborn"
    unborn.mkdir()
    run_git(unborn, "init", "-q")
    (unborn / "f").write_text("x\n")
    run_git(unborn, "add", "f")
    seen = scan(git, str(unborn))
    assert (seen.branch, "+x\n" in seen.unified_diff) == ("main", True)
    run_git(repo, "checkout", "-q", "--detach")
    assert scan(git, str(repo)).branch == run_git(repo, "rev-parse", "--short", "HEAD").strip()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@host.example/x.git", "https://host.example/x.git"),
        ("https://token@host.example/x", "https://host.example/x"),
        ("git@host.example:x.git", "git@host.example:x.git"),
        ("/srv/x", "/srv/x"),
    ],
)
def test_the_address_of_the_remote_has_no_password(
    repo: Path, git: GitCommand, url: str, shown: str
) -> None:
    run_git(repo, "remote", "add", "origin", url)
    assert scan(git, str(repo)).remote_origin == shown


def test_a_diff_that_is_too_large_is_a_sentence(
    repo: Path, git: GitCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_module, "MAX_DIFF_BYTES", 1000)
    (repo / "b.txt").write_text("y" * 2000)
    assert scan(git, str(repo)).unified_diff == "The diff is not shown: it is over 1000 bytes.\n"
    (repo / "b.txt").unlink()
    (repo / "a.txt").write_text("y\n" * 2000)
    assert scan(git, str(repo)).unified_diff == "The diff is not shown: it is over 1000 bytes.\n"
    (repo / "a.txt").write_text("one\n")
    monkeypatch.setattr(git_module, "MAX_UNTRACKED_FILES", 1)
    for name in ("c", "d"):
        (repo / name).touch()
    assert "more than 1 files" in scan(git, str(repo)).unified_diff


def test_binary_files_are_only_named(repo: Path, git: GitCommand) -> None:
    (repo / "bin").write_bytes(b"\0\1\2")
    (repo / "a.txt").write_bytes(b"\0")
    diff = scan(git, str(repo)).unified_diff
    assert "Binary files /dev/null and b/bin differ\n" in diff
    assert "Binary files a/a.txt and b/a.txt differ\n" in diff
    (repo / "latin").write_bytes(b"caf\xe9\n")
    scan(git, str(repo)).unified_diff.encode("utf-8")


def test_what_a_repository_configures_is_not_run(
    repo: Path, git: GitCommand, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {ran}\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "diff.external", "core.editor", "diff.t.textconv"):
        run_git(repo, "config", key, str(trap))
    (repo / ".gitattributes").write_text("*.txt diff=t\n")
    (repo / ".git/hooks/post-index-change").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (repo / ".git/hooks/post-index-change").chmod(0o755)
    (repo / "a.txt").write_text("two\n")
    assert "+two" in scan(git, str(repo)).unified_diff
    assert not ran.exists()


def test_the_index_is_neither_locked_nor_written(repo: Path, git: GitCommand) -> None:
    index = repo / ".git/index"
    before = index.read_bytes()
    os.utime(repo / "a.txt", (1, 1))  # git status would refresh the index now
    (repo / ".git/index.lock").touch()
    assert scan(git, str(repo)).unified_diff == ""
    assert index.read_bytes() == before


def test_a_git_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    begins = iter([0.0])

    def now() -> float:
        """Time is over once the child is there, and not before."""
        over = pid.exists() and pid.read_text().endswith("\n")
        return next(begins, 1000.0 if over else 0.0)

    fake_git(tmp_path / "bin", f"sleep 1000 & echo $! > {pid}; wait")
    hanging = GitCommand(base={"PATH": f"{tmp_path}/bin:{os.defpath}"}, timeout_s=0.02, now=now)
    with pytest.raises(GitError, match="not answered within"):
        hanging.run_git("/", "diff")
    assert _is_dead(int(pid.read_text()))


def _is_dead(pid: int) -> bool:
    """A killed process is a name for a moment longer, until somebody buries it."""
    for _ in range(100_000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in {"Z", "X"}:
            return True
        os.sched_yield()
    return False


def test_a_git_that_says_too_much_is_ended(tmp_path: Path) -> None:
    answer = fake_git(tmp_path / "bin", "yes").run_git("/", "diff", limit=1000)
    assert (answer.is_cut, len(answer.output)) == (True, 1000)


def test_a_git_that_fails_or_is_missing_says_so(tmp_path: Path) -> None:
    failing = fake_git(tmp_path / "bin", "yes complaint | head -c 100000 >&2; exit 3")
    with pytest.raises(GitError, match="complaint"):
        failing.run_git("/", "diff")
    assert failing.run_git("/", "diff", codes=(3,)).code == 3
    with pytest.raises(GitError, match="cannot be started"):
        GitCommand(base={"PATH": str(tmp_path / "empty")}).run_git("/", "diff")


def test_repositories_are_found_from_the_paths_in_them(repo: Path, tmp_path: Path) -> None:
    nested = repo / "vendor/nested"
    nested.mkdir(parents=True)
    run_git(nested, "init", "-q")
    worktree = tmp_path / "tree"
    run_git(repo, "worktree", "add", "-q", str(worktree))
    paths = [
        str(repo / "a.txt"),
        str(repo / "not/yet/there"),
        str(nested / "f"),
        str(worktree / "a.txt"),
        str(tmp_path / "no-repository/f"),
        "/",
    ]
    assert find_roots(paths) == sorted(map(str, (repo, nested, worktree)))


def test_gone_is_only_what_is_gone(repo: Path, git: GitCommand, tmp_path: Path) -> None:
    assert read_state(git, str(repo)) == RepositoryState(str(repo), branch="main")
    broken = fake_git(tmp_path / "bin", "exit 128")
    assert read_state(broken, str(repo)) is None
    (repo / ".git").rename(repo / "git")
    assert read_state(git, str(repo)) == RepositoryState(str(repo), removed=True)


def test_names_are_written_as_git_does() -> None:
    assert quote_path("b/plain é.txt") == "b/plain é.txt"
    assert quote_path('b/a"b\\c\td\x01') == '"b/a\\"b\\\\c\\td\\001"'
