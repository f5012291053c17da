"""Where a command runs and what its environment is."""

import os
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.processes.environment import CommandEnvironment, expand_variables
from tests.agent.processes.agent_fixture import BASE, boot_agent


@pytest.mark.covers("processes-2")
def test_the_later_environment_wins_and_the_chat_comes_last() -> None:
    around = CommandEnvironment(
        home="/h", base={"A": "base", "B": "base"}, template={"B": "template", "C": "template"}
    )
    assert around.build_variables({"C": "request", "CHATD_CHAT_ID": "forged"}, "chat") == {
        "HOME": "/h",
        "A": "base",
        "B": "template",
        "C": "request",
        "CHATD_CHAT_ID": "chat",
    }


def test_without_a_chat_there_is_no_chat_in_the_environment() -> None:
    around = CommandEnvironment(home="/h", template={"CHATD_CHAT_ID": "forged"})
    assert around.build_variables({}, None) == {"HOME": "/h"}


def test_the_template_may_refer_to_what_is_set_before() -> None:
    around = CommandEnvironment(
        home="/h", base={"PATH": "/bin"}, template={"TOP": "$HOME/top", "PATH": "${TOP}/bin:$PATH"}
    )
    assert around.build_variables({}, None)["PATH"] == "/h/top/bin:/bin"


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
def test_variables_are_replaced_and_other_dollars_are_not(value: str, expanded: str) -> None:
    assert expand_variables(value, {"A": "1", "B": "$A"}) == expanded


def test_a_request_is_not_expanded() -> None:
    around = CommandEnvironment(home="/h")
    assert around.build_variables({"A": "$HOME"}, None)["A"] == "$HOME"


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}])
def test_what_cannot_be_in_an_environment_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(AgentError) as refusal:
        CommandEnvironment(home="/h").build_variables(env, None)
    assert refusal.value.status == 400


@pytest.mark.covers("processes-1")
def test_the_working_directory_is_the_requested_one_else_the_usual_one_else_home(
    tmp_path: Path,
) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    (home / "sub").mkdir(parents=True)
    project.mkdir()
    around = CommandEnvironment(home=str(home), directory=str(project))
    assert around.resolve_workdir("/") == "/"
    assert around.resolve_workdir("~") == str(home)
    assert around.resolve_workdir("~/sub") == str(home / "sub")
    assert around.resolve_workdir("../home/sub") == str(home / "sub")
    assert around.resolve_workdir(None) == around.resolve_workdir("") == str(project)
    project.rmdir()
    assert around.resolve_workdir(None) == str(home)
    assert CommandEnvironment(home=str(home / "gone")).resolve_workdir(None) == "/"


@pytest.mark.covers("processes-1")
@pytest.mark.parametrize("workdir", ["missing", "/missing", "file", "\0"])
async def test_a_working_directory_that_is_none_is_refused_by_name(
    tmp_path: Path, workdir: str
) -> None:
    (tmp_path / "file").touch()
    async with boot_agent(tmp_path) as agent:
        with pytest.raises(AgentError, match="workdir") as refusal:
            await agent.processes.start("pwd", workdir=workdir)
        assert (refusal.value.status, refusal.value.code) == (400, "no_such_workdir")


@pytest.mark.covers("processes-2")
async def test_a_command_sees_its_own_environment_and_nothing_of_the_agents(
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


async def test_a_path_without_programs_still_finds_the_shell(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        started = await agent.processes.start("echo $PATH", env={"PATH": os.devnull})
        assert (await agent.wait_for_end(str(started["id"])))["output"] == f"{os.devnull}\n"
