"""Would this call run? Answered by the rule that the engine uses, for unsaved rules too."""

import pytest

from chatd.domain.chat.states import State
from tests.support.api.server import ADMINISTRATOR, ApiReply, ApiServer
from tests.support.factories import CHAT
from tests.support.seeds import Seed
from tests.support.store import insert_seed

ASK_EXECUTE = {"tool": "execute", "action": "ask"}
STATUS = {"tool": "execute", "action": "auto", "args": {"command": "git status *"}}
NO_RM = {"tool": "execute", "action": "deny", "args": {"command": "rm *"}, "reason": "Use trash."}


async def trial(
    server: ApiServer, command: str, path: str = "/settings/me", **more: object
) -> ApiReply:
    body = {"tool": "execute", "args": {"command": command}, **more}
    if path == "/settings":
        return await server.ask("POST", f"{path}/tool-policy/try", body, token=ADMINISTRATOR)
    return await server.ask("POST", f"{path}/tool-policy/try", body)


@pytest.mark.parametrize(
    ("command", "action", "decided", "matched"),
    [
        ("git status -s", "auto", STATUS, ["git status -s"]),
        ("ls", "ask", ASK_EXECUTE, []),
        ("cd x && rm -rf y; echo z", "deny", NO_RM, ["rm -rf y"]),
        ("bash -c 'rm a'", "deny", NO_RM, ["rm a"]),
        ("$X y", "ask", NO_RM, ["… y"]),
    ],
)
async def test_the_reply_has_the_rule_and_the_command_that_decide(
    server: ApiServer, command: str, action: str, decided: object, matched: list[str]
) -> None:
    found = await trial(server, command, rules=[ASK_EXECUTE, STATUS, NO_RM])
    assert found.status == 200, found.content
    assert (found.json["action"], found.json["layer"]) == (action, "user")
    assert found.json["rule"] == decided
    shown = [one["command"] for one in found.at("commands") if one["matches"] != "no"]
    assert shown == matched
    assert (await server.ask("GET", "/settings/me/tool-policy")).json["rules"] == []


async def test_without_a_rule_a_call_runs(server: ApiServer) -> None:
    found = await trial(server, "ls")
    assert (found.json["action"], found.json["layer"], found.json["rule"]) == ("auto", None, None)
    assert found.json["explanation"] == "No rule fits this call, so it runs."


async def test_the_level_that_decides_is_named_and_its_rule_only_to_its_readers(
    server: ApiServer,
) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    chat = f"/chats/{CHAT}"
    await server.ask("PUT", "/settings/tool-policy", {"rules": [NO_RM]}, token=ADMINISTRATOR)
    await server.ask("PUT", "/settings/me/tool-policy", {"rules": [ASK_EXECUTE]})
    for path, command, expected in (
        ("/settings", "rm x", ("deny", "deployment", NO_RM)),
        ("/settings", "ls", ("auto", None, None)),
        ("/settings/me", "rm x", ("deny", "deployment", None)),
        ("/settings/me", "ls", ("ask", "user", ASK_EXECUTE)),
        (chat, "ls", ("ask", "user", ASK_EXECUTE)),
    ):
        found = (await trial(server, command, path)).json
        assert (found["action"], found["layer"], found["rule"]) == expected, (path, command)
    hidden = (await trial(server, "rm x")).json
    assert (hidden["reason"], hidden["commands"]) == ("Use trash.", [])
    unsaved = (await trial(server, "ls", chat, rules=[{"tool": "*", "action": "auto"}])).json
    assert (unsaved["action"], unsaved["layer"]) == ("auto", "chat")


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"tool": ""}, "tool"),
        ({"rules": [{"tool": "a b", "action": "ask"}]}, "rules[0].tool"),
        ({"rules": [], "may_loosen": True}, "may_loosen"),
        ({"commands": "x"}, "commands"),
        ({"args": {"command": ["ls"] * 101}}, "args"),
        ({"args": {"command": "x" * 32 * 1024}}, "args"),
    ],
)
async def test_a_bad_trial_is_refused(
    server: ApiServer, more: dict[str, object], field: str
) -> None:
    refused = await trial(server, "ls", "/settings/me", **more)
    assert (refused.code, refused.field) == ((400, "invalid_input"), field)
