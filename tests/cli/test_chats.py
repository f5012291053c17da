"""`chatd chats` against a server that is another process."""

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.support.command_line import (
    CHATD,
    Json,
    ServerProcess,
    ask_at_terminal,
    finish,
    read_lines,
    read_until,
    run_at_terminal,
)

pytestmark = pytest.mark.timeout(240)

OWNED = "\x1b]0;owned\x07\x1b[2Jclean me"


def chat_facts(server: ServerProcess, chat_id: str) -> Json:
    shown = server.done("chats", "show", chat_id, "--json")
    return msgspec.convert(shown.json["chat"], Json)


def test_chats_are_listed_and_shown(server: ServerProcess) -> None:
    chat_id = server.answered_chat(labels={"team": "blue"})
    listed = server.done("chats", "list", "--label", "team=blue").out.splitlines()
    assert listed[0].split() == ["ID", "STATUS", "CHANGED", "TITLE"]
    assert listed[1].startswith(f"{chat_id}  waiting  ")
    shown = server.done("chats", "show", "last").out
    assert f"id       {chat_id}" in shown
    assert "\n[1] you\nanswer fast\n" in shown
    none = server.done("chats", "list", "--label", "team=green")
    assert (none.out, none.err) == ("ID  STATUS  CHANGED  TITLE\n", "(none)\n")


async def test_a_sent_message_waits_in_the_queue_of_a_busy_chat(server: ServerProcess) -> None:
    chat_id = server.create_chat("tell me a long story")
    sent = await server.ok("chats", "send", chat_id, "answer fast")
    assert "in its queue" in sent.err
    refused = await server.run("chats", "send", chat_id, "now", "--busy", "reject")
    assert (refused.code, refused.out) == (1, "")
    held = await server.ok("chats", "interrupt", chat_id, "--hold", "--json")
    assert held.json["queue_len"] == 1


async def test_a_chat_is_followed_while_it_goes_on(server: ServerProcess) -> None:
    chat_id = server.create_chat("answer fast")
    await server.ok("chats", "tail", chat_id, "--until-idle")
    async with server.started("chats", "tail", chat_id, "-n", "0", "--json") as process:
        await read_until(process, '"status":"waiting"')
        await server.ok("chats", "send", chat_id, "think about it")
        lines = read_lines("\n".join(await read_until(process, '"status":"waiting"')))
        process.terminate()
        await finish(process)
    told = [msgspec.convert(one["message"], Json) for one in lines if one["type"] == "message"]
    assert [one["role"] for one in told] == ["user", "assistant"]


def test_a_chat_is_archived_and_taken_back(server: ServerProcess) -> None:
    chat_id = server.answered_chat()
    server.done("chats", "archive", chat_id)
    assert chat_facts(server, chat_id)["archived"] is True
    server.done("chats", "archive", chat_id, "--undo")
    assert chat_facts(server, chat_id)["archived"] is False


def test_a_chat_is_forked_exported_and_imported(server: ServerProcess, tmp_path: Path) -> None:
    chat_id = server.answered_chat()
    copy = server.done("chats", "fork", chat_id, "--at", 1).out.strip()
    assert copy != chat_id
    markdown = server.done("chats", "export", copy).out
    assert "answer fast" in markdown
    assert "This is a fast answer" not in markdown
    target = tmp_path / "chat.jsonl"
    server.done("chats", "export", chat_id, "--format", "jsonl", "-o", target)
    assert read_lines(target.read_text())[-1]["type"] == "end"
    assert list(tmp_path.iterdir()) == [target]
    imported = server.done("chats", "import", target).out.strip()
    assert imported != chat_id
    assert "This is a fast answer" in server.done("chats", "export", imported).out
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    files = [tmp_path / "none.jsonl", broken, target]
    partly = server.call("chats", "import", "--json", *files)
    assert partly.code == 2
    assert "none.jsonl: cannot be read" in partly.err
    assert "2 of 3 files were not imported" in partly.err
    report = msgspec.json.decode(partly.out)
    assert report["failed"] == [str(path) for path in files[:2]]
    assert len(report["imported"]) == 1
    missing = server.call("chats", "export", chat_id, "-o", tmp_path / "no" / "file")
    assert (missing.code, "cannot write" in missing.err) == (2, True)


def test_a_chat_is_shared_by_name(server: ServerProcess) -> None:
    chat_id = server.answered_chat()
    shared = server.done("chats", "share", chat_id, "--user", "Test-User-3")
    assert shared.out.splitlines()[1].split() == ["user", "test-user-3"]
    unknown = server.call("chats", "share", chat_id, "--user", "test-user-10x")
    assert (unknown.code, "there is no user" in unknown.err) == (2, True)
    alone = server.done("chats", "share", chat_id, "--user", "test-user-3", "--remove")
    assert alone.out == "KIND  NAME  FULL NAME\n"


def test_a_public_link_is_made_listed_updated_and_revoked(server: ServerProcess) -> None:
    chat_id = server.answered_chat()
    refused = server.call("chats", "link", chat_id)
    assert (refused.code, "Public links are disabled" in refused.err) == (1, True)
    server.request("PATCH", "/settings", {"public_links": True})
    made = server.done("chats", "link", chat_id, "--days", "1", "--tools")
    assert made.out.startswith(f"{server.url}/p#")
    (heads, row) = server.done("chats", "links", chat_id).out.splitlines()
    assert heads.split() == ["ID", "ENDS", "SHOWS", "OWNER", "CHAT"]
    assert "texts, tools" in row
    assert server.done("chats", "links", "--everyone").out.splitlines()[1] == row
    link_id = row.split()[0]
    assert "updated" in server.done("chats", "update-link", link_id).err
    assert "revoked" in server.done("chats", "unlink", link_id).err
    assert len(server.done("chats", "links").out.splitlines()) == 1
    server.request("PATCH", "/settings", {"public_links": False})


