"""`chatd doctor`, `config check`, `upgrade check` and `debug bundle` beside a running server, and
without one."""

import socket
import tarfile
from pathlib import Path

import msgspec
import pytest

from chatd.sealed_secrets import new_key
from tests.support.api.oidc import free_port
from tests.support.command_line import Finished, ServerProcess

pytestmark = pytest.mark.timeout(240)


def verdicts(finished: Finished) -> dict[str, str]:
    found = msgspec.convert(finished.json["findings"], list[dict[str, str]])
    return {one["check"]: one["verdict"] for one in found}


def on_database(server: ServerProcess) -> tuple[str, ...]:
    return ("--database-url", server.dsn, "--config", str(server.directory / "chatd.toml"))


def token_file(server: ServerProcess) -> Path:
    return server.directory / "data" / "admin-token"


# The servers of tests lose confirmed commits to be fast, and have no page: both are found.
USUAL = {"database settings": "failed", "page": "warning", "disk": "warning"}


def unusual(found: dict[str, str]) -> dict[str, str]:
    return {
        check: verdict
        for check, verdict in found.items()
        if verdict in ("warning", "failed") and USUAL.get(check) != verdict
    }


def test_a_running_deployment_is_examined_with_its_way_and_its_providers(
    server: ServerProcess,
) -> None:
    finished = server.call("doctor", *on_database(server), "--providers", "--json")
    found = verdicts(finished)
    assert unusual(found) == {}, finished
    for check in ("settings", "database", "migrations", "listener", "keys", "replicas", "port"):
        assert found[check] == "ok", check
    for check in ("address", "event stream", "websocket", "provider demo"):
        assert found[check] == "ok", check
    assert found["sandbox"] == "skipped"
    assert finished.code == (1 if "failed" in found.values() else 0)


def test_a_server_elsewhere_is_examined_by_its_address(
    server: ServerProcess, tmp_path: Path
) -> None:
    as_administrator = server.call(
        "doctor", "--url", server.url, "--token-file", token_file(server), "--json"
    )
    found = verdicts(as_administrator)
    assert unusual(found) == {}, as_administrator
    assert (found["event stream"], found["version"], found["database"]) == ("ok", "ok", "ok")
    wrong = tmp_path / "token"
    wrong.write_text("not-a-token")
    wrong.chmod(0o600)
    refused = server.call("doctor", "--url", server.url, "--token-file", wrong)
    assert refused.code == 1
    assert "does not accept the token" in refused.out
    nowhere = f"http://127.0.0.1:{free_port()}"
    away = server.call("doctor", "--url", nowhere, "--token-file", wrong)
    assert away.code == 1
    assert "connection refused" in away.out
    assert "-> Check the address" in away.out


def test_a_token_without_the_scope_of_an_administrator_learns_of_the_way_only(
    server: ServerProcess, tmp_path: Path
) -> None:
    made = server.done("tokens", "create", "--name", "reader", "--scope", "chat:read")
    own = tmp_path / "token"
    own.write_text(made.out.strip())
    own.chmod(0o600)
    finished = server.call("doctor", "--url", server.url, "--token-file", own, "--json")
    found = verdicts(finished)
    assert (finished.code, found["event stream"], found["server"]) == (0, "ok", "skipped")
    assert "database" not in found


def test_a_wrong_key_and_an_unreachable_database_are_told_with_their_remedies(
    server: ServerProcess, tmp_path: Path
) -> None:
    wrong = server.call(
        *("doctor", *on_database(server), "--data-dir", tmp_path),
        env={"CHATD_SECRET_KEYS": new_key().encode()},
    )
    assert wrong.code == 1
    assert "the keys here are others" in wrong.out
    assert "-> Copy secret-keys from the data directory of a host that has it" in wrong.out
    lost = f"postgresql://chatd:s3cret-word@127.0.0.1:{free_port()}/chatd"
    away = server.call("doctor", "--database-url", lost, "--data-dir", tmp_path, "--json")
    assert away.code == 1
    assert verdicts(away)["database"] == "failed"
    assert "s3cret-word" not in away.out + away.err


