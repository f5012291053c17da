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

from chatd.agent.auth import Claim, digest, line_mac, reply_mac, signed_headers
from chatd.agent.config import parse
from chatd.agent.main import Agent, CannotStart, lock
from chatd.clock import SystemClock

KEY = b"k" * 32
WAIT_S = 30.0


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in rest)}

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)


class Bench:
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
        self.agent = Agent(parse(json.dumps(config).encode()))
        self.boot = "-"

    async def send(self, raw: bytes) -> Answer:
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
            try:
                writer.write(raw)
                return Answer(await reader.read())
            finally:
                writer.close()

    def signed(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        sent = {name.lower(): value for name, value in (headers or {}).items()}
        claim = Claim(
            method,
            target,
            "a",
            self.boot,
            int(SystemClock().now().timestamp()),
            secrets.token_hex(16),
            digest(body),
            signed_headers(sent),
        )
        sent |= {"authorization": claim.authorization(KEY), "connection": "close"}
        sent["content-length"] = str(len(body))
        lines = [f"{method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in sent.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    async def ask(
        self, method: str, target: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
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
    ) -> Answer:
        return await self.ask(method, f"/api/v0/{target}", body, headers)

    def path(self, name: str) -> str:
        return quote(str(self.home / name), safe="")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    bench = Bench(tmp_path)
    await bench.agent.listen()
    bench.boot = str((await bench.ask("GET", "/healthz")).json["boot_id"])
    yield bench
    await bench.agent.close()


async def test_a_greeting_says_who_answers(bench: Bench) -> None:
    answer = await bench.ask("GET", "/healthz")
    assert answer.status == 200
    assert answer.json == {
        "agent_id": "a",
        "boot_id": answer.headers["chatd-boot"],
        "version": "1",
        "started_at": answer.json["started_at"],
        "ready": True,
        "directory": str(bench.home),
    }


async def test_others_of_the_machine_cannot_open_the_socket(bench: Bench) -> None:
    assert stat.S_IMODE(os.stat(bench.socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(bench.socket.parent).st_mode) == 0o700


async def test_who_has_no_key_gets_nothing_and_no_signature(bench: Bench) -> None:
    plain = await bench.send(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert (plain.status, plain.json["code"]) == (401, "unsigned")
    assert "chatd-mac" not in plain.headers
    forged = bench.signed("GET", "/healthz").replace(b"mac=", b"mac=00", 1)
    assert (await bench.send(forged)).status == 401
    # Not even a large body is waited for.
    large = b"POST /api/v0/write-file?path=/x HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n"
    assert (await bench.send(large)).status == 401


async def test_a_request_is_answered_once(bench: Bench) -> None:
    request = bench.signed("GET", "/api/v0/processes/list")
    assert (await bench.send(request)).status == 200
    again = await bench.send(request)
    assert (again.status, again.json["code"]) == (401, "replayed")


async def test_a_request_to_another_boot_is_refused_with_a_signature(bench: Bench) -> None:
    boot, bench.boot = bench.boot, "another"
    answer = await bench.api("GET", "processes/list")
    assert (answer.status, answer.json["code"]) == (409, "agent_rebooted")
    assert answer.headers["chatd-boot"] == boot


async def test_a_body_that_was_changed_on_the_way_has_no_effect(bench: Bench) -> None:
    request = bench.signed("POST", f"/api/v0/write-file?path={bench.path('a')}", b"good")
    answer = await bench.send(request.replace(b"good", b"evil"))
    assert (answer.status, answer.json["code"]) == (401, "bad_mac")
    assert os.listdir(bench.home) == []


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
    bench: Bench, method: str, target: str, body: object, status: int
) -> None:
    answer = await bench.api(method, target, body)
    assert answer.status == status
    assert answer.json["message"]


@pytest.mark.covers("files-2")
async def test_files_are_listed_resolved_and_read_raw(bench: Bench) -> None:
    (bench.home / "sub").mkdir()
    (bench.home / "a.html").write_bytes(b"<b>\xff")
    (bench.home / "link").symlink_to("sub")
    listed = await bench.api("POST", "list-directory", {"path": [], "relativity": "home"})
    assert listed.json["contents"] == [
        {"name": name, "absolute_path_string": str(bench.home / name), "is_dir": name != "a.html"}
        for name in ("link", "sub", "a.html")
    ]
    raw = await bench.api("GET", f"read-file?path={bench.path('a.html')}&offset=1")
    assert (raw.body, raw.headers["content-type"]) == (b"b>\xff", "text/html")
    resolved = await bench.api("GET", f"resolve-path?path={bench.path('link/new')}")
    assert resolved.json == {"path": str(bench.home / "sub" / "new")}


async def test_an_epoch_shuts_out_those_before_it(bench: Bench) -> None:
    async def write(epoch: int) -> Answer:
        headers = {"Chatd-Chat-Id": "c", "Chatd-Epoch": str(epoch)}
        return await bench.api("POST", f"write-file?path={bench.path('a')}", b"x", headers)

    assert (await write(2)).status == 200
    assert (await write(1)).json["code"] == "stale_epoch"
    assert (await write(2)).status == 200


@pytest.mark.parametrize(
    "headers", [{"Chatd-Chat-Id": "a b"}, {"Chatd-Epoch": "x"}, {"Idempotency-Key": "k" * 513}]
)
async def test_a_caller_that_cannot_be_read_is_not_taken_for_none(
    bench: Bench, headers: Mapping[str, str]
) -> None:
    assert (await bench.api("GET", "processes/list", b"", headers)).status == 400


async def test_ancestors_that_cannot_be_read_are_left_out(bench: Bench) -> None:
    for ancestors in ("no JSON", "{}", '["a b", 7, "good"]'):
        headers = {"Chatd-Chat-Id": "c", "Chatd-Ancestor-Chat-Ids": ancestors}
        target = f"write-file?path={bench.path('a')}"
        assert (await bench.api("POST", target, b"x", headers)).status == 200


async def test_long_diffs_are_left_out_so_that_the_answer_can_be_kept(bench: Bench) -> None:
    (bench.home / "large").write_text("old\n" * 20_000)
    (bench.home / "small").write_text("old\n")
    edit = {"search": "old", "replace": "new", "replace_all": True}
    names = [str(bench.home / name) for name in ("large", "small")]
    body = {"files": [{"path": n, "edits": [edit]} for n in names], "include_diff": True}
    first = await bench.api("POST", "edit-files", body, {"Idempotency-Key": "k"})
    again = await bench.api("POST", "edit-files", body, {"Idempotency-Key": "k"})
    assert first.status == again.status == 200
    assert first.json == again.json
    told = json.dumps(first.json["files"])
    assert told.count("left out") == told.count("+new") == 1


async def test_the_context_is_waited_for(bench: Bench) -> None:
    context = (await bench.api("GET", "context?wait_s=20")).json
    assert (context["directory"], context["resources"]) == (str(bench.home), [])


async def test_a_watch_tells_what_has_changed_in_signed_lines(bench: Bench) -> None:
    """Starts git a dozen times."""
    make = f"git init -q {bench.home}/repo && echo hello > {bench.home}/repo/new"
    family = {"Chatd-Chat-Id": "child", "Chatd-Ancestor-Chat-Ids": '["parent"]'}
    body = {"command": make, "workdir": str(bench.home)}
    process = (await bench.api("POST", "processes/start", body, family)).json["id"]
    assert (await bench.api("GET", f"processes/{process}/output?wait_s=20")).json["exit_code"] == 0
    target = f"write-file?path={bench.path('repo/other')}"
    assert (await bench.api("POST", target, b"x\n", family)).status == 200

    request = bench.signed("GET", "/api/v0/git/watch?chat_id=parent")
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_unix_connection(str(bench.socket))
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(await reader.readline(), 16)
        line = await reader.readexactly(size)
        writer.transport.abort()
    nonce = request.split(b"nonce=")[1][:32].decode()
    assert (
        f"Chatd-Mac: {reply_mac(KEY, nonce=nonce, status=200, boot=bench.boot, body=b'')}" in head
    )
    text = line.removeprefix(b'{"mac":"')[64:].removeprefix(b'","event":').removesuffix(b"}\n")
    told = json.loads(line)
    assert told["mac"] == line_mac(KEY, nonce=nonce, number=1, boot=bench.boot, text=text)
    assert told["event"] == json.loads(text)
    (repository,) = told["event"]["repositories"]
    assert repository["repo_root"] == str(bench.home / "repo")
    assert "+hello" in repository["unified_diff"]


async def test_a_chat_watches_only_its_own(bench: Bench) -> None:
    for target in ("git/watch", "git/refresh"):
        method = "GET" if target == "git/watch" else "POST"
        assert (await bench.api(method, target)).status == 400
        answer = await bench.api(method, f"{target}?chat_id=other", b"", {"Chatd-Chat-Id": "mine"})
        assert answer.status == 404
    assert (await bench.api("POST", "git/refresh?chat_id=any")).json == {"ok": True}


def test_a_run_directory_has_one_agent(tmp_path: Path) -> None:
    held = lock(str(tmp_path))
    with pytest.raises(CannotStart):
        lock(str(tmp_path), within_s=0)
    os.close(held)
    os.close(lock(str(tmp_path), within_s=0))
