"""Puts one file back to what it was before a turn, before the chat, or in the last commit.

Git writes the file, without hooks and filters. Of the last commit it also resets the index; of a
snapshot it changes the working tree only. A file that was not there then is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from chatd.agent.errors import AgentError
from chatd.agent.git.command import GitCommand, GitError
from chatd.agent.git.repositories import read_base_tree
from chatd.agent.git.snapshots import find_tree

_LITERAL = {"GIT_LITERAL_PATHSPECS": "1"}


def revert_files(git: GitCommand, root: str, chat: str, scope: str, turn: str, *paths: str) -> None:
    """Blocks. Raises AgentError, also for a file that cannot be reverted, and then the files after
    it stay as they are. The same revert again changes nothing."""
    for path in paths:
        _check(path)
    try:
        tree, env = _base(git, root, chat, scope, turn)
        for path in paths:
            _revert(git, root, tree, {**_LITERAL, **env}, path, with_index=scope == "git")
    except (GitError, OSError) as error:
        raise AgentError(
            409, f"git has not reverted the file: {error}", code="not_reverted"
        ) from error


def _base(
    git: GitCommand, root: str, chat: str, scope: str, turn: str
) -> tuple[str, Mapping[str, str]]:
    if scope == "git":
        return read_base_tree(git, root), {}
    kept = find_tree(git, root, chat, scope, turn)
    if kept is None:
        text = f"there is no snapshot from before this {scope} to go back to"
        raise AgentError(409, text, code="not_reverted")
    return kept.tree, kept.env


def _revert(
    git: GitCommand,
    root: str,
    tree: str,
    env: Mapping[str, str],
    path: str,
    *,
    with_index: bool,
) -> None:
    kind = _kind(git, root, tree, env, path)
    if kind not in ("", "blob"):
        raise AgentError(409, f"{path} is no file in that state", code="not_reverted")
    target = os.path.join(root, path)
    if os.path.isdir(target) and not os.path.islink(target):
        raise AgentError(409, f"{path} is a directory now", code="not_reverted")
    if with_index and kind and _has_filter(git, root, path):
        text = f"{path} has a filter that git must run: use git restore in the terminal"
        raise AgentError(409, text, code="not_reverted")
    is_tracked = git.run_git(root, "ls-files", "-z", "--", path, env=env).output != b""
    if kind or (with_index and is_tracked):
        places = ("--staged", "--worktree") if with_index else ("--worktree",)
        command = ("restore", f"--source={tree}", *places, "--", path)
        git.run_git(root, *command, settings=git.settings_without_filters(root), env=env)
    elif os.path.lexists(target):
        _delete(root, target)


def _kind(git: GitCommand, root: str, tree: str, env: Mapping[str, str], path: str) -> str:
    """`blob`, `tree`, `commit`, or empty if the tree does not have it."""
    listed = git.run_git(root, "ls-tree", "-z", "--full-tree", tree, "--", path, env=env)
    for entry in os.fsdecode(listed.output).split("\0"):
        facts, tab, name = entry.partition("\t")
        if tab and name == path:
            return facts.split(" ")[1]
    return ""


def _has_filter(git: GitCommand, root: str, path: str) -> bool:
    found = git.run_git(root, "check-attr", "-z", "filter", "--", path, env=_LITERAL)
    return os.fsdecode(found.output).split("\0")[2:3] not in (["unspecified"], ["unset"], [])


def _delete(root: str, target: str) -> None:
    parent = os.path.realpath(os.path.dirname(target))
    top = os.path.realpath(root)
    if parent != top and not parent.startswith(top + os.sep):
        raise AgentError(409, "the file lies outside the repository", code="not_reverted")
    os.unlink(os.path.join(parent, os.path.basename(target)))


def _check(path: str) -> None:
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..", ".git") for part in parts):
        raise AgentError(400, "path must be that of a file, relative to the repository")
