"""Workspaces in a directory of the person who started the runner: what they see and change."""

import os
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from chatd.domain.workspace.entities import TemplateSpec
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.local.here import HereView, explain_refusal, here_view
from chatd.workspaces.local.local_backend import here_config, machine_config
from tests.support.local_rig import (
    HOST,
    NO_BUBBLEWRAP,
    LocalRig,
    RunningWorkspace,
    data_directory,
    open_rig,
    shared_kits,
)

HOME = Path("/home/ada")


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    with data_directory(shared_kits(tmp_path_factory)) as data:
        yield data


@pytest.fixture
def project() -> Generator[Path]:
    """A directory in a home with a key. Not in /tmp, of which sandboxes have their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        path = Path(home, "project")
        path.mkdir()
        (path / "file").write_text("before\n")
        Path(home, ".ssh").mkdir()
        Path(home, ".ssh", "id").write_text("secret")
        Path(home, "notes").write_text("notes")
        yield path


def view_of(project: Path, *hidden: Path) -> HereView:
    env = {"HOME": str(project.parent), "PATH": os.defpath, "AWS_SECRET_ACCESS_KEY": "secret"}
    return here_view(project, env, hidden=hidden, network=False)


@asynccontextmanager
async def started(
    rig: LocalRig, project: Path, directory: Path | None = None
) -> AsyncGenerator[RunningWorkspace]:
    params = {"directory": str(directory or project)}
    context = rig.context(TemplateSpec(), params=params)
    (agent,) = await rig.backend.start(context)
    yield RunningWorkspace(workspace=context.workspace, agent=agent)


@pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")
async def test_the_directory_is_writable_and_the_rest_is_not(data_dir: Path, project: Path) -> None:
    """Real sandboxes of this machine, which take a moment to start."""
    hidden = project / "hidden"
    hidden.mkdir()
    (hidden / "token").write_text("secret")
    config = here_config(data_dir, HOST, view_of(project, hidden, data_dir))
    async with open_rig(config) as rig, started(rig, project) as running:
        assert (running.agent.isolation, running.agent.network) == ("bwrap", "none")
        assert running.agent.directory == str(project)
        said = await rig.output_of(running, "pwd; cat file; echo after > file; echo $HOME")
        assert said.split() == [str(project), "before", "/run/chatd-home"]
        assert (project / "file").read_text() == "after\n"
        attempts = {
            f"touch {project.parent}/notes": "Read-only",
            "touch /usr/share/chatd-was-here": "Read-only",
            "touch /etc/chatd-was-here": "Read-only",
            f"cat {project.parent}/.ssh/id": "No such",
            f"cat {hidden}/token": "No such",
            f"touch {hidden}/new": "Read-only",
            f"ls {data_dir}/ws": "No such",
            "ls /run/systemd /run/dbus /var/run/docker.sock": "No such",
            "mkdir /new": "Read-only",
        }
        for command, refusal in attempts.items():
            output = await rig.run(running, f"{command} 2>&1")
            assert output.exit_code != 0, (command, output)
            assert refusal in output.output, (command, output)
        assert await rig.output_of(running, "env | grep -c AWS") == "0"
        assert await rig.output_of(running, "touch ~/cache /tmp/own && echo yes") == "yes"
        assert "own" not in os.listdir("/tmp")


@pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")
async def test_a_server_cannot_name_another_directory(data_dir: Path, project: Path) -> None:
    other = project.parent / "other"
    other.mkdir()
    async with open_rig(here_config(data_dir, HOST, view_of(project))) as rig:
        with pytest.raises(BuildFailed, match=f"works in {project} only"):
            async with started(rig, project, other):
                pass
        (problem,) = await rig.backend.validate(TemplateSpec(), {})
        assert problem.field == "directory"


async def test_a_machine_workspace_works_there_without_isolation(
    data_dir: Path, project: Path
) -> None:
    config = machine_config(data_dir, HOST, replace(view_of(project), network=True))
    async with open_rig(config) as rig, started(rig, project) as running:
        assert (rig.backend.kind, running.agent.isolation) == ("machine", "none")
        said = await rig.output_of(running, "pwd; id -u; cat ~/.ssh/id; echo new > ../notes")
        assert said.split() == [str(project), str(os.geteuid()), "secret"]
        assert (project.parent / "notes").read_text() == "new\n"


@pytest.mark.parametrize(
    ("directory", "refusal"),
    [
        ("/home/ada/project", None),
        ("/srv/project", None),
        ("/tmp/project", None),
        ("/", "belongs to the system"),
        ("/tmp", "belongs to the system"),
        ("/etc/ssl", "belongs to the system"),
        ("/home/ada", ".profile"),
        ("/home", ".profile"),
    ],
)
def test_a_directory_that_would_open_the_machine_is_refused(
    directory: str, refusal: str | None
) -> None:
    found = explain_refusal(HereView(directory=Path(directory), home=HOME))
    assert (found is None) if refusal is None else refusal in (found or "")


def test_a_directory_inside_a_hidden_one_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / ".ssh" / "keys"
    inside.mkdir(parents=True)
    found = explain_refusal(HereView(directory=inside, home=tmp_path))
    assert found is not None
    assert "hidden from workspaces" in found


def test_commands_get_the_tools_of_the_person_and_no_secrets(tmp_path: Path) -> None:
    (tmp_path / ".rustup").mkdir()
    (tmp_path / ".gitconfig").touch()
    env = {"HOME": str(tmp_path), "PATH": "/opt/bin", "GITHUB_TOKEN": "x", "LANG": "C"}
    assert here_view(tmp_path, env, hidden=(), network=False).env == {
        "PATH": "/opt/bin",
        "LANG": "C",
        "RUSTUP_HOME": str(tmp_path / ".rustup"),
        "GIT_CONFIG_GLOBAL": str(tmp_path / ".gitconfig"),
    }
