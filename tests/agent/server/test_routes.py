"""The agent's routes, asked over a real socket: what each takes, answers and refuses."""

import asyncio
import json
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from chatd.agent.config import parse_config
from chatd.agent.main import AgentProcess, AgentStartError, lock_run_dir
from chatd.agent.server.auth import RequestClaim, digest, line_mac, reply_mac, signed_headers
from chatd.clock import SystemClock

KEY = b"k" * 32
TIMEOUT_S = 30.0


class HttpReply:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in rest)}

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)


class AgentServer:
    """An agent in this process."""

    def __init__(self, place: Path) -> None:
        self.home = place / "home"
        self.home.mkdir()
        self.socket = place / "run" / "agent.sock"
        config: dict[str, object] = {
            "agent_id": "a",
            "dial_key": KEY.hex(),
            "socket": str(self.socket),
            "run_dir": str(place / "run"),
            "home": str(self.home),
        }
        self.agent = AgentProcess(parse_config(json.dumps(config).encode()))
        self.boot_id = "-"

    async def send(self, raw: bytes) -> HttpReply:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
            try:
                writer.write(raw)
                return HttpReply(await reader.read())
            finally:
                writer.close()

    def signed(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        sent = {name.lower(): value for name, value in (headers or {}).items()}
        claim = RequestClaim(
            method,
            target,
            "a",
            self.boot_id,
            int(SystemClock().now().timestamp()),
            secrets.token_hex(16),
            digest(body),
            signed_headers(sent),
        )
        sent |= {"authorization": claim.authorization(KEY), "connection": "close"}
        sent["content-length"] = str(len(body))
        lines = [f"{method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in sent.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    async def request(
        self, method: str, target: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        """Signed, and the reply's signature checked."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = self.signed(method, target, raw, headers)
        answer = await self.send(request)
        nonce = request.split(b"nonce=")[1][:32].decode()
        boot = answer.headers["chatd-boot"]
        mac = reply_mac(KEY, nonce=nonce, status=answer.status, boot=boot, body=answer.body)
        assert answer.headers["chatd-mac"] == mac
        return answer

    async def api(
        self, method: str, target: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        return await self.request(method, f"/api/v0/{target}", body, headers)

    def path(self, name: str) -> str:
        return quote(str(self.home / name), safe="")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[AgentServer]:
    server = AgentServer(tmp_path)
    await server.agent.listen()
    server.boot_id = str((await server.request("GET", "/healthz")).json["boot_id"])
    yield server
    await server.agent.close()


async def test_a_greeting_says_who_answers(server: AgentServer) -> None:
    answer = await server.request("GET", "/healthz")
    assert answer.status == 200
    assert answer.json == {
        "agent_id": "a",
        "boot_id": answer.headers["chatd-boot"],
        "version": "1",
        "started_at": answer.json["started_at"],
        "ready": True,
        "directory": str(server.home),
    }


async def test_others_of_the_machine_cannot_open_the_socket(server: AgentServer) -> None:
    assert stat.S_IMODE(os.stat(server.socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(server.socket.parent).st_mode) == 0o700


async def test_who_has_no_key_gets_nothing_and_no_signature(server: AgentServer) -> None:
    plain = await server.send(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert (plain.status, plain.json["code"]) == (401, "unsigned")
    assert "chatd-mac" not in plain.headers
    forged = server.signed("GET", "/healthz").replace(b"mac=", b"mac=00", 1)
    assert (await server.send(forged)).status == 401
    # Not even a large body is waited for.
    large = b"POST /api/v0/write-file?path=/x HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n"
    assert (await server.send(large)).status == 401


async def test_a_request_is_answered_once(server: AgentServer) -> None:
    request = server.signed("GET", "/api/v0/processes/list")
    assert (await server.send(request)).status == 200
    again = await server.send(request)
    assert (again.status, again.json["code"]) == (401, "replayed")


async def test_a_request_to_another_boot_is_refused_with_a_signature(server: AgentServer) -> None:
    boot, server.boot_id = server.boot_id, "another"
    answer = await server.api("GET", "processes/list")
    assert (answer.status, answer.json["code"]) == (409, "agent_rebooted")
    assert answer.headers["chatd-boot"] == boot


async def test_a_body_that_was_changed_on_the_way_has_no_effect(server: AgentServer) -> None:
    request = server.signed("POST", f"/api/v0/write-file?path={server.path('a')}", b"good")
    answer = await server.send(request.replace(b"good", b"evil"))
    assert (answer.status, answer.json["code"]) == (401, "bad_mac")
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
async def test_what_cannot_be_done_is_refused_with_words(
    server: AgentServer, method: str, target: str, body: object, status: int
) -> None:
    answer = await server.api(method, target, body)
    assert answer.status == status
    assert answer.json["message"]


@pytest.mark.covers("files-2")
async def test_files_are_listed_resolved_and_read_raw(server: AgentServer) -> None:
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


async def test_an_epoch_shuts_out_those_before_it(server: AgentServer) -> None:
    async def write(epoch: int) -> HttpReply:
        headers = {"Chatd-Chat-Id": "c", "Chatd-Epoch": str(epoch)}
        return await server.api("POST", f"write-file?path={server.path('a')}", b"x", headers)

    assert (await write(2)).status == 200
    assert (await write(1)).json["code"] == "stale_epoch"
    assert (await write(2)).status == 200


@pytest.mark.parametrize(
    "headers", [{"Chatd-Chat-Id": "a b"}, {"Chatd-Epoch": "x"}, {"Idempotency-Key": "k" * 513}]
)
async def test_a_caller_that_cannot_be_read_is_not_taken_for_none(
    server: AgentServer, headers: Mapping[str, str]
) -> None:
    assert (await server.api("GET", "processes/list", b"", headers)).status == 400


async def test_ancestors_that_cannot_be_read_are_left_out(server: AgentServer) -> None:
    for ancestors in ("no JSON", "{}", '["a b", 7, "good"]'):
        headers = {"Chatd-Chat-Id": "c", "Chatd-Ancestor-Chat-Ids": ancestors}
        target = f"write-file?path={server.path('a')}"
        assert (await server.api("POST", target, b"x", headers)).status == 200


async def test_long_diffs_are_left_out_so_that_the_answer_can_be_kept(server: AgentServer) -> None:
    (server.home / "large").write_text("old\n" * 20_000)
    (server.home / "small").write_text("old\n")
    edit = {"search": "old", "replace": "new", "replace_all": True}
    names = [str(server.home / name) for name in ("large", "small")]
    body = {"files": [{"path": n, "edits": [edit]} for n in names], "include_diff": True}
    first = await server.api("POST", "edit-files", body, {"Idempotency-Key": "k"})
    again = await server.api("POST", "edit-files", body, {"Idempotency-Key": "k"})
    assert first.status == again.status == 200
    assert first.json == again.json
    told = json.dumps(first.json["files"])
    assert told.count("left out") == told.count("+new") == 1


async def test_the_context_is_waited_for(server: AgentServer) -> None:
    context = (await server.api("GET", "context?wait_s=20")).json
    assert (context["directory"], context["resources"]) == (str(server.home), [])


async def test_a_watch_tells_what_has_changed_in_signed_lines(server: AgentServer) -> None:
    """Starts git a dozen times."""
    make = f"git init -q {server.home}/repo && echo hello > {server.home}/repo/new"
    family = {"Chatd-Chat-Id": "child", "Chatd-Ancestor-Chat-Ids": '["parent"]'}
    body = {"command": make, "workdir": str(server.home)}
    process = (await server.api("POST", "processes/start", body, family)).json["id"]
    assert (await server.api("GET", f"processes/{process}/output?wait_s=20")).json["exit_code"] == 0
    target = f"write-file?path={server.path('repo/other')}"
    assert (await server.api("POST", target, b"x\n", family)).status == 200

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
    told = json.loads(line)
    assert told["mac"] == line_mac(KEY, nonce=nonce, number=1, boot=server.boot_id, text=text)
    assert told["event"] == json.loads(text)
    (repository,) = told["event"]["repositories"]
    assert repository["repo_root"] == str(server.home / "repo")
    assert "+hello" in repository["unified_diff"]


async def test_a_chat_watches_only_its_own(server: AgentServer) -> None:
    for target in ("git/watch", "git/refresh"):
        method = "GET" if target == "git/watch" else "POST"
        assert (await server.api(method, target)).status == 400
        answer = await server.api(method, f"{target}?chat_id=other", b"", {"Chatd-Chat-Id": "mine"})
        assert answer.status == 404
    assert (await server.api("POST", "git/refresh?chat_id=any")).json == {"ok": True}


def test_a_run_directory_has_one_agent(tmp_path: Path) -> None:
    held = lock_run_dir(str(tmp_path))
    with pytest.raises(AgentStartError):
        lock_run_dir(str(tmp_path), timeout_s=0)
    os.close(held)
    os.close(lock_run_dir(str(tmp_path), timeout_s=0))