def test_a_taken_port_and_a_provider_that_does_not_answer_are_found(
    server: ServerProcess, tmp_path: Path
) -> None:
    closed = {"kind": "openai-compat", "base_url": f"http://127.0.0.1:{free_port()}/v1"}
    server.request("POST", "/providers", {"name": "closed", **closed})
    model = {"name": "shut", "provider": "closed", "model": "m"}
    server.request("POST", "/models", model)
    try:
        found = server.call("doctor", *on_database(server), "--providers", "--json")
        assert (found.code, verdicts(found)["provider closed"]) == (1, "failed")
    finally:
        server.done("providers", "rm", "closed", "--with-models", "--yes")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        env = {"CHATD_SERVER_PORT": port, "CHATD_WORKSPACES_ENABLED": "false"}
        where = ("--data-dir", tmp_path, "--database-url", server.dsn)
        found = server.call("doctor", *where, "--json", env=env)
    assert (found.code, verdicts(found)["port"]) == (1, "failed")


def test_settings_that_a_server_refuses_are_all_listed(
    tmp_path: Path, server: ServerProcess
) -> None:
    file = tmp_path / "chatd.toml"
    file.write_text('[server]\nport = "x"\nhots = "a"\n[worker]\nslots = 3\n')
    wrong = {"CHATD_WORKER_SLTOS": "4"}
    checked = server.call("config", "check", "--config", file, "--json", env=wrong)
    assert checked.code == 2
    problems = msgspec.convert(checked.json["problems"], list[str])
    assert len(problems) == 3
    for part in ("server.port", "server.hots", "did you mean CHATD_WORKER_SLOTS"):
        assert any(part in one for one in problems), problems
    examined = server.call("doctor", "--config", file, "--json", env=wrong)
    assert (examined.code, verdicts(examined)) == (1, {"settings": "failed"})
    fine = server.call("config", "check", *on_database(server))
    assert (fine.code, "a server would start" in fine.out) == (0, True)


def test_an_upgrade_is_told_before_it_is_made(server: ServerProcess) -> None:
    found = server.call("upgrade", "check", *on_database(server), "--json")
    assert (found.code, verdicts(found)) == (0, {"schema": "ok", "replicas": "ok"})


PLANTED = {
    "OPENAI_API_KEY": "planted-key-of-the-environment",
    "CHATD_SERVER_METRICS_TOKEN": "planted-metrics-token",
}
LOGGED = (
    "planted-key-of-the-environment",
    "planted-metrics-token",
    "planted-header-value",
    "sk-plantedplantedplanted0",
    "planted.bearer.token",
    "planted-url-password",
)


STORED = ("planted-words-of-a-message", "sk-planted-key-of-a-provider")


def test_a_debug_bundle_has_what_a_report_needs_and_no_secret(
    server: ServerProcess, tmp_path: Path
) -> None:
    config = tmp_path / "chatd.toml"
    config.write_text(
        '[[mcp_servers]]\nslug = "x"\nurl = "https://u:planted-url-password@mcp.example.com/"\n'
        'headers = { "X-Key" = "planted-header-value" }\n'
    )
    # What the database has: the words of a chat, and the key of a provider.
    server.create_chat(f"answer fast {STORED[0]}")
    key = {"name": "planted", "kind": "openai", "api_keys": [STORED[1]]}
    server.request("POST", "/providers", key)
    log = tmp_path / "chatd.log"
    log.write_text(
        f"{' and '.join(LOGGED[:4])}\nAuthorization: Bearer planted.bearer.token\n"
        "dial https://u:planted-url-password@mcp.example.com\n"
        f"token {token_file(server).read_text()}"
        f"key {(server.directory / 'data' / 'secret-keys').read_text()}\nordinary words stay\n"
    )
    target = tmp_path / "bundle.tar.gz"
    where = ("--database-url", server.dsn, "--config", config)
    made = server.call(
        *("debug", "bundle", "-o", target, "--log", log, *where),
        env=PLANTED,
    )
    assert made.code == 0, made
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        parts = {
            entry.name.removeprefix("chatd-debug/"): archive.extractfile(entry).read().decode()  # pyright: ignore[reportOptionalMemberAccess]
            for entry in archive
        }
    server.done("providers", "rm", "planted", "--yes")
    secrets = [
        *(*LOGGED, *STORED),
        token_file(server).read_text().strip(),
        (server.directory / "data" / "secret-keys").read_text().strip(),
    ]
    for name, text in parts.items():
        for secret in secrets:
            assert secret not in text, (name, secret)
        if name.endswith(".json"):
            msgspec.json.decode(text)
    assert "ordinary words stay" in parts["logs/chatd.log"]
    assert "mcp.example.com" in parts["settings.json"]
    assert "chat_workers" in parts["tables.json"]
    assert "chatd_" in parts["metrics.txt"]
    assert '"check": "database"' in parts["doctor.json"]
    again = server.call("debug", "bundle", "-o", target, *where)
    assert (again.code, "File exists" in again.err) == (1, True)
