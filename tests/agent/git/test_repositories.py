"""Scans of repositories: content, limits, and no side effects."""

import os
from pathlib import Path

import pytest

from chatd.agent.git import git_repositories as git_module
from chatd.agent.git.git_command import GitCommand, GitError, quote_path
from chatd.agent.git.git_repositories import RepositoryState, find_roots, read_state, scan
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


def test_staged_unstaged_and_untracked_files_are_in_the_diff(repo: Path, git: GitCommand) -> None:
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


def test_the_diff_is_a_patch_that_git_applies(repo: Path, git: GitCommand, tmp_path: Path) -> None:
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


def test_a_repository_without_a_commit_or_a_branch_is_scanned(
    repo: Path, git: GitCommand, tmp_path: Path
) -> None:
    empty = tmp_path / "unborn"
    empty.mkdir()
    run_git(empty, "init", "-q")
    (empty / "f").write_text("x\n")
    run_git(empty, "add", "f")
    state = scan(git, str(empty))
    assert (state.branch, "+x\n" in state.unified_diff) == ("main", True)
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
def test_the_remote_url_has_no_password(repo: Path, git: GitCommand, url: str, shown: str) -> None:
    run_git(repo, "remote", "add", "origin", url)
    assert scan(git, str(repo)).remote_origin == shown


