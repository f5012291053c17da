"""Slash commands: what a draft means, what is offered, and that the table is whole."""

from typing import get_args

import pytest

from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.states import PublicStatus
from chatd.terminal.composer.commands import (
    ALIASES,
    BEHAVIOURS,
    COMMANDS,
    BusyChoice,
    CommandCall,
    CommandName,
    PlainText,
    UnknownCommand,
    find_behaviour,
    read_line,
    refusal_of,
)
from chatd.terminal.composer.completion import offer_commands


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/new", "new", ""),
        ("  /NEW  ", "new", ""),
        ("/rename  A better name ", "rename", "A better name"),
        ("/mode plan", "mode", "plan"),
        ("/stop", "interrupt", ""),
        ("/changes chat", "diff", "chat"),
    ],
)
def test_a_line_that_begins_with_a_slash_is_a_command(text: str, name: str, argument: str) -> None:
    found = read_line(text)
    assert isinstance(found, CommandCall)
    assert (found.command.name, found.argument) == (name, argument)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("hello", "hello"),
        ("//etc/hosts is wrong", "/etc/hosts is wrong"),
        ("//", "/"),
        ("/etc/hosts\n/etc/passwd", "/etc/hosts\n/etc/passwd"),
        ("see /new", "see /new"),
        ("  two words \n", "two words"),
    ],
)
def test_everything_else_is_text_and_two_slashes_send_one(text: str, sent: str) -> None:
    assert read_line(text) == PlainText(sent)


@pytest.mark.parametrize("text", ["/newish", "/", "/etc/hosts is wrong", "/ new"])
def test_an_unknown_command_is_never_text(text: str) -> None:
    assert isinstance(read_line(text), UnknownCommand)


def test_every_command_has_one_line_of_help_and_aliases_name_commands() -> None:
    assert sorted(one.name for one in COMMANDS) == sorted(get_args(CommandName))
    assert [one.usage for one in COMMANDS if len(f"{one.usage} {one.effect}") > 100] == []
    assert all(one.effect and "\n" not in one.effect for one in COMMANDS)
    assert set(ALIASES.values()) <= set(get_args(CommandName))
    assert not set(ALIASES) & set(get_args(CommandName))


@pytest.mark.parametrize(
    ("name", "status", "refusal"),
    [
        ("new", None, ""),
        ("fork", None, "only in a chat"),
        ("fork", "running", ""),
        ("compact", "running", "only while the chat waits"),
        ("compact", "error", ""),
        ("interrupt", "waiting", "nothing is running"),
        ("interrupt", "requires_action", ""),
    ],
)
def test_a_command_says_why_it_cannot_be_used(
    name: str, status: PublicStatus | None, refusal: str
) -> None:
    command = next(one for one in COMMANDS if one.name == name)
    assert refusal_of(command, status) == refusal


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("/un", ["/unsent", "/undo", "/unarchive", "/unpin", "/unshare name"]),
        ("/MOD", ["/model [name]", "/mode [plan|normal]"]),
        ("/mode ", ["plan", "normal"]),
        ("/mode n", ["normal"]),
        ("/mode plan", []),
        ("/diff x", []),
        ("//n", []),
        ("/n\n", []),
        ("n", []),
    ],
)
def test_commands_and_their_arguments_are_offered(text: str, labels: list[str]) -> None:
    assert [one.label for one in offer_commands(text, "waiting")] == labels


def test_an_offer_replaces_what_was_typed() -> None:
    (offer,) = offer_commands("/mode p", None)
    assert "/mode p"[: offer.start] + offer.insert == "/mode plan"
    (offer,) = offer_commands("/renam", "waiting")
    assert (offer.start, offer.insert, offer.is_whole) == (0, "/rename ", True)


def test_there_are_the_five_behaviours_of_the_api() -> None:
    assert {one.value for one in BEHAVIOURS} == set(get_args(WhenBusy))
    assert find_behaviour("Replace") == find_behaviour("rollback")
    assert find_behaviour("never") is None


def test_a_behaviour_is_chosen_for_one_message_or_kept() -> None:
    once = BusyChoice().cycled()
    assert (once.value, once.kept, once.after_send().value) == ("steer", "queue", "queue")
    kept = BusyChoice().with_kept("interrupt")
    assert (kept.value, kept.after_send().value) == ("interrupt", "interrupt")
    around = kept
    for _ in BEHAVIOURS:
        around = around.cycled()
    assert around == kept
