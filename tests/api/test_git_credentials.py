"""Tokens for git hosts over the API: given, listed without the token, replaced, deleted."""

import pytest

from tests.support.api.server import ADMINISTRATOR, serve_api

BODY = {"host": "GitHub.com", "token": "github_pat_secret"}


@pytest.mark.promise("P13")
async def test_a_token_is_given_replaced_and_deleted_and_never_returned(dsn: str) -> None:
    async with serve_api(dsn) as server:
        made = await server.ask("POST", "/git-credentials", BODY)
        assert made.status == 201
        assert (made.json["host"], made.json["kind"]) == ("github.com", "github")
        assert made.json["api_url"] == "https://api.github.com"
        again = await server.ask("POST", "/git-credentials", {**BODY, "token": "another_secret"})
        listed = await server.ask("GET", "/git-credentials")
        assert [one["id"] for one in listed.at("items")] == [again.json["id"]] != [made.json["id"]]
        assert "secret" not in str([made.json, again.json, listed.json])
        path = f"/git-credentials/{again.json['id']}"
        assert (await server.ask("DELETE", path)).status == 204
        assert (await server.ask("DELETE", path)).status == 404
        stored = await server.replica.pool.fetchval("SELECT count(*) FROM git_credentials")
        assert stored == 0
        audit = await server.ask("GET", "/audit", token=ADMINISTRATOR)
        assert [one["action"] for one in audit.items] == [
            *("git_credential.delete", "git_credential.save", "git_credential.save")
        ]
        assert all("github.com" in str(one["detail"]) for one in audit.items)
        assert "secret" not in audit.content.decode()


@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"host": "git.test"}, "kind"),
        ({"host": "https://git.test", "kind": "gitea"}, "host"),
        ({"token": "a b c d e f g"}, "token"),
        ({"api_url": "ftp://git.test"}, "api_url"),
        ({"api_url": "http://[bad"}, "api_url"),
        ({"api_url": "http://a\0b/"}, "api_url"),
        ({"host": "github.com\n"}, "host"),
        ({"token": "abcdefgh\n"}, "token"),
        ({"kind": "svn"}, "kind"),
    ],
)
async def test_a_wrong_credential_is_refused_by_field(
    dsn: str, wrong: dict[str, str], field: str
) -> None:
    async with serve_api(dsn) as server:
        refused = await server.ask("POST", "/git-credentials", {**BODY, **wrong})
        assert refused.status == 400
        assert field in str(refused.json)
