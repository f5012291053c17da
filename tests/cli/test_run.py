"""`chatd run` as a process, against a server that is another one."""

import signal
from pathlib import Path

import msgspec
import pytest

from tests.support.command_line import Json, ServerProcess, finish, read_lines, read_until

pytestmark = pytest.mark.timeout(240)

FAST = "This is a fast answer"


def chat_of(err: str) -> str:
    return next(line.split()[1] for line in err.splitlines() if line.startswith("chat "))


async def test_only_the_answer_is_on_standard_output(server: ServerProcess) -> None:
    done = await server.run("run", "answer fast")
    assert done.code == 0
    assert done.out.startswith(FAST)
    assert chat_of(done.err) not in done.out
    quiet = await server.run("run", "-q", "answer fast")
    assert (quiet.code, quiet.err, quiet.out) == (0, "", done.out)


async def test_input_is_added_to_the_prompt(server: ServerProcess) -> None:
    done = await server.ok("run", "What is this?", given=b"a unique line of input\n")
    assert "> What is this?\n> \n> a unique line of input" in done.out


def test_a_chat_is_continued_by_its_id_and_as_the_last_one(server: ServerProcess) -> None:
    chat_id = server.answered_chat()
    again = server.pipe("", "run", "-r", chat_id, "a second question")
    last = server.pipe("", "run", "-c", "a third question")
    assert [chat_of(one.err) for one in (again, last)] == [chat_id, chat_id]
    shown = server.done("chats", "show", chat_id).out
    assert shown.index("answer fast") < shown.index("a second") < shown.index("a third")


async def test_the_json_result_has_the_answer_and_what_it_cost(server: ServerProcess) -> None:
    found = (await server.ok("run", "--format", "json", "-m", "dear", "answer fast")).json
    assert str(found["answer"]).startswith(FAST)
    assert (found["ending"], found["exit_code"], found["finish_reason"]) == ("done", 0, "stop")
    assert isinstance(found["chat_cost_micros"], int)
    assert found["chat_cost_micros"] > 0


async def test_stream_json_tells_the_messages_and_ends_with_the_result(
    server: ServerProcess,
) -> None:
    lines = (await server.ok("run", "--format", "stream-json", "think about it")).lines
    kinds = [line["type"] for line in lines]
    assert (kinds[0], kinds[-1]) == ("chat", "result")
    assert kinds.count("message") == 2
    assert str(lines[-1]["answer"]).startswith("Open the box")


def test_files_labels_and_a_budget_reach_the_chat(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("some notes")
    labelled = ("--label", "ci=42", "--max-cost", "0.50", "--format", "json")
    done = server.pipe("", "run", "answer fast", "-m", "demo", "-f", file, *labelled)
    assert done.code == 0, done
    shown = server.done("chats", "show", done.json["chat_id"], "--json").out
    assert '"ci": "42"' in shown
    assert '"max_cost_micros": 500000' in shown
    assert '"name": "notes.txt"' in shown
    listed = server.done("chats", "list", "--label", "ci=42", "--json").items
    assert [chat["id"] for chat in listed] == [done.json["chat_id"]]


def test_a_detached_run_prints_the_id_of_its_chat(server: ServerProcess) -> None:
    chat_id = server.pipe("", "run", "--detach", "answer fast").out.strip()
    assert FAST in server.done("chats", "tail", chat_id, "--until-idle").out


# How it ends


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["show me a permanent error"], 4, "refused the API key"),
        (["-m", "dear", "--max-cost", "0.000001", "hello"], 5, "budget"),
        (["ask me first"], 6, "chatd chats answer"),
        (["-m", "nothing", "hello"], 2, "there are dear, demo\n"),
        (["--mcp", "nobody", "hello"], 2, "there is no MCP server 'nobody'"),
        (["-r", "00000000-0000-0000-0000-000000000009", "hello"], 1, "no such chat"),
        (["--timeout", "0.5", "tell me a long story"], 124, "The time was over"),
    ],
    ids=["error", "budget", "question", "model", "MCP server", "no chat", "time"],
)
async def test_the_exit_code_says_how_it_ended(
    server: ServerProcess, arguments: list[str], code: int, told: str
) -> None:
    done = await server.run("run", *arguments)
    assert done.code == code, done
    assert told.lower() in done.err.lower(), done


