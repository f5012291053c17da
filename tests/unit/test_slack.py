"""Slack: mrkdwn, splitting, what an event asks for, which buttons a call gets."""

import time
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.cli.administration.slack_commands import MANIFEST
from chatd.domain.chat.messages import PendingCall
from chatd.domain.deployment.slack import (
    REQUIRED_SCOPES,
    SlackConnection,
    SlackEvent,
    SlackPayload,
    ThreadView,
    call_body,
    call_buttons,
    chosen_label,
    codes_in,
    is_shown_whole,
    is_slack_file_origin,
    link_code_of,
    progress_blocks,
    progress_text,
    read_payload,
    read_slack,
    request_of,
)
from chatd.domain.deployment.slack_text import (
    MAX_ANSWER_SECTIONS,
    MAX_SECTION_CHARS,
    answer_messages,
    mrkdwn,
    plain_text,
    split_text,
)
from chatd.domain.ids import ToolCallId
from tests.support.seeds import QUESTIONS
from tests.support.slack_api import check_blocks

ONE = SlackConnection(id=UUID(int=1), name="Acme", team_id="T1", bot_user_id="U0BOT")
VIEW = ThreadView(thread_id=UUID(int=2), progress="working", chat_url="https://c.example/c/1")


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("plain", "plain"),
        ("**bold** and *italic* and ~~gone~~", "*bold* and _italic_ and ~gone~"),
        ("__bold__ snake_case_name", "*bold* snake_case_name"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("# Title", "*Title*"),
        ("## **Title** ##", "*Title*"),
        ("- one\n  - two", "• one\n  • two"),
        ("* one\n* **two**", "• one\n• *two*"),
        ("- [ ] open\n- [x] done", "☐ open\n☑ done".replace("☐", "☐").replace("☑", "☑")),
        ("1. one", "1. one"),
        ("> quoted <b>", "> quoted &lt;b&gt;"),
        ("---", "———"),
        ("a & b < c > d", "a &amp; b &lt; c &gt; d"),
        ("<!channel> <@U1>", "&lt;!channel&gt; &lt;@U1&gt;"),
        ("[a|b](https://x.example/?a=1&b=2)", "<https://x.example/?a=1&amp;b=2|a¦b>"),
        ("![alt](https://x.example/i.png)", "<https://x.example/i.png|alt>"),
        ("[x](javascript:alert(1))", "[x](javascript:alert(1))"),
        ("see https://x.example/a_b_c.", "see <https://x.example/a_b_c>."),
        ("`**x** <y>`", "`**x** &lt;y&gt;`"),
        ("```py\n**x** <y>\n```", "```\n**x** &lt;y&gt;\n```"),
        ("```\nopen", "```\nopen\n```"),
        ("~~~\na ``` b\n~~~", "```\na ''' b\n```"),
        ("| a | bb |\n|---|:-:|\n| ccc | d |", "```\na    bb\nccc  d\n```"),
        ("a | b", "a | b"),
    ],
)
def test_markdown_becomes_mrkdwn(markdown: str, shown: str) -> None:
    assert mrkdwn(markdown) == shown


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a &lt;b&gt; &amp;lt;", "a <b> &lt;"),
        ("<@U1> in <#C1|general>", "@U1 in #general"),
        (
            "<https://x.example> <https://x.example|here>",
            "https://x.example here (https://x.example)",
        ),
        ("<!here> <!subteam^S1|@team>", "@here @team"),
        ("<mailto:a@x.example|a@x.example>", "a@x.example"),
    ],
)
def test_the_text_of_a_message_in_plain_words(text: str, plain: str) -> None:
    assert plain_text(text) == plain


@pytest.mark.parametrize(
    "text",
    [
        "word " * 3000,
        "x" * 10_000,
        "&amp;" * 3000,
        "<https://x.example/" + "a" * 40 + "|label> " * 400,
        "```\n" + "code line\n" * 1500 + "```",
        "a\n```\n" + "y" * 9000 + "\n```\nb",
        "\n\n".join(["paragraph " * 30] * 60),
    ],
)
def test_pieces_fit_into_a_block_and_lose_nothing(text: str) -> None:
    pieces = split_text(text)
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= MAX_SECTION_CHARS
    assert all(piece.count("```") % 2 == 0 for piece in pieces)
    assert all(piece.strip() for piece in pieces)

    def letters(value: str) -> str:
        return "".join(value.replace("```", "").split())

    assert letters("".join(pieces)) == letters(text)
    if "&amp;" in text:
        assert all("&" not in piece.replace("&amp;", "") for piece in pieces)


def test_the_messages_of_an_answer_are_taken_by_slack() -> None:
    messages = answer_messages("long " * 50_000)
    assert all(check_blocks([dict(block) for block in blocks]) is None for blocks in messages)
    assert sum(map(len, messages)) == MAX_ANSWER_SECTIONS
    assert "The rest of the answer is in chatd" in str(messages[-1][-1])
    assert answer_messages("") == answer_messages(" \n ") == []


