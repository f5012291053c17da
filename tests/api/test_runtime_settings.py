"""Settings of the deployment and of users over HTTP."""

from typing import Final

import msgspec
import pytest

from chatd.api.deps import RetentionDays
from chatd.domain.deployment.runtime_settings import EXPERIMENTS
from chatd.domain.prompt.instructions import DEFAULT_SYSTEM_PROMPT
from tests.support.api.server import ADMINISTRATOR, OTHER_USER, ApiServer

UNTOUCHED: Final[dict[str, object]] = {
    "version": 0,
    "system_prompt": "",
    "include_default_prompt": True,
    "sharing_enabled": True,
    "public_links": False,
    "public_link_days": 30,
    "answer_links": False,
    "memory": True,
    "experiments": [],
    "available_experiments": {},
    "debug_recording": "off",
    "default_system_prompt": DEFAULT_SYSTEM_PROMPT,
    "retention": msgspec.to_builtins(RetentionDays()),
}


async def test_an_administrator_changes_the_named_settings_and_the_rest_stays(
    server: ApiServer,
) -> None:
    first = await server.ask("GET", "/settings", token=ADMINISTRATOR)
    assert (first.status, first.json) == (200, UNTOUCHED)
    changed = await server.ask(
        "PATCH", "/settings", {"system_prompt": " Be\u200b kind. "}, token=ADMINISTRATOR
    )
    assert changed.json == {**UNTOUCHED, "version": 1, "system_prompt": "Be kind."}
    again = await server.ask(
        "PATCH", "/settings", {"include_default_prompt": False, "version": 1}, token=ADMINISTRATOR
    )
    expected = {**changed.json, "version": 2, "include_default_prompt": False}
    assert again.json == expected
    assert (await server.ask("GET", "/settings", token=ADMINISTRATOR)).json == expected


@pytest.mark.parametrize("path", ["/settings", "/settings/me"])
async def test_a_change_of_an_outdated_document_is_refused(server: ApiServer, path: str) -> None:
    refused = await server.ask("PATCH", path, {"version": 7}, token=ADMINISTRATOR)
    assert refused.code == (409, "version_conflict")
    found = await server.ask("GET", path, token=ADMINISTRATOR)
    assert found.json["version"] == 0


async def test_other_users_neither_read_nor_change_the_deployments_settings(
    server: ApiServer,
) -> None:
    assert (await server.ask("GET", "/settings")).code == (403, "forbidden")
    assert (await server.ask("PATCH", "/settings", {})).code == (403, "forbidden")


async def test_each_user_has_its_own_prompt(server: ApiServer) -> None:
    mine = await server.ask("PATCH", "/settings/me", {"custom_prompt": "I like tables."})
    debug = {"debug_recording": False, "debug_mode": "off"}
    models = {"general_model": "", "explore_model": "", "computer_use_model": ""}
    notes = {"memory": "notes", "memory_allowed": True}
    rest: dict[str, object] = {"experiments": [], **debug, **models, **notes}
    assert mine.json == {"version": 1, "custom_prompt": "I like tables.", **rest}
    theirs = await server.ask("GET", "/settings/me", token=OTHER_USER)
    assert theirs.json == {"version": 0, "custom_prompt": "", **rest}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/settings", {"system_promt": ""}, "system_promt"),
        ("/settings", {"include_default_prompt": "yes"}, "include_default_prompt"),
        ("/settings/me", {"custom_prompt": "x" * 131_073}, "custom_prompt"),
    ],
)
async def test_a_setting_that_does_not_exist_or_does_not_fit_is_refused_by_name(
    server: ApiServer, path: str, body: dict[str, object], field: str
) -> None:
    refused = await server.ask("PATCH", path, body, token=ADMINISTRATOR)
    assert refused.code == (400, "invalid_input")
    assert field in refused.content.decode()


async def test_a_change_is_recorded_in_the_audit_log(server: ApiServer) -> None:
    await server.ask("PATCH", "/settings", {"system_prompt": "Be kind."}, token=ADMINISTRATOR)
    row = await server.replica.pool.fetchrow("SELECT * FROM audit_log")
    assert row is not None
    assert (row["action"], row["object_type"], row["outcome"]) == (
        "settings.update",
        "settings",
        "done",
    )
    assert "Be kind." in row["detail"]


async def test_experiments_are_switched_on_by_name_and_shown_to_every_user(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "kites", "Fly kites.")
    monkeypatch.setitem(EXPERIMENTS, "boats", "Sail.")
    unknown = {"experiments": ["kites", "cars"]}
    refused = await server.ask("PATCH", "/settings", unknown, token=ADMINISTRATOR)
    assert (refused.status, refused.field) == (400, "experiments")
    assert b"there are boats, kites" in refused.content
    body = {"experiments": ["kites", "boats", "kites"]}
    changed = await server.ask("PATCH", "/settings", body, token=ADMINISTRATOR)
    assert changed.json["experiments"] == ["boats", "kites"]
    assert changed.json["available_experiments"] == {"kites": "Fly kites.", "boats": "Sail."}
    assert (await server.ask("GET", "/settings/me")).json["experiments"] == ["boats", "kites"]
    [entry] = (await server.ask("GET", "/audit", token=ADMINISTRATOR)).items
    assert b"kites" in msgspec.json.encode(entry["detail"])
    monkeypatch.delitem(EXPERIMENTS, "boats")
    shown = await server.ask("GET", "/settings/me")
    assert shown.json["experiments"] == ["kites"], "a finished feature has no name any more"