def test_a_diff_over_the_limit_is_replaced_by_a_sentence(
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


def test_the_diff_only_names_binary_files(repo: Path, git: GitCommand) -> None:
    (repo / "bin").write_bytes(b"\0\1\2")
    (repo / "a.txt").write_bytes(b"\0")
    diff = scan(git, str(repo)).unified_diff
    assert "Binary files /dev/null and b/bin differ\n" in diff
    assert "Binary files a/a.txt and b/a.txt differ\n" in diff
    (repo / "latin").write_bytes(b"caf\xe9\n")
    scan(git, str(repo)).unified_diff.encode("utf-8")


def test_programs_configured_by_a_repository_are_not_run(
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


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves the file `ran` beside it."""
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\ncat\n")
    trap.chmod(0o755)
    return trap


@pytest.mark.parametrize(
    "keys",
    [
        ("filter.evil.clean",),
        ("filter.evil.process",),
        ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process"),
        ("filter.Evil.One.clean",),
    ],
)
@pytest.mark.parametrize("where", [".gitattributes", ".git/info/attributes"])
def test_filters_of_a_repository_are_not_run(
    repo: Path, git: GitCommand, trap: Path, keys: tuple[str, ...], where: str
) -> None:
    name = keys[0].removeprefix("filter.").rpartition(".")[0]
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / where).write_text(f"* filter={name}\n")
    for key in keys:
        run_git(repo, "config", key, str(trap))
    run_git(repo, "config", f"filter.{name}.required", "true")
    (repo / "a.txt").write_text("two\n")
    assert "+two" in scan(git, str(repo)).unified_diff
    assert not (trap.parent / "ran").exists()


def test_a_filter_with_a_name_that_cannot_be_switched_off_stops_the_scan(
    repo: Path, git: GitCommand, trap: Path
) -> None:
    (repo / ".gitattributes").write_text("* filter=a=b\n")
    run_git(repo, "config", "filter.a=b.clean", str(trap))
    (repo / "a.txt").write_text("two\n")
    with pytest.raises(GitError, match="filter"):
        scan(git, str(repo))
    assert not (trap.parent / "ran").exists()


def test_hooks_of_a_configured_directory_are_not_run(
    repo: Path, git: GitCommand, trap: Path, tmp_path: Path
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in (
        "post-index-change",
        "fsmonitor-watchman",
        "post-checkout",
        "reference-transaction",
    ):
        (hooks / name).symlink_to(trap)
    run_git(repo, "config", "core.hooksPath", str(hooks))
    run_git(repo, "config", "core.fsmonitor", "true")
    (repo / "a.txt").write_text("two\n")
    assert "+two" in scan(git, str(repo)).unified_diff
    assert not (trap.parent / "ran").exists()


def test_programs_configured_by_a_submodule_are_not_run(
    repo: Path, git: GitCommand, trap: Path, tmp_path: Path
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    run_git(inner, "init", "-q")
    (inner / "b.txt").write_text("one\n")
    run_git(inner, "add", ".")
    run_git(inner, "commit", "-qm", "one")
    run_git(
        repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "s"
    )
    run_git(repo, "commit", "-qm", "a submodule")
    run_git(repo, "config", "diff.submodule", "diff")
    (repo / "s/b.txt").write_text("two\n")
    run_git(repo / "s", "commit", "-qam", "two")
    (repo / "s/b.txt").write_text("three\n")
    (repo / "s/.gitattributes").write_text("* filter=evil\n")
    for key in ("filter.evil.clean", "core.fsmonitor", "diff.external"):
        run_git(repo / "s", "config", key, str(trap))
    assert "Subproject commit" in scan(git, str(repo)).unified_diff
    assert not (trap.parent / "ran").exists()


def test_the_index_is_neither_locked_nor_written(repo: Path, git: GitCommand) -> None:
    index = repo / ".git/index"
    before = index.read_bytes()
    os.utime(repo / "a.txt", (1, 1))  # git status would refresh the index now
    (repo / ".git/index.lock").touch()
    assert scan(git, str(repo)).unified_diff == ""
    assert index.read_bytes() == before


def test_a_hanging_git_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    begins = iter([0.0])

    def now() -> float:
        """The timeout expires once the child has started."""
        over = pid.exists() and pid.read_text().endswith("\n")
        return next(begins, 1000.0 if over else 0.0)

    fake_git(tmp_path / "bin", f"sleep 1000 & echo $! > {pid}; wait")
    hanging = GitCommand(base={"PATH": f"{tmp_path}/bin:{os.defpath}"}, timeout_s=0.02, now=now)
    with pytest.raises(GitError, match="not answered within"):
        hanging.run_git("/", "diff")
    assert _is_dead(int(pid.read_text()))


def _is_dead(pid: int) -> bool:
    """A killed process exists until it is reaped."""
    for _ in range(100_000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in {"Z", "X"}:
            return True
        os.sched_yield()
    return False


def test_a_git_with_too_much_output_is_killed(tmp_path: Path) -> None:
    answer = fake_git(tmp_path / "bin", "yes").run_git("/", "diff", limit=1000)
    assert (answer.is_cut, len(answer.output)) == (True, 1000)


def test_a_failing_or_missing_git_raises_its_message(tmp_path: Path) -> None:
    failing = fake_git(tmp_path / "bin", "yes complaint | head -c 100000 >&2; exit 3")
    with pytest.raises(GitError, match="complaint"):
        failing.run_git("/", "diff")
    assert failing.run_git("/", "diff", codes=(3,)).code == 3
    with pytest.raises(GitError, match="cannot be started"):
        GitCommand(base={"PATH": str(tmp_path / "empty")}).run_git("/", "diff")


def test_repositories_are_found_above_touched_paths(repo: Path, tmp_path: Path) -> None:
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


def test_a_repository_is_removed_only_without_its_git_directory(
    repo: Path, git: GitCommand, tmp_path: Path
) -> None:
    assert read_state(git, str(repo)) == RepositoryState(str(repo), branch="main")
    broken = fake_git(tmp_path / "bin", "exit 128")
    assert read_state(broken, str(repo)) is None
    (repo / ".git").rename(repo / "git")
    assert read_state(git, str(repo)) == RepositoryState(str(repo), removed=True)


def test_names_are_quoted_as_by_git() -> None:
    assert quote_path("b/plain é.txt") == "b/plain é.txt"
    assert quote_path('b/a"b\\c\td\x01') == '"b/a\\"b\\\\c\\td\\001"'
