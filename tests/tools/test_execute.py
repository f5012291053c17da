"""The execute and process tools on a real agent."""

import asyncio

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.errors import Unavailable
from chatd.domain.workspace.agent_api import AgentUnreachable, WorkspaceUnavailable
from chatd.tools.execute import COMMAND_ENVIRONMENT
from tests.support.eventually import eventually
from tests.tools.tool_caller import ToolCaller, lossy_agent
from tests.workspaces.agent_process import Workbench


@pytest.mark.covers("execute-2")
async def test_a_command_runs_and_is_reported(bench: Workbench) -> None:
    result = await ToolCaller(bench).result_of("execute", command="echo hello; exit 0")
    assert result["success"] is True
    assert result["exit_code"] == 0
    assert result["output"] == "hello\n"
    assert result["wall_duration_ms"] >= 0
    assert "error" not in result


@pytest.mark.covers("execute-2")
async def test_a_failed_command_is_no_success(bench: Workbench) -> None:
    result = await ToolCaller(bench).result_of("execute", command="echo oops >&2; exit 3")
    assert (result["success"], result["exit_code"], result["output"]) == (False, 3, "oops\n")


@pytest.mark.covers("execute-2")
@pytest.mark.promise("P13")
async def test_no_command_waits_for_input_and_no_server_variable_leaks(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHATD_ADMIN_TOKEN", "not for workspaces")
    result = await ToolCaller(bench).result_of("execute", command="env")
    seen = dict(line.split("=", 1) for line in str(result["output"]).splitlines() if "=" in line)
    assert COMMAND_ENVIRONMENT.items() <= seen.items()
    assert seen["CHATD_CHAT_ID"] == str(bench.chat_id)
    assert {name for name in seen if name.startswith("CHATD_")} == {
        "CHATD_CHAT_ID",
        "CHATD_CHAT_AGENT",
    }


async def test_a_command_learns_its_place_in_the_trace(bench: Workbench) -> None:
    caller = ToolCaller(bench)
    context = replace(caller.context(), traceparent="00-1a-2b-01")
    args = Raw(b'{"command": "echo at $TRACEPARENT"}')
    assert "at 00-1a-2b-01" in (await caller.tools["execute"].run(context, args)).text


async def test_a_command_runs_in_the_given_directory(bench: Workbench) -> None:
    place = bench.path("")
    result = await ToolCaller(bench).result_of("execute", command="pwd", workdir=place)
    assert str(result["output"]).strip() == place.rstrip("/")


@pytest.mark.covers("processes-1", "execute-2")
async def test_a_command_in_the_background_is_not_waited_for(bench: Workbench) -> None:
    caller = ToolCaller(bench)
    result = await caller.result_of("execute", command="exec sleep 600", run_in_background=True)
    assert result["backgrounded"] is True
    process = result["background_process_id"]
    listed = await caller.result_of("process_list")
    assert [(p["id"], p["running"]) for p in listed["processes"]] == [(process, True)]
    ended = await caller.result_of("process_signal", process_id=process, signal="kill")
    assert ended["success"] is True
    last = await caller.result_of("process_output", process_id=process)
    assert (last["success"], last["signal"]) == (False, "SIGKILL")
    assert "exit_code" not in last
    [ended] = (await caller.result_of("process_list"))["processes"]
    assert (ended["exit_code"], ended["signal"]) == (None, "SIGKILL")


@pytest.mark.covers("execute-1")
async def test_an_ampersand_puts_a_command_into_the_background(bench: Workbench) -> None:
    caller = ToolCaller(bench)
    result = await caller.result_of("execute", command="exec sleep 600 &")
    assert result["backgrounded"] is True
    await caller.result_of(
        "process_signal", process_id=result["background_process_id"], signal="kill"
    )


@pytest.mark.covers("execute-2")
async def test_a_command_past_its_timeout_keeps_running_and_can_be_found(bench: Workbench) -> None:
    caller = ToolCaller(bench)
    command = "echo begun; while [ ! -e go ]; do sleep 0.02; done; echo ended"
    result = await caller.result_of(
        "execute", command=command, timeout="300ms", workdir=bench.path("")
    )
    assert result["success"] is False
    assert "exit_code" not in result
    assert result["timed_out"] is True
    assert result["error"] == "timed out after 0.3s"
    assert result["output"] == "begun\n"
    assert result["running"] is True
    await bench.conn.write_file(bench.path("go"), b"", key=bench.key("go"))
    last = await caller.result_of("process_output", process_id=result["background_process_id"])
    assert (last["success"], last["output"]) == (True, "begun\nended\n")


async def test_a_running_command_is_reported_as_running(bench: Workbench) -> None:
    caller = ToolCaller(bench)
    result = await caller.result_of("execute", command="exec sleep 600", run_in_background=True)
    process = result["background_process_id"]
    seen = await caller.result_of("process_output", process_id=process, wait_timeout="0s")
    assert (seen["success"], seen["running"]) == (True, True)
    assert "exit_code" not in seen
    await caller.result_of("process_signal", process_id=process, signal="terminate")
    assert not (await caller.result_of("process_output", process_id=process)).get("running")


@pytest.mark.promise("P7")
async def test_a_repeated_call_finds_its_command(bench: Workbench) -> None:
    caller, command = (
        ToolCaller(bench),
        f"echo once >> {bench.path('log')}; cat {bench.path('log')}",
    )
    first = await caller.result_of("execute", "the-call", command=command)
    again = await caller.result_of("execute", "the-call", command=command)
    assert first["output"] == again["output"] == "once\n"


async def test_viewers_see_output_while_a_command_runs(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.tools.execute.FIRST_OUTPUT_AFTER_S", 0.05)
    monkeypatch.setattr("chatd.tools.execute.OUTPUT_POLL_INTERVAL_S", 0.05)
    caller = ToolCaller(bench)
    command = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"
    async with asyncio.TaskGroup() as group:
        running = group.create_task(
            caller.result_of("execute", command=command, timeout="40s", workdir=bench.path(""))
        )

        async def shown() -> bool:
            return caller.shown == ["one\n"]

        await eventually(shown, within_s=30)
        await bench.conn.write_file(bench.path("go"), b"", key=bench.key("go"))
    assert running.result()["output"] == "one\ntwo\n"
    assert "".join(caller.shown) in ("one\n", "one\ntwo\n")


@pytest.mark.promise("P4")
async def test_an_interrupt_reports_the_running_command_at_once(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.tools.execute.FIRST_OUTPUT_AFTER_S", 0.05)
    caller = ToolCaller(bench)
    args = Raw(msgspec.json.encode({"command": "echo begun; exec sleep 600", "timeout": "5m"}))
    run = asyncio.get_running_loop().create_task(
        caller.tools["execute"].run(caller.context(), args)
    )

    async def shown() -> bool:
        return bool(caller.shown)

    await eventually(shown, within_s=30)
    run.cancel()
    output = await run
    result = msgspec.json.decode(output.text)
    assert result["running"] is True
    assert result["output"] == "begun\n"
    process = result["background_process_id"]
    await caller.result_of("process_signal", process_id=process, signal="kill")


@pytest.mark.covers("execute-3")
async def test_a_lost_connection_does_not_matter_after_the_command_ended(bench: Workbench) -> None:
    caller = ToolCaller(bench, lossy_agent(bench.conn, losses=1))
    result = await caller.result_of("execute", command="echo fine")
    assert (result["success"], result["output"]) == (True, "fine\n")


@pytest.mark.covers("execute-3")
async def test_after_a_lost_connection_the_command_can_be_found(bench: Workbench) -> None:
    caller = ToolCaller(bench, lossy_agent(bench.conn, losses=1))
    result = await caller.result_of(
        "execute", command="echo begun; exec sleep 600", timeout="400ms"
    )
    assert result["running"] is True
    assert result["error"] == "The connection broke."
    assert result["output"] == "begun\n"
    await caller.result_of(
        "process_signal", process_id=result["background_process_id"], signal="kill"
    )


@pytest.mark.covers("execute-3")
async def test_a_connection_that_stays_lost_still_names_the_command(bench: Workbench) -> None:
    caller = ToolCaller(bench, lossy_agent(bench.conn, losses=2))
    result = await caller.result_of("execute", command="echo fine")
    assert result["background_process_id"]
    assert "Ask with process_output" in result["note"]


@pytest.mark.covers("execute-3")
async def test_a_failed_start_is_reported_with_its_reason(bench: Workbench) -> None:
    result = await ToolCaller(bench).result_of("execute", command="true", workdir="relative/path")
    assert result["success"] is False
    assert "relative/path" in result["error"] or "absolute" in result["error"]


@pytest.mark.covers("execute-1")
@pytest.mark.parametrize("command", ["", "   ", None])
async def test_a_call_without_a_command_is_refused(bench: Workbench, command: str | None) -> None:
    output = await ToolCaller(bench).call("execute", command=command)
    assert output.is_error
    assert output.text == "command is required: the shell command to run."


async def test_an_invalid_timeout_is_refused_before_the_command_runs(bench: Workbench) -> None:
    caller = ToolCaller(bench)
    output = await caller.call("execute", command=f"touch {bench.path('x')}", timeout="soon")
    assert output.is_error
    assert output.text.startswith("timeout must be a duration")
    assert (await caller.result_of("process_list"))["processes"] == []


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
        (Unavailable("10.0.0.5 refuses"), "Check what the call has changed before you repeat it."),
    ],
)
@pytest.mark.parametrize("name", ["execute", "read_file", "process_list"])
async def test_an_unreachable_workspace_is_an_error_result(
    bench: Workbench, name: str, error: Exception, says: str
) -> None:
    caller = ToolCaller(bench)
    caller.agent = error
    output = await caller.call(name, command="true", path="/x")
    assert output.is_error
    assert output.text.endswith((says, f"{says}."))
    assert "10.0.0.5" not in output.text


@pytest.mark.covers("execute-4", "hostile-1")
async def test_endless_output_is_clipped_in_the_middle(bench: Workbench) -> None:
    command = "echo first; head -c 300000 /dev/zero | tr '\\0' 'é'; echo; echo last"
    result = await ToolCaller(bench).result_of("execute", command=command, timeout="30s")
    assert str(result["output"]).startswith("first\n")
    assert str(result["output"]).endswith("last\n")
    assert len(str(result["output"]).encode()) < 40_000
    assert result["truncated"]["omitted_bytes"] > 0
    assert result["output_file"] in result["note"]
    rest = await ToolCaller(bench).result_of("read_file", path=result["output_file"], offset=3)
    assert rest["content"] == "3\tlast\n4\t"


@pytest.mark.covers("execute-4")
async def test_a_command_that_dumps_a_file_gets_advice(bench: Workbench) -> None:
    result = await ToolCaller(bench).result_of("execute", command="cat /dev/null")
    assert "read_file" in result["note"]


@pytest.mark.parametrize("name", ["process_output", "process_signal"])
async def test_an_unknown_process_is_reported(bench: Workbench, name: str) -> None:
    result = await ToolCaller(bench).result_of(name, process_id="nobody", signal="kill")
    assert result["success"] is False
    assert result["error"]


async def test_an_unknown_signal_is_refused(bench: Workbench) -> None:
    output = await ToolCaller(bench).call("process_signal", process_id="x", signal="hup")
    assert output.text == 'signal must be "kill" or "terminate", not "hup".'


@pytest.mark.parametrize(
    "call", ["two\nlines", "x" * 3000, "ümlaut \u2028", "\x00", "half \ud800", "a\r\nB: c", " "]
)
async def test_a_call_runs_once_with_any_call_id(bench: Workbench, call: str) -> None:
    """Providers choose the ids; some contain other characters than letters."""
    caller, place = ToolCaller(bench), bench.path("count")
    for _ in range(2):
        result = await caller.result_of("execute", call, command=f"echo once >> {place}")
        assert result["success"] is True
    assert await bench.conn.read_file(place) == b"once\n"


async def test_call_ids_that_differ_in_one_character_are_different_calls(bench: Workbench) -> None:
    caller = ToolCaller(bench)
    for number, call in enumerate(("a", "a ", " a", "a\t", "a\n")):
        result = await caller.result_of("execute", call, command=f"echo {number}")
        assert result["output"] == f"{number}\n"


@pytest.mark.promise("P7")
@pytest.mark.parametrize("call", ["call_1", "x" * 400, "two words", "sha256:a"])
async def test_a_call_id_that_needs_no_encoding_is_sent_unchanged(
    bench: Workbench, call: str
) -> None:
    """An earlier version of chatd may have started the call under that key."""
    caller = ToolCaller(bench)
    context = caller.context(call)
    assert context.call_key == f"{context.chat.id}:{context.fence.history_version}:{call}"
    assert (await caller.result_of("execute", call, command="true"))["success"] is True
