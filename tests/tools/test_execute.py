"""Commands as a model runs them, on a real agent."""

import asyncio

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.tool_calls import call_key
from chatd.domain.errors import Unavailable
from chatd.domain.workspace.agent_api import AgentUnreachable, WorkspaceUnavailable
from chatd.tools.command_output import COMMAND_ENVIRONMENT
from tests.support.eventually import eventually
from tests.tools.tool_caller import ToolCaller, lossy_agent
from tests.workspaces.agents import Workbench


@pytest.mark.covers("execute-2")
async def test_a_command_is_run_and_told_about(bench: Workbench) -> None:
    told = await ToolCaller(bench).result_of("execute", command="echo hello; exit 0")
    assert told["success"] is True
    assert told["exit_code"] == 0
    assert told["output"] == "hello\n"
    assert told["wall_duration_ms"] >= 0
    assert "error" not in told


@pytest.mark.covers("execute-2")
async def test_a_command_that_fails_is_no_success(bench: Workbench) -> None:
    told = await ToolCaller(bench).result_of("execute", command="echo oops >&2; exit 3")
    assert (told["success"], told["exit_code"], told["output"]) == (False, 3, "oops\n")


@pytest.mark.covers("execute-2")
@pytest.mark.promise("P13")
async def test_nothing_waits_for_a_person_and_nothing_of_the_server_leaks(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHATD_ADMIN_TOKEN", "not for workspaces")
    told = await ToolCaller(bench).result_of("execute", command="env")
    seen = dict(line.split("=", 1) for line in str(told["output"]).splitlines() if "=" in line)
    assert COMMAND_ENVIRONMENT.items() <= seen.items()
    assert seen["CHATD_CHAT_ID"] == str(bench.chat_id)
    assert {name for name in seen if name.startswith("CHATD_")} == {
        "CHATD_CHAT_ID",
        "CHATD_CHAT_AGENT",
    }


async def test_a_command_runs_where_it_is_told_to(bench: Workbench) -> None:
    place = bench.path("")
    told = await ToolCaller(bench).result_of("execute", command="pwd", workdir=place)
    assert str(told["output"]).strip() == place.rstrip("/")


@pytest.mark.covers("processes-1", "execute-2")
async def test_a_command_in_the_background_is_not_waited_for(bench: Workbench) -> None:
    desk = ToolCaller(bench)
    told = await desk.result_of("execute", command="exec sleep 600", run_in_background=True)
    assert told["backgrounded"] is True
    process = told["background_process_id"]
    listed = await desk.result_of("process_list")
    assert [(p["id"], p["running"]) for p in listed["processes"]] == [(process, True)]
    ended = await desk.result_of("process_signal", process_id=process, signal="kill")
    assert ended["success"] is True
    last = await desk.result_of("process_output", process_id=process)
    assert (last["success"], last["exit_code"]) == (False, -1)


@pytest.mark.covers("execute-1")
async def test_an_ampersand_puts_a_command_into_the_background(bench: Workbench) -> None:
    desk = ToolCaller(bench)
    told = await desk.result_of("execute", command="exec sleep 600 &")
    assert told["backgrounded"] is True
    await desk.result_of("process_signal", process_id=told["background_process_id"], signal="kill")


@pytest.mark.covers("execute-2")
async def test_a_command_that_takes_too_long_runs_on_and_can_be_found(bench: Workbench) -> None:
    desk = ToolCaller(bench)
    command = "echo begun; while [ ! -e go ]; do sleep 0.02; done; echo ended"
    told = await desk.result_of("execute", command=command, timeout="300ms", workdir=bench.path(""))
    assert told["success"] is False
    assert told["exit_code"] == -1
    assert told["error"] == "timed out after 0.3s"
    assert told["output"] == "begun\n"
    assert told["running"] is True
    await bench.conn.write_file(bench.path("go"), b"", key=bench.key("go"))
    last = await desk.result_of("process_output", process_id=told["background_process_id"])
    assert (last["success"], last["output"]) == (True, "begun\nended\n")


async def test_a_command_that_runs_is_told_to_run(bench: Workbench) -> None:
    desk = ToolCaller(bench)
    told = await desk.result_of("execute", command="exec sleep 600", run_in_background=True)
    process = told["background_process_id"]
    seen = await desk.result_of("process_output", process_id=process, wait_timeout="0s")
    assert (seen["success"], seen["running"]) == (True, True)
    assert "exit_code" not in seen
    await desk.result_of("process_signal", process_id=process, signal="terminate")
    assert not (await desk.result_of("process_output", process_id=process)).get("running")


@pytest.mark.promise("P7")
async def test_a_call_that_is_run_again_finds_the_command_it_has_started(bench: Workbench) -> None:
    desk, command = ToolCaller(bench), f"echo once >> {bench.path('log')}; cat {bench.path('log')}"
    first = await desk.result_of("execute", "the-call", command=command)
    again = await desk.result_of("execute", "the-call", command=command)
    assert first["output"] == again["output"] == "once\n"


async def test_what_a_command_prints_is_shown_while_it_runs(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.tools.execute.FIRST_OUTPUT_AFTER_S", 0.05)
    monkeypatch.setattr("chatd.tools.execute.OUTPUT_POLL_INTERVAL_S", 0.05)
    desk = ToolCaller(bench)
    command = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"
    async with asyncio.TaskGroup() as group:
        running = group.create_task(
            desk.result_of("execute", command=command, timeout="40s", workdir=bench.path(""))
        )

        async def shown() -> bool:
            return desk.shown == ["one\n"]

        await eventually(shown, within_s=30)
        await bench.conn.write_file(bench.path("go"), b"", key=bench.key("go"))
    assert running.result()["output"] == "one\ntwo\n"
    assert "".join(desk.shown) in ("one\n", "one\ntwo\n")


@pytest.mark.promise("P4")
async def test_a_stop_says_at_once_what_is_still_running(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.tools.execute.FIRST_OUTPUT_AFTER_S", 0.05)
    desk = ToolCaller(bench)
    args = Raw(msgspec.json.encode({"command": "echo begun; exec sleep 600", "timeout": "5m"}))
    run = asyncio.get_running_loop().create_task(desk.tools["execute"].run(desk.context(), args))

    async def shown() -> bool:
        return bool(desk.shown)

    await eventually(shown, within_s=30)
    run.cancel()
    output = await run
    told = msgspec.json.decode(output.text)
    assert told["running"] is True
    assert told["output"] == "begun\n"
    process = told["background_process_id"]
    await desk.result_of("process_signal", process_id=process, signal="kill")


@pytest.mark.covers("execute-3")
async def test_a_line_that_breaks_is_no_matter_if_the_command_has_ended(bench: Workbench) -> None:
    desk = ToolCaller(bench, lossy_agent(bench.conn, losses=1))
    told = await desk.result_of("execute", command="echo fine")
    assert (told["success"], told["output"]) == (True, "fine\n")


@pytest.mark.covers("execute-3")
async def test_a_line_that_breaks_leaves_a_command_that_can_be_found(bench: Workbench) -> None:
    desk = ToolCaller(bench, lossy_agent(bench.conn, losses=1))
    told = await desk.result_of("execute", command="echo begun; exec sleep 600", timeout="400ms")
    assert told["running"] is True
    assert told["error"] == "The line broke."
    assert told["output"] == "begun\n"
    await desk.result_of("process_signal", process_id=told["background_process_id"], signal="kill")


@pytest.mark.covers("execute-3")
async def test_a_line_that_stays_broken_still_names_the_command(bench: Workbench) -> None:
    desk = ToolCaller(bench, lossy_agent(bench.conn, losses=2))
    told = await desk.result_of("execute", command="echo fine")
    assert told["background_process_id"]
    assert "Ask with process_output" in told["note"]


@pytest.mark.covers("execute-3")
async def test_a_command_that_cannot_be_started_says_why(bench: Workbench) -> None:
    told = await ToolCaller(bench).result_of("execute", command="true", workdir="relative/path")
    assert told["success"] is False
    assert "relative/path" in told["error"] or "absolute" in told["error"]


@pytest.mark.covers("execute-1")
@pytest.mark.parametrize("command", ["", "   ", None])
async def test_a_call_without_a_command_is_told_what_is_missing(
    bench: Workbench, command: str | None
) -> None:
    output = await ToolCaller(bench).call("execute", command=command)
    assert output.is_error
    assert output.text == "command is required: the shell command to run."


async def test_a_timeout_that_is_none_is_refused_before_anything_runs(bench: Workbench) -> None:
    desk = ToolCaller(bench)
    output = await desk.call("execute", command=f"touch {bench.path('x')}", timeout="soon")
    assert output.is_error
    assert output.text.startswith("timeout must be a duration")
    assert (await desk.result_of("process_list"))["processes"] == []


@pytest.mark.covers("execute-4")
@pytest.mark.promise("P14")
@pytest.mark.parametrize(
    ("error", "says"),
    [
        (WorkspaceUnavailable("This chat has none. Call create_workspace."), "create_workspace."),
        (
            AgentUnreachable("The workspace does not answer."),
            "stop_workspace, then start_workspace",
        ),
        (Unavailable("10.0.0.5 refuses"), "Try again in a moment."),
    ],
)
@pytest.mark.parametrize("name", ["execute", "read_file", "process_list"])
async def test_a_workspace_that_cannot_be_reached_is_an_answer(
    bench: Workbench, name: str, error: Exception, says: str
) -> None:
    desk = ToolCaller(bench)
    desk.line = error
    output = await desk.call(name, command="true", path="/x")
    assert output.is_error
    assert output.text.endswith((says, f"{says}."))
    assert "10.0.0.5" not in output.text


@pytest.mark.covers("execute-4", "hostile-1")
async def test_endless_output_keeps_both_ends_and_says_so(bench: Workbench) -> None:
    command = "echo first; head -c 300000 /dev/zero | tr '\\0' 'é'; echo; echo last"
    told = await ToolCaller(bench).result_of("execute", command=command, timeout="30s")
    assert str(told["output"]).startswith("first\n")
    assert str(told["output"]).endswith("last\n")
    assert len(str(told["output"]).encode()) < 40_000
    assert told["truncated"]["omitted_bytes"] > 0


@pytest.mark.covers("execute-4")
async def test_dumping_a_file_is_answered_with_advice(bench: Workbench) -> None:
    told = await ToolCaller(bench).result_of("execute", command="cat /dev/null")
    assert "read_file" in told["note"]


@pytest.mark.parametrize("name", ["process_output", "process_signal"])
async def test_a_process_nobody_knows_is_said_to_be_unknown(bench: Workbench, name: str) -> None:
    told = await ToolCaller(bench).result_of(name, process_id="nobody", signal="kill")
    assert told["success"] is False
    assert told["error"]


async def test_a_signal_has_one_of_two_names(bench: Workbench) -> None:
    output = await ToolCaller(bench).call("process_signal", process_id="x", signal="hup")
    assert output.text == 'signal must be "kill" or "terminate", not "hup".'


@pytest.mark.parametrize(
    "call", ["two\nlines", "x" * 3000, "ümlaut \u2028", "\x00", "half \ud800", "a\r\nB: c", " "]
)
async def test_a_call_is_run_once_whatever_a_model_calls_it(bench: Workbench, call: str) -> None:
    """Ids come from providers, and not all of them keep to letters."""
    desk, place = ToolCaller(bench), bench.path("count")
    for _ in range(2):
        told = await desk.result_of("execute", call, command=f"echo once >> {place}")
        assert told["success"] is True
    assert await bench.conn.read_file(place) == b"once\n"


async def test_calls_are_told_apart_by_every_letter_of_their_names(bench: Workbench) -> None:
    desk = ToolCaller(bench)
    for number, call in enumerate(("a", "a ", " a", "a\t", "a\n")):
        told = await desk.result_of("execute", call, command=f"echo {number}")
        assert told["output"] == f"{number}\n"


@pytest.mark.promise("P7")
@pytest.mark.parametrize("call", ["call_1", "x" * 400, "two words", "sha256:a"])
async def test_a_call_that_can_travel_as_it_is_keeps_its_name(bench: Workbench, call: str) -> None:
    """A version before may have begun it under that name; and the agent takes it."""
    desk = ToolCaller(bench)
    context = desk.context(call)
    assert call_key(context) == f"{context.chat.id}:{context.fence.history_version}:{call}"
    assert (await desk.result_of("execute", call, command="true"))["success"] is True
