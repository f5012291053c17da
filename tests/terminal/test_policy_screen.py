"""The rules of a chat in the terminal, on a real server."""

import msgspec

from chatd.domain.tool_policy.rules import ToolRule
from chatd.terminal.messages import OpenScreen
from chatd.terminal.screens.policy_rules import with_rule
from tests.support.terminal import SMALL, TerminalServer, run_terminal, until, until_shown

OWN = ToolRule(tool="execute", action="ask")
OTHER = ToolRule(tool="write_file", action="deny")


def test_a_change_is_made_to_the_rule_that_was_meant() -> None:
    new = ToolRule(tool="execute", action="auto")
    assert with_rule((OWN, OTHER), OWN, new) == (new, OTHER)
    assert with_rule((OWN, OTHER), OWN, None) == (OTHER,)
    assert with_rule((OTHER,), None, new) == (OTHER, new)
    assert with_rule((OTHER,), OWN, new) == (OTHER, new), "removed by somebody else meanwhile"
    assert with_rule((OTHER,), OWN, None) == (OTHER,)


async def rules_of(server: TerminalServer, path: str) -> object:
    return (await server.call("GET", path))["rules"]


async def test_rules_of_the_chat_are_added_changed_and_removed(server: TerminalServer) -> None:
    mine = {"rules": [{"tool": "github__*", "action": "ask", "reason": "Seen by others."}]}
    await server.call("PUT", "/settings/me/tool-policy", mine)
    chat_id = await server.create_chat("answer fast")
    path = f"/chats/{chat_id}/tool-policy"
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        pilot.app.screen.post_message(OpenScreen("policy"))
        shown = await until_shown(pilot, "Of this chat and its subagents")
        assert "Ask first  github__*  Seen by others." in shown
        await pilot.press("a")
        await until_shown(pilot, "A rule of this chat")
        await pilot.press(*"execute", "tab", *"rm", "ctrl+s")
        await until_shown(pilot, "«rm» is no argument")
        await pilot.press("home", *"command: ", "end", *" *", "tab", "right", "ctrl+s")
        await until_shown(pilot, "Never run  execute  command: rm *")
        rule = {"tool": "execute", "action": "deny", "args": {"command": "rm *"}}
        assert await rules_of(server, path) == [rule]
        await pilot.press("d")
        await until_shown(pilot, "Remove the rule")
        await pilot.press("y")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 3)
        await until_shown(pilot, "No rules.")
    assert await rules_of(server, path) == []
    assert await rules_of(server, "/settings/me/tool-policy") == mine["rules"]


async def test_a_change_of_somebody_else_is_read_before_ones_own_is_saved(
    server: TerminalServer,
) -> None:
    chat_id = await server.create_chat("answer fast")
    path = f"/chats/{chat_id}/tool-policy"
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        pilot.app.screen.post_message(OpenScreen("policy"))
        await until_shown(pilot, "No rules.")
        await pilot.press("a")
        await until_shown(pilot, "A rule of this chat")
        other = msgspec.to_builtins(OTHER)
        await server.call("PUT", path, {"rules": [other]})
        await pilot.press(*"x", "ctrl+s")
        await until_shown(pilot, "Somebody else has changed the rules meanwhile.")
        assert await rules_of(server, path) == [other], "nothing was overwritten"
        await pilot.press("ctrl+s")
        await until_shown(pilot, "Ask first  x")
    assert await rules_of(server, path) == [other, {"tool": "x", "action": "ask"}]
