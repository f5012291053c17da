"""Git as a user runs it, and a fake git."""

import os
import subprocess
from pathlib import Path

from chatd.agent.git.git_command import GitCommand

HOME = "/nonexistent"


def run_git(root: Path, *args: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *identity, *args],
        cwd=root,
        env={"PATH": os.defpath, "HOME": HOME, "GIT_CONFIG_NOSYSTEM": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def fake_git(directory: Path, script: str) -> GitCommand:
    directory.mkdir()
    (directory / "git").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "git").chmod(0o755)
    return GitCommand(base={"PATH": f"{directory}:{os.defpath}"}, timeout_s=30)