def test_a_chat_is_deleted_only_on_purpose(server: ServerProcess) -> None:
    chat_id = server.answered_chat()
    refused = server.call("chats", "rm", chat_id)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    server.done("chats", "rm", chat_id, "--yes")
    gone = server.call("chats", "show", chat_id)
    assert (gone.code, gone.out) == (1, "")


def printed_command(server: ServerProcess, chat_id: str, name: str) -> list[str]:
    """The command that the chat's asks name for this, without the words for people."""
    asked = server.call("chats", "tail", chat_id, "--until-idle").err
    line = next(line for line in asked.splitlines() if f"chatd chats {name}" in line)
    return [word for word in line.split()[1:] if word not in ("--reason", "TEXT")]


def test_a_waiting_call_is_approved_or_denied(server: ServerProcess) -> None:
    server.set_policy({"tool": "list_agents", "action": "ask", "reason": "Look first."})
    chat_id = server.create_chat("call list_agents")
    asked = server.call("chats", "tail", chat_id, "--until-idle")
    assert asked.code == 6
    assert "Allow list_agents?" in asked.err
    assert "Why it asks: Look first." in asked.err
    approve = printed_command(server, chat_id, "approve")
    assert server.done(*approve).err.startswith("approved: list_agents")
    server.done("chats", "tail", chat_id, "--until-idle")
    again = server.call(*approve)
    assert (again.code, "does not wait" in again.err) == (2, True)
    other = server.create_chat("call list_agents")
    server.done(*printed_command(server, other, "deny"), "--reason", "Not today.")
    assert "Not today." in server.done("chats", "tail", other, "--until-idle").out
    server.set_policy()


def test_no_call_is_approved_that_was_not_named_or_shown(server: ServerProcess) -> None:
    server.set_policy({"tool": "list_agents", "action": "ask"})
    chat_id = server.create_chat("call list_agents")
    named = printed_command(server, chat_id, "approve")
    unseen = server.call("chats", "approve", chat_id)
    assert unseen.code == 2
    assert f"chatd {' '.join(named)}" in unseen.err
    refused = ask_at_terminal(server, ["chats", "approve", chat_id], "n")
    assert (refused.code, "Allow list_agents?" in refused.out) == (2, True)
    assert chat_facts(server, chat_id)["status"] == "requires_action"
    approved = ask_at_terminal(server, ["chats", "approve", chat_id], "y")
    assert (approved.code, "approved: list_agents" in approved.out) == (0, True)
    server.done("chats", "tail", chat_id, "--until-idle")
    server.set_policy()


def test_always_says_which_rule_is_stored(server: ServerProcess) -> None:
    server.set_policy({"tool": "list_agents", "action": "ask"})
    chat_id = server.create_chat("call list_agents")
    rule = "run list_agents without asking in this chat, every call, whatever its arguments"
    asked = server.call("chats", "tail", chat_id, "--until-idle")
    assert f"stores: {rule}" in asked.err
    approved = server.done("chats", "approve", chat_id, "--all", "--always")
    assert f"stored: {rule}" in approved.err
    server.done("chats", "tail", chat_id, "--until-idle")
    server.set_policy()


def test_a_question_is_answered_by_number_and_declined(server: ServerProcess) -> None:
    chat_id, other = server.create_chat("ask me first"), server.create_chat("ask me first")
    answer = printed_command(server, chat_id, "answer")
    wrong = server.call(*answer, "1", "2")
    assert (wrong.code, "1 questions and 2 answers" in wrong.err) == (2, True)
    assert "answered: ask_user_question" in server.done(*answer, "1").err
    assert server.call("chats", "tail", other, "--until-idle").code == 6
    server.done("chats", "deny", other, "--all")
    told = server.done("chats", "tail", other, "--until-idle").out
    assert "You did not choose" in told
    server.done("chats", "tail", chat_id, "--until-idle")


# Terminals and pipes


def test_neither_a_terminal_nor_a_pipe_gets_escape_sequences_of_a_model(
    server: ServerProcess,
) -> None:
    chat_id = server.answered_chat(OWNED)
    piped = server.done("chats", "show", chat_id).out
    assert "clean me" in piped
    assert "\x1b" not in piped
    shown = run_at_terminal(server, ["chats", "show", chat_id])
    assert "clean me" in shown
    assert "\x1b" not in shown
    answer = run_at_terminal(server, ["run", "-q", "-r", chat_id, OWNED])
    assert "> clean me" in answer
    assert "\x1b" not in answer
    listed = run_at_terminal(server, ["chats", "list"])
    assert "\x1b]0" not in listed
    assert listed.startswith("\x1b[1mID ")
    assert max(len(line) for line in listed.splitlines()) <= 80 + len("\x1b[1m\x1b[0m")


def test_a_closed_pipe_is_silent(server: ServerProcess) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [CHATD, "chats", "list"],
        env=server.env,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
