"""Entries of the audit log in words, and as CSV."""

import csv
import io
import re
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

import chatd
from chatd.domain.access import audit_text
from chatd.domain.access.accounts import AuditEntry
from chatd.domain.access.audit_text import actions_like, actor_text, csv_entries, csv_header
from chatd.domain.ids import UserId
from chatd.domain.text import csv_rows

ID = "0193c5a0-0000-7000-8000-000000000000"


def entry(action: str = "user.create", **fields: object) -> AuditEntry:
    values: dict[str, object] = {
        "id": 1,
        "at": datetime(2026, 5, 1, 12, tzinfo=UTC),
        "actor_id": UserId(UUID(int=1)),
        "actor": "ada",
        "ip": None,
        "action": action,
        "object_type": action.partition(".")[0],
        "object_id": ID,
        "detail": None,
        "outcome": "done",
        "object_name": "thing",
    }
    return AuditEntry(**{**values, **fields})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (entry("user.suspend", object_name="bob"), "suspended the user bob"),
        (
            entry("model.update", object_name="claude-x", detail={"fields": ["prices"]}),
            "changed the prices of the model claude-x",
        ),
        (
            entry("user.update", detail={"before": {"role": "a"}, "after": {"role": "b"}}),
            "changed the role of the user thing",
        ),
        (
            entry("provider.update", detail={"fields": list("abcde")}),
            "changed the a, the b, the c and 2 more of the provider thing",
        ),
        (entry("model.update", detail={"fields": []}), "changed nothing of the model thing"),
        (
            entry("chat.read", object_name="Fix it", person_name="bob"),
            "read the chat “Fix it” of bob",
        ),
        (entry("chat.read", object_name="Fix it"), "read the chat “Fix it”"),
        (
            entry("chat.read", object_name=None, object_is_deleted=True),
            f"read a deleted chat ({ID})",
        ),
        (entry("chat.read", object_name=None), f"read the chat {ID}"),
        (entry("user.delete", object_is_deleted=True), "deleted the user thing"),
        (entry("user.suspend", object_is_deleted=True), "suspended the user thing (deleted)"),
        (
            entry("group.add_member", person_name="bob", object_name="Readers"),
            "added bob to the group Readers",
        ),
        (entry("group.add_member"), "added a user to the group thing"),
        (entry("user.sign_in"), "signed in"),
        (
            entry("user.sign_in", outcome="refused", object_id="unknown", object_name=None),
            "refused a sign-in as an unknown user",
        ),
        (
            entry(
                "spend_limit.set_default",
                object_id="default",
                object_name=None,
                detail={"spend_limit_micros": 2_500_000, "period": "day"},
            ),
            "set the spend limit for everyone to $2.50 a day",
        ),
        (
            entry("spend_limit.set_default", detail={"spend_limit_micros": None, "period": "day"}),
            "set the spend limit for everyone to none",
        ),
        (
            entry("spend_limit.set_group", detail={"spend_limit_micros": 5}),
            "set the spend limit of the group thing to $0.000005",
        ),
        (
            entry("tool_policy.update", object_id="deployment", object_name=None),
            "changed the tool policy of the server",
        ),
        (entry("tool_policy.update"), "changed the tool policy of the template thing"),
        (
            entry("settings.update", detail={"after": {"sharing_enabled": False}}),
            "changed the sharing enabled of the settings of the server",
        ),
        (
            entry("audit.export", object_type="audit_log", detail={"entries": 1200}),
            "exported 1,200 entries of the audit log",
        ),
        (entry("new_thing.paint"), "new_thing.paint: the new thing thing"),
        (entry("user.create", outcome="failed"), "created the user thing: failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_entry_is_a_sentence_after_its_actor(found: AuditEntry, words: str) -> None:
    assert audit_text.summary(found) == words


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (entry(actor_name="lovelace"), "lovelace"),
        (entry(actor_name="lovelace", actor_is_deleted=True), "lovelace (deleted user)"),
        (entry(actor_is_deleted=True), "ada (deleted user)"),
        (entry(actor_id=None, actor="sign-in"), "The server"),
        (entry(actor_id=None, actor="chatd admin audit"), "chatd admin audit"),
    ],
)
def test_an_actor_is_named_as_today_or_as_last_known(found: AuditEntry, name: str) -> None:
    assert actor_text(found) == name


def test_a_text_finds_actions_by_their_codes_and_their_words() -> None:
    assert actions_like("  Signed   IN ") == ("user.sign_in",)
    assert "group.add_member" in actions_like("add_member")
    assert set(actions_like("spend limit for everyone")) == {
        "spend_limit.set_default",
        "spend_limit.delete_default",
    }
    assert actions_like("{object}") == ()


def test_every_action_that_the_code_records_has_words() -> None:
    """As far as it is written out; others are put together from a type and a verb."""
    root = Path(chatd.__file__).parent
    sources = [path.read_text() for path in root.rglob("*.py")]
    written = re.compile(r'(?:action=|_finish\(\s*session, actor, )"([a-z_.]+\.[a-z_]+)"')
    found = {action for source in sources for action in written.findall(source)}
    assert len(found) > 15
    assert {action for action in found if action not in actions_like("")} == set()


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "  =cmd|' /C'!A0"]
)
def test_a_cell_is_no_formula(text: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_rows([[text, "a"]]).decode(), newline=""))
    assert row == [f"'{text}", "a"]


def test_an_export_has_the_words_and_the_ids_of_each_entry() -> None:
    made = csv_header() + csv_entries(
        [entry("user.suspend", object_name="=bob", detail={"a": 'x"y'}), entry(ip="1.2.3.4")]
    )
    first, second = csv.DictReader(io.StringIO(made.decode("utf-8-sig"), newline=""))
    assert first == {
        "time": "2026-05-01T12:00:00+00:00",
        "who": "ada",
        "what": "suspended the user =bob",
        "action": "user.suspend",
        "object_type": "user",
        "object": "'=bob",
        "object_id": ID,
        "outcome": "done",
        "address": "",
        "actor_id": str(UUID(int=1)),
        "detail": '{"a": "x\\"y"}',
    }
    assert second["address"] == "1.2.3.4"