async def test_a_wrong_token_is_a_matter_of_sign_in(server: ServerProcess) -> None:
    done = await server.run("run", "hello", env={"CHATD_TOKEN": "wrong"})
    assert done.code == 3
    assert "chatd login" in done.err


async def test_without_a_server_it_says_how_to_start_one(server: ServerProcess) -> None:
    at = ("--url", "http://127.0.0.1:9", "--token-file", "/dev/stdin")
    done = await server.run("models", *at, given=b"x")
    assert (done.code, done.out) == (1, "")
    assert "chatd serve" in done.err


def test_what_a_chat_needs_is_answered_by_the_printed_command(server: ServerProcess) -> None:
    asked = server.pipe("", "run", "ask me first")
    assert (asked.code, asked.out) == (6, "")
    command = next(line.split() for line in asked.err.splitlines() if "chats answer" in line)
    answered = server.done(*command[1:-1], "1")
    assert "answered: ask_user_question" in answered.err
    assert "[5] model" in server.done("chats", "tail", command[3], "--until-idle").out
    again = server.call(*command[1:-1], "1")
    assert (again.code, "does not wait for that" in again.err) == (2, True)


# Interrupts and restarts


async def test_ctrl_c_interrupts_the_chat(server: ServerProcess) -> None:
    async with server.started("run", "--format", "stream-json", "tell me a long story") as process:
        (first, *_) = await read_until(process, '"delta"')
        process.send_signal(signal.SIGINT)
        code, out, err = await finish(process)
    assert code == 130
    assert read_lines(out)[-1]["ending"] == "interrupted"
    chat_id = str(read_lines(first)[0]["chat_id"])
    assert f"To go on: chatd run -r {chat_id} PROMPT" in err
    assert server.request("GET", f"/chats/{chat_id}")["status"] == "waiting"
    assert "Interrupt me at any time." in str(read_lines(out)[-1]["answer"])


async def test_a_second_ctrl_c_leaves_at_once(slow_server: ServerProcess) -> None:
    """Also while the server does not answer."""
    async with slow_server.started("run", "tell me a long story") as process:
        await read_until(process, "chat ", errors=True)
        slow_server.kill()
        process.send_signal(signal.SIGINT)
        await read_until(process, "Ctrl-C again leaves at once", errors=True)
        process.send_signal(signal.SIGINT)
        assert (await finish(process))[0] == 130


@pytest.mark.promise("P8")
async def test_a_run_survives_a_killed_server_and_tells_nothing_twice(
    slow_server: ServerProcess,
) -> None:
    """Slow: starts the server twice, and the new one waits until the old one counts as dead."""
    async with slow_server.started("run", "--format", "stream-json", "hello there") as process:
        before = await read_until(process, '"kind":"text"')
        slow_server.kill()
        slow_server.start()
        code, out, err = await finish(process)
    assert code == 0, err
    lines = [*read_lines("\n".join(before)), *read_lines(out)]
    told = [line["message"] for line in lines if line["type"] == "message"]
    ids = [message["id"] for message in msgspec.convert(told, list[Json])]
    assert len(ids) == len(set(ids)) == 2
    starts = [at for at, line in enumerate(lines) if line["type"] == "preview_reset"]
    deltas = [line for line in lines[max(starts, default=0) :] if line["type"] == "delta"]
    # Deltas may be missed while the connection is lost, messages never are.
    answer = str(lines[-1]["answer"])
    assert answer.startswith("".join(str(line["text"]) for line in deltas).strip())
    (part,) = msgspec.convert(msgspec.convert(told[-1], Json)["content"], list[Json])
    assert str(part["text"]).strip() == answer
    assert "While I answer, you can:" in answer


async def test_a_queued_message_of_a_run_is_taken_back(server: ServerProcess) -> None:
    chat_id = server.create_chat("tell me a long story")
    async with server.started("run", "-r", chat_id, "answer fast") as process:
        await read_until(process, "waits in its queue", errors=True)
        process.send_signal(signal.SIGINT)
        code, _, err = await finish(process)
    assert code == 130
    assert "taken out of the queue" in err
    chat = server.request("GET", f"/chats/{chat_id}")
    assert (chat["status"], chat["queue_len"]) == ("running", 0)
    server.request("POST", f"/chats/{chat_id}/interrupt", {})