def payload(**event: Any) -> Any:
    fields = {"type": "message", "channel": "C1", "user": "U1", "text": "hi", "ts": "1.1", **event}
    body = {"type": "event_callback", "team_id": "T1", "event": fields}
    return read_payload(read_slack(msgspec.json.encode(body), SlackPayload), ONE)


def test_a_mention_has_one_key_in_both_of_its_events() -> None:
    text = "<@U0BOT> hi"
    mention, message = payload(type="app_mention", text=text), payload(text=text)
    assert mention == message
    assert (mention.key, mention.place, mention.is_request) == ("message C1 1.1", "C1 1.1", True)


@pytest.mark.parametrize(
    ("event", "is_request", "thread"),
    [
        ({}, False, "1.1"),
        ({"thread_ts": "0.9"}, False, "0.9"),
        ({"channel": "D1", "channel_type": "im"}, True, "1.1"),
        ({"text": "so <@U0BOT>"}, True, "1.1"),
        ({"subtype": "file_share"}, False, "1.1"),
    ],
)
def test_what_counts_without_a_chat_in_its_thread(
    event: dict[str, Any], is_request: object, thread: str
) -> None:
    found = payload(**event)
    assert (found.is_request, found.thread_ts) == (is_request, thread)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"bot_id": "B1"}, "bots cannot ask"),
        ({"user": "U0BOT"}, "bots cannot ask"),
        ({"user": ""}, "bots cannot ask"),
        ({"user_team": "T2"}, "a person of another workspace"),
        ({"subtype": "message_changed"}, "not an event that starts anything"),
        (
            {"subtype": None, "files": [{"name": None}], "ts": "later"},
            "the event has an unusual id",
        ),
        ({"type": "reaction_added"}, "not an event that starts anything"),
        ({"type": "app_mention"}, "no mention"),
        ({"channel": "C1 x"}, "the event has an unusual id"),
        ({"ts": "now"}, "the event has an unusual id"),
    ],
)
def test_what_is_ignored(event: dict[str, Any], reason: str) -> None:
    assert payload(**event) == reason


def press(**changes: Any) -> Any:
    body = {
        "type": "block_actions",
        "user": {"id": "U1", "team_id": "T1"},
        "channel": {"id": "C1"},
        "message": {"ts": "1.2", "thread_ts": "1.1"},
        "actions": [{"action_id": "approve", "value": "v", "action_ts": "1.3"}],
        **changes,
    }
    return read_payload(read_slack(msgspec.json.encode(body), SlackPayload), ONE)


def test_a_press_waits_for_no_message_and_has_its_own_key() -> None:
    found = press()
    assert (found.kind, found.action, found.value, found.thread_ts) == (
        "press",
        "approve",
        "v",
        "1.1",
    )
    assert found.place == "press C1 1.1"
    later = press(actions=[{"action_id": "approve", "value": "v", "action_ts": "1.4"}])
    assert found.key != later.key


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": []},
        {"actions": [{"action_id": "open", "action_ts": "1.3"}]},
        {"user": {"id": "U1", "team_id": "T2"}},
        {"type": "view_submission"},
        {"actions": [{"action_id": "approve", "value": "a\0b", "action_ts": "1.3"}]},
    ],
)
def test_presses_that_do_nothing(changes: dict[str, Any]) -> None:
    assert isinstance(press(**changes), str)


@pytest.mark.parametrize(
    ("text", "request_text"),
    [
        ("<@U0BOT> repair it", "repair it"),
        ("<@U0BOT>: repair it", "repair it"),
        ("please <@U0BOT> repair", "please @chatd repair"),
        ("<@U0BOT>", ""),
        ("<@U0BOT|chatd> repair it", "repair it"),
    ],
)
def test_the_request_of_a_message(text: str, request_text: str) -> None:
    event = SlackEvent(
        kind="message", key="k", channel="C1", thread_ts="1.1", ts="1.1", user="U1", text=text
    )
    assert request_of(event, "U0BOT") == request_text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("link mfrggzdfmztwq2lknnwg23tpoa", "MFRGGZDFMZTWQ2LKNNWG23TPOA"),
        ("Link  MFRGGZDFMZTWQ2LKNNWG23TPOA ", "MFRGGZDFMZTWQ2LKNNWG23TPOA"),
        ("link the files", None),
        ("link MFRGGZDFMZTWQ2LKNNWG23TPO1", None),
        ("please link MFRGGZDFMZTWQ2LKNNWG23TPOA", None),
    ],
)
def test_the_code_of_a_link(text: str, code: str | None) -> None:
    assert link_code_of(text) == code


SLACK = ("https", "slack.com", 443)
PROXY = ("http", "127.0.0.1", 9)


