"""The pull request of a branch at GitHub, GitLab or Gitea: which address to ask, and what the reply
says. Pure; `workspaces.pull_requests` makes the requests.

A remote comes from a workspace and a reply from a host that a user named: neither is trusted. A
branch of a fork, whose pull request is in another repository, is not found.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chatd.domain.description import describe
from chatd.domain.text import clip, model_text

GitHostKind = Literal["github", "gitlab", "gitea"]
PullRequestState = Literal["open", "draft", "merged", "closed"]
Checks = Literal["none", "pending", "passing", "failing"]

MAX_PULL_REQUEST_TITLE_CHARS: Final = 200
MAX_REMOTE_CHARS: Final = 500
WELL_KNOWN_HOSTS: Final[Mapping[str, GitHostKind]] = {
    "github.com": "github",
    "gitlab.com": "gitlab",
    "codeberg.org": "gitea",
    "gitea.com": "gitea",
}
_HOST: Final = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)"
_PATH: Final = r"(?P<path>[\w.-]+(?:/[\w.-]+)+)/?"
_WITH_SCHEME: Final = re.compile(
    rf"(?P<scheme>https?|ssh|git)://(?:[^/@]*@)?{_HOST}(?::(?P<port>\d{{1,5}}))?/{_PATH}", re.ASCII
)
_PAGE: Final = re.compile(r"https?://([^/?#@\s]+)/[^\s]*", re.ASCII)
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_.~-]")
_UNSAFE_IN_PATH: Final = re.compile(rb"[^A-Za-z0-9_.~/-]")
_SCP_LIKE: Final = re.compile(rf"(?:[\w.-]+@)?{_HOST}:(?!/){_PATH}", re.ASCII)


class GitRemote(Struct, frozen=True, kw_only=True):
    """A repository at a host. `host` is in lower case, with the port of an HTTP address."""

    host: str
    path: str


class PullRequest(Struct, frozen=True, kw_only=True):
    """The newest pull request (or merge request) of a branch, as last seen."""

    number: Annotated[int, describe("Its number.", 12)]
    url: Annotated[str, describe("Its page.", "https://github.com/a/app/pull/12")]
    title: Annotated[str, describe("Its title.", "Fix the dispatch")]
    state: Annotated[PullRequestState, describe("Whether it is open.", "open")]
    checks: Annotated[
        Checks, describe("What its checks or pipelines say; `none`: there are none.", "passing")
    ] = "none"


class FoundPullRequest(Struct, frozen=True, kw_only=True):
    """`commit` is the head, whose checks are requested next."""

    pull_request: PullRequest
    commit: str


def parse_remote(address: str) -> GitRemote | None:
    """None for an address that names no host, such as a path."""
    if len(address) > MAX_REMOTE_CHARS:
        return None
    host = ""
    if (found := _WITH_SCHEME.fullmatch(address)) is not None:
        is_http = found["scheme"].startswith("http")
        host = found["host"] + (f":{found['port']}" if is_http and found["port"] else "")
    elif (found := _SCP_LIKE.fullmatch(address)) is not None:
        host = found["host"]
    path = "" if found is None else found["path"].removesuffix(".git")
    if not path or any(name in ("", ".", "..") for name in path.split("/")):
        return None
    return GitRemote(host=host.lower(), path=path)


def api_address(kind: GitHostKind, host: str) -> str:
    match kind:
        case "github":
            return "https://api.github.com" if host == "github.com" else f"https://{host}/api/v3"
        case "gitlab":
            return f"https://{host}/api/v4"
        case "gitea":
            return f"https://{host}/api/v1"


def auth_headers(kind: GitHostKind, token: str) -> Mapping[str, str]:
    return {"authorization": f"{'token' if kind == 'gitea' else 'Bearer'} {token}"}


def search_path(kind: GitHostKind, remote: GitRemote, branch: str) -> str:
    """Where the host lists the pull requests of the branch, the newest first."""
    name = _quote(branch)
    match kind:
        case "github":
            owner = _quote(remote.path.partition("/")[0])
            return f"/repos/{remote.path}/pulls?head={owner}:{name}&state=all&per_page=1"
        case "gitlab":
            project = _quote(remote.path)
            order = "order_by=created_at&sort=desc&per_page=50"
            return f"/projects/{project}/merge_requests?source_branch={name}&{order}"
        case "gitea":
            return f"/repos/{remote.path}/pulls?state=all&sort=recentupdate&limit=50"


def checks_paths(kind: GitHostKind, remote: GitRemote, found: FoundPullRequest) -> tuple[str, ...]:
    match kind:
        case "github":
            commit = f"/repos/{remote.path}/commits/{found.commit}"
            return (f"{commit}/check-runs?per_page=100", f"{commit}/status?per_page=1")
        case "gitlab":
            project, number = _quote(remote.path), found.pull_request.number
            return (f"/projects/{project}/merge_requests/{number}/pipelines?per_page=1",)
        case "gitea":
            return (f"/repos/{remote.path}/commits/{found.commit}/status",)


class _Repository(Struct, frozen=True, kw_only=True):
    full_name: str = ""


class _Head(Struct, frozen=True, kw_only=True):
    """`repo` is null if the fork was deleted."""

    ref: str = ""
    sha: str = ""
    repo: _Repository | UnsetType | None = UNSET


class _Listed(Struct, frozen=True, kw_only=True):
    """A listed pull request, with the fields of all three hosts."""

    title: str = ""
    state: str = ""
    draft: bool = False
    number: int | None = None
    iid: int | None = None
    html_url: str = ""
    web_url: str = ""
    merged: bool = False
    merged_at: str | None = None
    head: _Head | None = None
    sha: str | None = None
    source_project_id: int | None = None
    target_project_id: int | None = None


_LIST: Final = msgspec.json.Decoder(list[_Listed])
_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")


def read_pull_request(
    kind: GitHostKind, remote: GitRemote, branch: str, body: bytes
) -> FoundPullRequest | None:
    """None if the branch has none: anybody can have a branch of this name in a fork. Raises
    ValueError for a reply of another form."""
    for one in _LIST.decode(body):
        head = one.head or _Head(ref=branch, sha=one.sha or "")
        number, url = one.number or one.iid, one.html_url or one.web_url
        if number is None or (kind == "gitea" and head.ref != branch) or _is_of_fork(one, remote):
            continue
        page = _PAGE.fullmatch(url)
        if page is None or page[1].lower() != remote.host:
            raise ValueError("the page of the pull request is at another host")
        if not _COMMIT.fullmatch(head.sha):
            raise ValueError("the pull request has no commit")
        pull_request = PullRequest(
            number=number,
            url=clip(model_text(url), MAX_REMOTE_CHARS),
            title=clip(model_text(one.title), MAX_PULL_REQUEST_TITLE_CHARS),
            state=_state(one),
        )
        return FoundPullRequest(pull_request=pull_request, commit=head.sha)
    return None


def _is_of_fork(one: _Listed, remote: GitRemote) -> bool:
    if one.source_project_id != one.target_project_id:
        return True
    repository = UNSET if one.head is None else one.head.repo
    if repository is UNSET:
        return False
    return repository is None or repository.full_name.lower() != remote.path.lower()


def _state(one: _Listed) -> PullRequestState:
    if one.merged or one.merged_at or one.state == "merged":
        return "merged"
    if one.state in ("closed", "locked"):
        return "closed"
    return "draft" if one.draft else "open"


class _CheckRun(Struct, frozen=True, kw_only=True):
    status: str = ""
    conclusion: str | None = None


class _CheckRuns(Struct, frozen=True, kw_only=True):
    check_runs: tuple[_CheckRun, ...] = ()


class _CombinedStatus(Struct, frozen=True, kw_only=True):
    state: str = ""
    total_count: int = 0


class _Pipeline(Struct, frozen=True, kw_only=True):
    status: str = ""


_PASSING: Final = frozenset({"success", "neutral", "skipped", "warning"})
_FAILING: Final = frozenset(
    {"failure", "error", "failed", "canceled", "cancelled", "timed_out", "action_required", "stale"}
    | {"startup_failure"}
)


def read_checks(kind: GitHostKind, bodies: Sequence[bytes]) -> Checks:
    """From the replies to `checks_paths`, in their order. Raises ValueError."""
    match kind:
        case "github":
            runs, status = bodies
            found = msgspec.json.decode(runs, type=_CheckRuns).check_runs
            words = [one.conclusion or "pending" for one in found]
            return _summarize([*words, *_combined(status)])
        case "gitlab":
            pipelines = msgspec.json.decode(bodies[0], type=list[_Pipeline])
            return _summarize([one.status for one in pipelines[:1]])
        case "gitea":
            return _summarize(_combined(bodies[0]))


def _combined(body: bytes) -> list[str]:
    status = msgspec.json.decode(body, type=_CombinedStatus)
    return [status.state] if status.total_count > 0 else []


def _summarize(words: Sequence[str]) -> Checks:
    """An unknown word counts as a check in progress."""
    if not words:
        return "none"
    if any(word in _FAILING for word in words):
        return "failing"
    return "passing" if all(word in _PASSING for word in words) else "pending"


def new_pull_request_url(
    kind: GitHostKind, remote: GitRemote, branch: str, base: str
) -> str | None:
    """The page on which a person opens a pull request. None for the default branch itself, or if
    that is not known."""
    target = base.partition("/")[2]
    if not target or not branch or branch == target:
        return None
    page = f"https://{remote.host}/{remote.path}"
    if kind == "gitlab":
        return f"{page}/-/merge_requests/new?merge_request%5Bsource_branch%5D={_quote(branch)}"
    name, into = _quote(branch, _UNSAFE_IN_PATH), _quote(target, _UNSAFE_IN_PATH)
    expand = "?expand=1" if kind == "github" else ""
    return f"{page}/compare/{into}...{name}{expand}"


def _quote(text: str, unsafe: re.Pattern[bytes] = _UNSAFE) -> str:
    """Percent-encoded."""
    data = text.encode("utf-8", "replace")
    return unsafe.sub(lambda found: b"%%%02X" % found[0][0], data).decode()
