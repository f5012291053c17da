"""The agent's routes over a real socket."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from chatd.agent.main import AgentStartError, lock_run_dir
from chatd.agent.processes import process_table
from chatd.agent.server.auth import line_mac, reply_mac
from tests.agent.server.agent_server import KEY, TIMEOUT_S, AgentServer, HttpReply


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[AgentServer]:
    server = AgentServer(tmp_path)
    await server.agent.listen()
    server.boot_id = str((await server.request("GET", "/healthz")).json["boot_id"])
    yield server
    await server.agent.close()


async def test_healthz_identifies_the_agent(server: AgentServer) -> None:
    reply = await server.request("GET", "/healthz")
    assert reply.status == 200
    assert reply.json == {
        "agent_id": "a",
        "boot_id": reply.headers["chatd-boot"],
        "version": "2",
        "started_at": reply.json["started_at"],
        "ready": True,
        "directory": str(server.home),
    }


async def test_other_accounts_cannot_open_the_socket(server: AgentServer) -> None:
    assert stat.S_IMODE(os.stat(server.socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(server.socket.parent).st_mode) == 0o700


async def test_a_request_without_the_key_gets_an_unsigned_refusal(server: AgentServer) -> None:
    plain = await server.send(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert (plain.status, plain.json["code"]) == (401, "unsigned")
    assert "chatd-mac" not in plain.headers
    forged = server.signed("GET", "/healthz").replace(b"mac=", b"mac=00", 1)
    assert (await server.send(forged)).status == 401
    # The refusal does not wait for a large body.
    large = b"POST /api/v0/write-file?path=/x HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n"
    assert (await server.send(large)).status == 401


async def test_a_replayed_request_is_refused(server: AgentServer) -> None:
    request = server.signed("GET", "/api/v0/processes/list")
    assert (await server.send(request)).status == 200
    again = await server.send(request)
    assert (again.status, again.json["code"]) == (401, "replayed")


async def test_a_request_for_another_boot_gets_a_signed_refusal(server: AgentServer) -> None:
    boot, server.boot_id = server.boot_id, "another"
    reply = await server.api("GET", "processes/list")
    assert (reply.status, reply.json["code"]) == (409, "agent_rebooted")
    assert reply.headers["chatd-boot"] == boot


async def test_a_changed_body_has_no_effect(server: AgentServer) -> None:
    request = server.signed("POST", f"/api/v0/write-file?path={server.path('a')}", b"good")
    reply = await server.send(request.replace(b"good", b"evil"))
    assert (reply.status, reply.json["code"]) == (401, "bad_mac")
    assert os.listdir(server.home) == []


@pytest.mark.covers("files-1", "processes-1", "processes-4")
@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("GET", "nothing", b"", 404),
        ("DELETE", "read-file", b"", 405),
        ("GET", "processes//output", b"", 404),
        ("GET", "processes/a%2fb/output", b"", 404),
        ("GET", "read-file", b"", 400),
        ("GET", "read-file?path=relative", b"", 400),
        ("GET", "read-file?path=/x&offset=-1", b"", 400),
        ("GET", "read-file?path=/x&limit=1.5", b"", 400),
        ("GET", "read-file?path=/x&unknown=1", b"", 400),
        ("GET", "read-file-lines?path=/x&max_lines=1", b"", 400),
        ("GET", "read-file?path=/nothing", b"", 404),
        ("GET", "resolve-path", b"", 400),
        ("POST", "write-file", b"x", 400),
        ("POST", "edit-files", b"{", 400),
        ("POST", "edit-files", b"[]", 400),
        ("POST", "edit-files", b"[" * 100_000, 400),
        ("POST", "edit-files", {"files": "x"}, 400),
        ("POST", "edit-files", {"files": []}, 400),
        ("POST", "edit-files", {"files": [{"path": "/x"}]}, 400),
        ("POST", "edit-files", {"files": [{"path": "/x", "edits": [{"search": "a"}]}]}, 400),
        ("POST", "edit-files", {"files": [], "unknown": 1}, 400),
        ("POST", "list-directory", {"path": [1], "relativity": "home"}, 400),
        ("POST", "list-directory", {"path": [], "relativity": "moon"}, 400),
        ("POST", "processes/start", {}, 400),
        ("POST", "processes/start", {"command": " "}, 400),
        ("POST", "processes/start", {"command": "true", "env": {"A": 1}}, 400),
        ("POST", "processes/start", {"command": "true", "background": "maybe"}, 400),
        ("POST", "processes/x/signal", {"signal": "stop"}, 400),
        ("POST", "processes/x/signal", {"signal": "kill"}, 404),
        ("GET", "processes/x/output", b"", 404),
        ("GET", "processes/x/output?wait_s=nan", b"", 400),
        ("GET", "processes/x/output?wait_s=-1", b"", 400),
        ("GET", "context?after=x", b"", 400),
        ("GET", "processes/list?all=1", b"", 400),
    ],
)
async def test_invalid_requests_are_refused_with_a_message(
    server: AgentServer, method: str, target: str, body: object, status: int
) -> None:
    reply = await server.api(method, target, body)
    assert reply.status == status
    assert reply.json["message"]


@pytest.mark.covers("files-2")
async def test_files_are_listed_resolved_and_read(server: AgentServer) -> None:
    (server.home / "sub").mkdir()
    (server.home / "a.html").write_bytes(b"<b>\xff")
    (server.home / "link").symlink_to("sub")
    listed = await server.api("POST", "list-directory", {"path": [], "relativity": "home"})
    assert listed.json["contents"] == [
        {"name": name, "absolute_path_string": str(server.home / name), "is_dir": name != "a.html"}
        for name in ("link", "sub", "a.html")
    ]
    raw = await server.api("GET", f"read-file?path={server.path('a.html')}&offset=1")
    assert (raw.body, raw.headers["content-type"]) == (b"b>\xff", "text/html")
    resolved = await server.api("GET", f"resolve-path?path={server.path('link/new')}")
    assert resolved.json == {"path": str(server.home / "sub" / "new")}


async def test_lower_epochs_are_refused(server: AgentServer) -> None:
    async def write(epoch: int) -> HttpReply:
        headers = {"Chatd-Chat-Id": "c", "Chatd-Epoch": str(epoch)}
        return await server.api("POST", f"write-file?path={server.path('a')}", b"x", headers)

    assert (await write(2)).status == 200
    assert (await write(1)).json["code"] == "stale_epoch"
    assert (await write(2)).status == 200


async def test_a_worker_proves_that_it_owns_its_chat(server: AgentServer) -> None:
    async def start(mark: object) -> HttpReply:
        headers = {"Chatd-Chat-Id": "c", "Chatd-Epoch": f"1 worker {mark}"}
        return await server.api("POST", "processes/start", {"command": "true"}, headers)

    asked = await start("-")
    assert (asked.status, asked.json["code"]) == (409, "stale_epoch")
    assert (await start(asked.json["fence"])).status == 200
    assert (await start("-")).status == 200


@pytest.mark.parametrize(
    "headers", [{"Chatd-Chat-Id": "a b"}, {"Chatd-Epoch": "x"}, {"Idempotency-Key": "k" * 513}]
)
async def test_malformed_caller_headers_are_refused(
    server: AgentServer, headers: Mapping[str, str]
) -> None:
    assert (await server.api("GET", "processes/list", b"", headers)).status == 400


async def test_malformed_ancestors_are_ignored(server: AgentServer) -> None:
    for ancestors in ("no JSON", "{}", '["a b", 7, "good"]'):
        headers = {"Chatd-Chat-Id": "c", "Chatd-Ancestor-Chat-Ids": ancestors}
        target = f"write-file?path={server.path('a')}"
        assert (await server.api("POST", target, b"x", headers)).status == 200


async def test_long_diffs_are_left_out_of_the_stored_result(server: AgentServer) -> None:
    (server.home / "large").write_text("old\n" * 20_000)
    (server.home / "small").write_text("old\n")
    edit = {"search": "old", "replace": "new", "replace_all": True}
    names = [str(server.home / name) for name in ("large", "small")]
    body = {"files": [{"path": n, "edits": [edit]} for n in names], "include_diff": True}
    first = await server.api("POST", "edit-files", body, {"Idempotency-Key": "k"})
    again = await server.api("POST", "edit-files", body, {"Idempotency-Key": "k"})
    assert first.status == again.status == 200
    assert first.json == again.json
    sent = json.dumps(first.json["files"])
    assert sent.count("left out") == sent.count("+new") == 1


async def test_a_start_may_wait_for_the_end_of_the_command(
    server: AgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_table, "MAX_START_WAIT_S", TIMEOUT_S)
    body, key = {"command": "echo once >> count; cat count"}, {"Idempotency-Key": "k"}
    body = {**body, "workdir": str(server.home)}
    target = f"processes/start?wait_s={TIMEOUT_S}"
    first = (await server.api("POST", target, body, key)).json
    again = (await server.api("POST", target, body, key)).json
    assert first["output"] == again["output"]
    assert '"exit_code": 0' in json.dumps(first["output"])
    assert '"output": "once\\n"' in json.dumps(first["output"])
    assert (first["id"], again["again"]) == (again["id"], True)

    slow = {"command": "sleep 600"}
    started = (await server.api("POST", "processes/start?wait_s=0.01", slow)).json
    assert "output" not in started
    waiting = (await server.api("POST", target, {**slow, "background": True})).json
    assert "output" not in waiting
    assert (await server.api("POST", "processes/start?wait_s=-1", slow)).status == 400


async def test_a_context_request_waits_for_the_first_snapshot(server: AgentServer) -> None:
    context = (await server.api("GET", "context?wait_s=20")).json
    assert (context["directory"], context["resources"]) == (str(server.home), [])


async def test_a_watch_sends_changes_in_signed_lines(server: AgentServer) -> None:
    """Starts git a dozen times."""
    make = f"git init -q {server.home}/repo && echo hello > {server.home}/repo/new"
    caller = {"Chatd-Chat-Id": "child", "Chatd-Ancestor-Chat-Ids": '["parent"]'}
    body = {"command": make, "workdir": str(server.home)}
    process = (await server.api("POST", "processes/start", body, caller)).json["id"]
    assert (await server.api("GET", f"processes/{process}/output?wait_s=20")).json["exit_code"] == 0
    target = f"write-file?path={server.path('repo/other')}"
    assert (await server.api("POST", target, b"x\n", caller)).status == 200

    request = server.signed("GET", "/api/v0/git/watch?chat_id=parent")
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_unix_connection(str(server.socket))
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(await reader.readline(), 16)
        line = await reader.readexactly(size)
        writer.transport.abort()
    nonce = request.split(b"nonce=")[1][:32].decode()
    assert (
        f"Chatd-Mac: {reply_mac(KEY, nonce=nonce, status=200, boot=server.boot_id, body=b'')}"
        in head
    )
    text = line.removeprefix(b'{"mac":"')[64:].removeprefix(b'","event":').removesuffix(b"}\n")
    sent = json.loads(line)
    assert sent["mac"] == line_mac(KEY, nonce=nonce, number=1, boot=server.boot_id, text=text)
    assert sent["event"] == json.loads(text)
    (repository,) = sent["event"]["repositories"]
    assert repository["repo_root"] == str(server.home / "repo")
    assert "+hello" in repository["unified_diff"]


async def test_a_chat_can_watch_only_itself(server: AgentServer) -> None:
    for target in ("git/watch", "git/refresh"):
        method = "GET" if target == "git/watch" else "POST"
        assert (await server.api(method, target)).status == 400
        reply = await server.api(method, f"{target}?chat_id=other", b"", {"Chatd-Chat-Id": "mine"})
        assert reply.status == 404
    assert (await server.api("POST", "git/refresh?chat_id=any")).json == {"ok": True}


def test_a_run_directory_is_locked_by_one_agent(tmp_path: Path) -> None:
    held = lock_run_dir(str(tmp_path))
    with pytest.raises(AgentStartError):
        lock_run_dir(str(tmp_path), timeout_s=0)
    os.close(held)
    os.close(lock_run_dir(str(tmp_path), timeout_s=0))