@pytest.mark.parametrize(
    ("origin", "is_taken"),
    [
        (("https", "files.slack.com", 443), True),
        (SLACK, True),
        (("http", "slack.com", 80), False),
        (("https", "slack.com", 8443), False),
        (("http", "files.slack.com", 80), False),
        (("https", "evilslack.com", 443), False),
        (("https", "slack.com.evil.example", 443), False),
        (PROXY, False),
    ],
)
def test_the_bot_token_goes_to_hosts_of_slack_only(origin: Any, is_taken: object) -> None:
    assert is_slack_file_origin(origin, SLACK) is is_taken


def test_the_bot_token_goes_to_another_address_of_the_api() -> None:
    assert is_slack_file_origin(PROXY, PROXY)
    assert not is_slack_file_origin(("http", "127.0.0.1", 22), PROXY)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("see MFRGGZDFMZTWQ2LKNNWG23TPOA.", 1),
        ("MFRGGZDFMZTWQ2LKNNWG23TPOAA", 0),
        ("`mfrggzdfmztwq2lknnwg23tpoa`", 1),
        ("MFRGGZDFMZTWQ2LKNNWG23TPOA " * 20, 5),
    ],
)
def test_codes_are_found_anywhere_in_a_message(text: str, count: int) -> None:
    assert len(codes_in(text)) == count


@pytest.mark.parametrize(
    "markdown",
    [
        "[" * 90_000,
        "![" * 40_000,
        "[a](https://x" * 7000,
        "*a " * 30_000,
        "**a " * 22_000,
        "__a " * 22_000,
        "~~a " * 22_000,
        "a `" + "`` " * 30_000,
        "a|b\n" + "-" * 80_000 + "x",
        "a|b\n|" + " -:" * 25_000 + "x",
        "word " * 4_000_000,
    ],
    ids=lambda text: text[:12],
)
def test_no_answer_keeps_the_server_busy(markdown: str) -> None:
    began = time.process_time()
    assert answer_messages(markdown)
    assert time.process_time() - began < 2.0


def call(args: str, asks: str = "approval", name: str = "execute") -> PendingCall:
    return PendingCall(id=ToolCallId("c1"), name=name, args=Raw(args.encode()), asks=asks)


def blocks_of(one: PendingCall) -> list[Any]:
    return [*call_body(one), *call_buttons(one, UUID(int=3), "https://c.example/c/1")]


def actions_of(blocks: list[Any]) -> list[str]:
    rows = [block["elements"] for block in blocks if block["type"] == "actions"]
    return [each["action_id"] for row in rows for each in row]


@pytest.mark.parametrize(
    ("args", "buttons"),
    [
        ('{"command":"git push"}', ["approve", "deny", "open"]),
        ('{"command":"' + "x" * 1990 + '"}', ["approve", "deny", "open"]),
        ('{"command":"' + "<" * 1990 + '"}', ["approve", "deny", "open"]),
        ('{"command":"' + "x" * 2100 + '"}', ["deny", "open"]),
        ('{"command":"login --password secret1"}', ["deny", "open"]),
        ("[1]", ["deny", "open"]),
        ('{"command":"echo ```id```"}', ["deny", "open"]),
    ],
)
def test_a_call_is_approved_in_slack_only_if_all_of_it_is_shown(
    args: str, buttons: list[str]
) -> None:
    blocks = blocks_of(call(args))
    assert actions_of(blocks) == buttons
    assert check_blocks(blocks) is None
    shown = str([block["text"]["text"] for block in blocks if block["type"] == "section"])
    assert shown.count("&lt;") in (0, 1990)


def test_all_arguments_of_a_tool_that_is_no_command_are_shown() -> None:
    one = call('{"command":"ls","description":"and more"}', name="deploy")
    assert "and more" in str(blocks_of(one))
    assert is_shown_whole(one)


def test_the_options_of_one_question_are_buttons() -> None:
    one = call(QUESTIONS, "question", "ask_user_question")
    blocks = blocks_of(one)
    assert check_blocks(blocks) is None
    options = [name for name in actions_of(blocks) if name.startswith("option-")]
    assert len(options) >= 2
    assert chosen_label(one, "option-0")
    assert chosen_label(one, "option-9") is None
    assert chosen_label(one, "approve") is None


@pytest.mark.parametrize("progress", ["working", "asking", "done", "failed", "gone"])
def test_only_a_chat_that_works_has_a_stop_button(progress: Any) -> None:
    view = msgspec.structs.replace(VIEW, progress=progress, error="<oops>")
    blocks: list[Any] = progress_blocks(view)
    assert ("stop" in actions_of(blocks)) is (progress in ("working", "asking"))
    assert check_blocks(blocks) is None
    assert "<" not in progress_text(view)


def test_the_manifest_has_what_chatd_needs_and_docs_show_it() -> None:
    manifest: Any = MANIFEST
    scopes = set(manifest["oauth_config"]["scopes"]["bot"])
    assert scopes == REQUIRED_SCOPES | {"users:read.email"}
    docs = (Path(__file__).parents[2] / "docs" / "slack.md").read_text()
    shown = docs.partition("```json\n")[2].partition("```")[0]
    assert msgspec.json.decode(shown) == MANIFEST
