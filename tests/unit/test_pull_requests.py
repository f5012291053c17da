"""Which address a git host is asked at, and what its reply says."""

import json

import pytest

from chatd.domain.workspace.pull_requests import (
    Checks,
    GitHostKind,
    GitRemote,
    PullRequest,
    PullRequestState,
    api_address,
    auth_headers,
    checks_paths,
    new_pull_request_url,
    parse_remote,
    read_checks,
    read_pull_request,
    search_path,
)
from tests.support.tables import table

APP = GitRemote(host="git.test", path="team/app")
SHA = "a" * 40


@table(
    "address host path",
    {
        "https": ("https://github.com/a/app.git", "github.com", "a/app"),
        "without a suffix": ("https://GitHub.com/a/app/", "github.com", "a/app"),
        "with a port": ("http://git.test:3000/a/app.git", "git.test:3000", "a/app"),
        "ssh": ("ssh://git@git.test:2222/a/app.git", "git.test", "a/app"),
        "as scp has it": ("git@git.test:a/app.git", "git.test", "a/app"),
        "a group within a group": ("https://gitlab.com/a/b/c.git", "gitlab.com", "a/b/c"),
    },
)
def test_a_remote_names_a_host_and_a_repository(address: str, host: str, path: str) -> None:
    assert parse_remote(address) == GitRemote(host=host, path=path)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/srv/git/app.git",
        "file:///srv/git/app.git",
        "https://git.test/app",
        "https://git.test/a/../../b",
        "https://git.test/a/b c",
        "https://git.test/a/.git",
        "https://git.test/a/app?x=y",
        "https://[::1]/a/app",
        "git@git.test:/srv/app",
        "https://git.test/" + "a/" * 300,
        "https://git.test/a/ü",
    ],
)
def test_other_addresses_name_none(address: str) -> None:
    assert parse_remote(address) is None


@table(
    "kind host api search",
    {
        "github": (
            "github",
            "github.com",
            "https://api.github.com",
            "/repos/team/app/pulls?head=team:fix%2F1%26x&state=all&per_page=1",
        ),
        "github on premises": (
            "github",
            "git.test",
            "https://git.test/api/v3",
            "/repos/team/app/pulls?head=team:fix%2F1%26x&state=all&per_page=1",
        ),
        "gitlab": (
            "gitlab",
            "git.test",
            "https://git.test/api/v4",
            (
                "/projects/team%2Fapp/merge_requests?source_branch=fix%2F1%26x"
                "&order_by=created_at&sort=desc&per_page=50"
            ),
        ),
        "gitea": (
            "gitea",
            "git.test",
            "https://git.test/api/v1",
            "/repos/team/app/pulls?state=all&sort=recentupdate&limit=50",
        ),
    },
)
def test_each_kind_of_host_is_asked_in_its_own_way(
    kind: GitHostKind, host: str, api: str, search: str
) -> None:
    assert api_address(kind, host) == api
    assert search_path(kind, GitRemote(host=host, path="team/app"), "fix/1&x") == search
    assert auth_headers(kind, "T")["authorization"].split()[1] == "T"


def github(**fields: object) -> list[dict[str, object]]:
    one = {"number": 7, "html_url": "https://git.test/team/app/pull/7", "title": "Fix"}
    return [{**one, "state": "open", "head": {"ref": "fix", "sha": SHA}, **fields}]


def gitlab(**fields: object) -> list[dict[str, object]]:
    one = {"iid": 7, "web_url": "https://git.test/team/app/-/merge_requests/7", "title": "Fix"}
    return [{**one, "state": "opened", "sha": SHA, **fields}]


@table(
    "kind listed state",
    {
        "open": ("github", github(), "open"),
        "draft": ("github", github(draft=True), "draft"),
        "merged": ("github", github(state="closed", merged_at="2026-01-01T00:00:00Z"), "merged"),
        "closed": ("github", github(state="closed", merged_at=None), "closed"),
        "opened at gitlab": ("gitlab", gitlab(), "open"),
        "merged at gitlab": ("gitlab", gitlab(state="merged"), "merged"),
        "draft at gitlab": ("gitlab", gitlab(draft=True), "draft"),
        "merged at gitea": ("gitea", github(state="closed", merged=True), "merged"),
    },
)
def test_the_state_of_a_pull_request_is_read(
    kind: GitHostKind, listed: list[dict[str, object]], state: PullRequestState
) -> None:
    found = read_pull_request(kind, APP, "fix", json.dumps(listed).encode())
    assert found is not None
    assert found.commit == SHA
    assert found.pull_request == PullRequest(
        number=7,
        url=str(listed[0].get("html_url") or listed[0].get("web_url")),
        title="Fix",
        state=state,
    )


