"""The working directory and environment of a command."""

import os
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.processes.process_child import CommandEnvironment, expand_variables
from tests.agent.processes.agent_fixture import BASE, AgentFixture, boot_agent


@pytest.mark.covers("processes-2")
def test_later_variables_win_and_the_chat_id_is_last() -> None:
    environment = CommandEnvironment(
        home="/h", base={"A": "base", "B": "base"}, template={"B": "template", "C": "template"}
    )
    assert environment.build_variables({"C": "request", "CHATD_CHAT_ID": "forged"}, "chat") == {
        "HOME": "/h",
        "A": "base",
        "B": "template",
        "C": "request",
        "CHATD_CHAT_ID": "chat",
    }


def test_without_a_chat_the_chat_id_is_not_set() -> None:
    environment = CommandEnvironment(home="/h", template={"CHATD_CHAT_ID": "forged"})
    assert environment.build_variables({}, None) == {"HOME": "/h"}


def test_the_template_may_refer_to_earlier_variables() -> None:
    environment = CommandEnvironment(
        home="/h", base={"PATH": "/bin"}, template={"TOP": "$HOME/top", "PATH": "${TOP}/bin:$PATH"}
    )
    assert environment.build_variables({}, None)["PATH"] == "/h/top/bin:/bin"


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("$A", "1"),
        ("${A}b", "1b"),
        ("$Ab", ""),
        ("$NONE-${NONE}", "-"),
        ("5$ and $$A", "5$ and $1"),
        ("$1 ${1} ${ $", "$1 ${1} ${ $"),
        ("$B", "$A"),
    ],
)
def test_only_variables_are_expanded(value: str, expanded: str) -> None:
    assert expand_variables(value, {"A": "1", "B": "$A"}) == expanded


def test_requested_variables_are_not_expanded() -> None:
    environment = CommandEnvironment(home="/h")
    assert environment.build_variables({"A": "$HOME"}, None)["A"] == "$HOME"


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}])
def test_invalid_variables_are_refused(env: dict[str, str]) -> None:
    with pytest.raises(AgentError) as refusal:
        CommandEnvironment(home="/h").build_variables(env, None)
    assert refusal.value.status == 400


@pytest.mark.covers("processes-1")
def test_the_working_directory_is_requested_or_the_default_or_home(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    (home / "sub").mkdir(parents=True)
    project.mkdir()
    environment = CommandEnvironment(home=str(home), directory=str(project))
    assert environment.resolve_workdir("/") == "/"
    assert environment.resolve_workdir("~") == str(home)
    assert environment.resolve_workdir("~/sub") == str(home / "sub")
    assert environment.resolve_workdir("../home/sub") == str(home / "sub")
    assert environment.resolve_workdir(None) == environment.resolve_workdir("") == str(project)
    project.rmdir()
    assert environment.resolve_workdir(None) == str(home)
    assert CommandEnvironment(home=str(home / "gone")).resolve_workdir(None) == "/"


@pytest.mark.covers("processes-1")
@pytest.mark.parametrize("workdir", ["missing", "/missing", "file", "\0"])
async def test_an_invalid_working_directory_is_refused(
    tmp_path: Path, agent: AgentFixture, workdir: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AgentError, match="workdir") as refusal:
        await agent.processes.start("pwd", workdir=workdir)
    assert (refusal.value.status, refusal.value.code) == (400, "no_such_workdir")


@pytest.mark.covers("processes-2")
async def test_a_command_does_not_see_the_agent_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SECRET", "hidden")
    async with boot_agent(tmp_path, template={"MODE": "at $HOME"}) as agent:
        started = await agent.processes.start(
            "pwd; env", chat_id="chat", workdir="run", env={"PAGER": "cat"}
        )
        output = str((await agent.wait_for_end(str(started["id"])))["output"])
    here, *env = output.splitlines()
    assert here == str(tmp_path / "run")
    assert dict(line.split("=", 1) for line in env) == {
        **BASE,
        "HOME": str(tmp_path),
        "MODE": f"at {tmp_path}",
        "PAGER": "cat",
        "CHATD_CHAT_ID": "chat",
        "PWD": str(tmp_path / "run"),
    }


async def test_a_path_without_programs_still_finds_the_shell(agent: AgentFixture) -> None:
    started = await agent.processes.start("echo $PATH", env={"PATH": os.devnull})
    assert (await agent.wait_for_end(str(started["id"])))["output"] == f"{os.devnull}\n"