def test_a_branch_without_a_pull_request_has_none() -> None:
    assert read_pull_request("github", APP, "fix", b"[]") is None
    others = json.dumps(github(head={"ref": "other", "sha": SHA})).encode()
    assert read_pull_request("gitea", APP, "fix", others) is None


@table(
    "kind of_fork own",
    {
        "gitlab": (
            "gitlab",
            gitlab(source_project_id=8, target_project_id=9),
            gitlab(source_project_id=9, target_project_id=9),
        ),
        "gitea": (
            "gitea",
            github(head={"ref": "fix", "sha": SHA, "repo": {"full_name": "eve/app"}}),
            github(head={"ref": "fix", "sha": SHA, "repo": {"full_name": "Team/App"}}),
        ),
        "a fork that was deleted": (
            "gitea",
            github(head={"ref": "fix", "sha": SHA, "repo": None}),
            github(),
        ),
    },
)
def test_a_branch_of_this_name_in_a_fork_is_another_one(
    kind: GitHostKind, of_fork: list[dict[str, object]], own: list[dict[str, object]]
) -> None:
    assert read_pull_request(kind, APP, "fix", json.dumps(of_fork).encode()) is None
    both = json.dumps([*of_fork, *own]).encode()
    assert read_pull_request(kind, APP, "fix", both) is not None


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b'{"message":"Not Found"}',
        json.dumps(github(html_url="https://evil.test/x")).encode(),
        json.dumps(github(html_url="javascript:alert(1)")).encode(),
        json.dumps(github(head={"ref": "fix", "sha": "../../x"})).encode(),
    ],
)
def test_a_reply_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_pull_request("github", APP, "fix", body)


def runs(*conclusions: str | None) -> bytes:
    return json.dumps({"check_runs": [{"conclusion": one} for one in conclusions]}).encode()


def status(state: str, count: int = 1) -> bytes:
    return json.dumps({"state": state, "total_count": count}).encode()


@table(
    "kind bodies checks",
    {
        "none": ("github", [runs(), status("pending", 0)], "none"),
        "all passed": ("github", [runs("success", "skipped"), status("success")], "passing"),
        "one goes on": ("github", [runs("success", None), status("pending", 0)], "pending"),
        "one failed": ("github", [runs(None, "failure"), status("success")], "failing"),
        "a status failed": ("github", [runs("success"), status("failure")], "failing"),
        "no pipeline": ("gitlab", [b"[]"], "none"),
        "a pipeline runs": ("gitlab", [b'[{"status":"running"}]'], "pending"),
        "a pipeline passed": ("gitlab", [b'[{"status":"success"}]'], "passing"),
        "a pipeline was cancelled": ("gitlab", [b'[{"status":"canceled"}]'], "failing"),
        "gitea": ("gitea", [status("success")], "passing"),
        "gitea without checks": ("gitea", [status("pending", 0)], "none"),
    },
)
def test_checks_are_summed_up(kind: GitHostKind, bodies: list[bytes], checks: Checks) -> None:
    found = read_pull_request("github", APP, "fix", json.dumps(github()).encode())
    assert found is not None
    assert len(checks_paths(kind, APP, found)) == len(bodies)
    assert read_checks(kind, bodies) == checks


@table(
    "kind branch base url",
    {
        "github": (
            "github",
            "fix/1",
            "origin/main",
            "https://git.test/team/app/compare/main...fix/1?expand=1",
        ),
        "gitlab": (
            "gitlab",
            "fix/1",
            "origin/main",
            (
                "https://git.test/team/app/-/merge_requests/new"
                "?merge_request%5Bsource_branch%5D=fix%2F1"
            ),
        ),
        "gitea": ("gitea", "fix", "origin/main", "https://git.test/team/app/compare/main...fix"),
        "the default branch": ("github", "main", "origin/main", None),
        "an unknown base": ("github", "fix", "", None),
    },
)
def test_a_pull_request_is_opened_at_a_page_of_the_host(
    kind: GitHostKind, branch: str, base: str, url: str | None
) -> None:
    assert new_pull_request_url(kind, APP, branch, base) == url
