"""GitHub: its API and the events of its webhooks. Gitea speaks nearly the same (`gitea`)."""

from datetime import datetime
from typing import Final, Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct

from chatd.domain.deployment.repositories import (
    MAX_EVENT_TEXT_CHARS,
    MAX_LOGIN_CHARS,
    MAX_TITLE_CHARS,
    Access,
    HostEvent,
)
from chatd.domain.text import clip, model_text
from chatd.domain.workspace.pull_requests import (
    FoundPullRequest,
    GitRemote,
    read_pull_request,
    search_path,
)
from chatd.git_hosts.host_api import (
    MAX_COMMENT_PAGES,
    PAGE_SIZE,
    HostCallFailed,
    HostRequests,
    NewPull,
    PullHead,
    Thread,
)

_WRITERS: Final = frozenset({"owner", "admin", "maintain", "write"})
_FAILED: Final = frozenset({"failure", "timed_out", "startup_failure", "error"})


class _User(Struct, frozen=True, kw_only=True):
    login: str = ""
    id: int = 0
    type: str = "User"


class _Permission(Struct, frozen=True, kw_only=True):
    permission: str = "none"
    role_name: str = ""


class _Repository(Struct, frozen=True, kw_only=True):
    full_name: str = ""
    default_branch: str = ""


class _Head(Struct, frozen=True, kw_only=True):
    ref: str = ""
    repo: _Repository | None = None


class _Pull(Struct, frozen=True, kw_only=True):
    head: _Head = _Head()


class _Comment(Struct, frozen=True, kw_only=True):
    id: int
    body: str | None = None


class GitHubApi:
    """`kind` is that of the host: Gitea has the same paths, except where this says so. `host` is
    that of its pages."""

    def __init__(self, kind: Literal["github", "gitea"], requests: HostRequests, host: str) -> None:
        self._kind: Literal["github", "gitea"] = kind
        self._requests = requests
        self._host = host

    async def check(self) -> str:
        return (await self._requests.get("/user", _User)).login

    async def access(self, repository: str, login: str, user_id: int) -> Access:
        del user_id
        path = f"/repos/{repository}/collaborators/{quote(login, safe='')}/permission"
        try:
            found = await self._requests.get(path, _Permission)
        except HostCallFailed as error:
            if error.reason == "missing":
                return "none"
            raise
        if {found.permission, found.role_name} & _WRITERS:
            return "write"
        return "read" if found.permission == "read" else "none"

    async def pull_head(self, repository: str, number: int) -> PullHead:
        head = (await self._requests.get(f"/repos/{repository}/pulls/{number}", _Pull)).head
        is_here = head.repo is not None and head.repo.full_name.lower() == repository.lower()
        return PullHead(branch=head.ref if is_here else "")

    async def find_comment(self, thread: Thread, marker: str) -> str | None:
        path = f"/repos/{thread.repository}/issues/{thread.number}/comments"
        if self._kind == "gitea":
            # It lists all of them at once.
            return _with_marker(await self._requests.get(path, list[_Comment]), marker)
        for page in range(1, MAX_COMMENT_PAGES + 1):
            query = f"per_page={PAGE_SIZE}&page={page}"
            listed = await self._requests.get(f"{path}?{query}", list[_Comment])
            if (found := _with_marker(listed, marker)) is not None:
                return found
            if len(listed) < PAGE_SIZE:
                return None
        return None

    async def create_comment(self, thread: Thread, text: str) -> str:
        path = f"/repos/{thread.repository}/issues/{thread.number}/comments"
        made = await self._requests.write("POST", path, {"body": text}, _Comment)
        return str(made.id)

    async def edit_comment(self, thread: Thread, comment_id: str, text: str) -> None:
        path = f"/repos/{thread.repository}/issues/comments/{comment_id}"
        await self._requests.send("PATCH", path, {"body": text})

    async def has_branch(self, repository: str, branch: str) -> bool:
        try:
            await self._requests.send("GET", f"/repos/{repository}/branches/{quote(branch)}")
        except HostCallFailed as error:
            if error.reason == "missing":
                return False
            raise
        return True

    async def default_branch(self, repository: str) -> str:
        return (await self._requests.get(f"/repos/{repository}", _Repository)).default_branch

    async def find_pull(self, repository: str, branch: str) -> FoundPullRequest | None:
        remote = GitRemote(host=self._host, path=repository)
        body = await self._requests.send("GET", search_path(self._kind, remote, branch))
        try:
            return read_pull_request(self._kind, remote, branch, body)
        except (ValueError, msgspec.DecodeError) as error:
            raise HostCallFailed("unavailable", f"The host's reply: {error}.") from None

    async def open_pull(self, repository: str, new: NewPull) -> None:
        fields = {"title": new.title, "head": new.branch, "base": new.base, "body": new.body}
        await self._requests.send("POST", f"/repos/{repository}/pulls", fields)


def _with_marker(listed: list[_Comment], marker: str) -> str | None:
    return next((str(one.id) for one in listed if marker in (one.body or "")), None)


# Events


class _Label(Struct, frozen=True, kw_only=True):
    id: int = 0
    name: str = ""


class _Issue(Struct, frozen=True, kw_only=True):
    id: int = 0
    number: int = 0
    title: str = ""
    body: str | None = None
    html_url: str = ""
    user: _User | None = None
    labels: tuple[_Label, ...] | None = None
    pull_request: dict[str, object] | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class _EventComment(Struct, frozen=True, kw_only=True):
    id: int
    body: str | None = None
    html_url: str = ""
    created_at: datetime | None = None


class _Checks(Struct, frozen=True, kw_only=True):
    """A check suite or a run of a workflow."""

    head_branch: str | None = None
    head_sha: str = ""
    conclusion: str | None = None
    html_url: str = ""
    name: str | None = None
    updated_at: datetime | None = None


class _Branch(Struct, frozen=True, kw_only=True):
    name: str = ""


class EventBody(Struct, frozen=True, kw_only=True):
    """The fields of all events that are read."""

    action: str = ""
    repository: _Repository = _Repository()
    sender: _User = _User()
    issue: _Issue | None = None
    pull_request: _Issue | None = None
    is_pull: bool = False
    comment: _EventComment | None = None
    label: _Label | None = None
    check_suite: _Checks | None = None
    workflow_run: _Checks | None = None
    # Of a commit status
    sha: str = ""
    state: str = ""
    context: str = ""
    target_url: str | None = None
    branches: tuple[_Branch, ...] = ()


EVENT_BODY: Final = msgspec.json.Decoder(EventBody)


def read_event(name: str, body: bytes) -> HostEvent | None:
    """None: chatd does nothing at such an event. Raises msgspec.DecodeError."""
    found = EVENT_BODY.decode(body)
    match name, found.action:
        case ("issue_comment" | "pull_request_review_comment", "created"):
            return comment_event(found)
        case ("issues" | "pull_request", "opened"):
            return opened_event(found)
        case ("issues" | "pull_request", "labeled"):
            return _labeled_event(found)
        case ("check_suite" | "workflow_run", "completed"):
            return checks_event(found)
        case ("status", _):
            return status_event(found)
        case _:
            return None


def comment_event(found: EventBody) -> HostEvent | None:
    thread, comment = found.issue or found.pull_request, found.comment
    if thread is None or comment is None:
        return None
    event = _thread_event(found, thread, f"comment:{comment.id}")
    return msgspec.structs.replace(
        event,
        kind="comment",
        text=_text(comment.body),
        at=comment.created_at,
        url=comment.html_url or event.url,
    )


def opened_event(found: EventBody) -> HostEvent | None:
    thread = found.issue or found.pull_request
    if thread is None:
        return None
    event = _thread_event(found, thread, f"opened:{thread.id}")
    return msgspec.structs.replace(event, kind="opened", at=thread.created_at)


def _labeled_event(found: EventBody) -> HostEvent | None:
    thread, label = found.issue or found.pull_request, found.label
    if thread is None or label is None:
        return None
    key = f"labeled:{thread.id}:{label.id}:{thread.updated_at}"
    event = _thread_event(found, thread, key)
    return msgspec.structs.replace(
        event, kind="labeled", labels=(label.name,), at=thread.updated_at
    )


def relabeled_event(found: EventBody) -> HostEvent | None:
    """Of a host that says only which labels there are now: each of them counts once."""
    thread = found.issue or found.pull_request
    if thread is None:
        return None
    labels = tuple(label.name for label in thread.labels or ())
    event = _thread_event(found, thread, f"labeled:{thread.id}")
    return msgspec.structs.replace(event, kind="labeled", labels=labels, at=thread.updated_at)


def checks_event(found: EventBody) -> HostEvent | None:
    checks = found.check_suite or found.workflow_run
    if checks is None or checks.conclusion not in _FAILED or not checks.head_branch:
        return None
    return HostEvent(
        kind="checks_failed",
        key=f"checks:{checks.head_sha}",
        repository=found.repository.full_name,
        branch=checks.head_branch,
        commit=checks.head_sha,
        title=clip(model_text(checks.name or ""), MAX_TITLE_CHARS),
        url=checks.html_url,
        at=checks.updated_at,
    )


def status_event(found: EventBody) -> HostEvent | None:
    if found.state not in _FAILED or not found.branches:
        return None
    return HostEvent(
        kind="checks_failed",
        key=f"checks:{found.sha}",
        repository=found.repository.full_name,
        branch=found.branches[0].name,
        commit=found.sha,
        title=clip(model_text(found.context), MAX_TITLE_CHARS),
        url=found.target_url or "",
    )


def _thread_event(found: EventBody, thread: _Issue, key: str) -> HostEvent:
    is_pull = found.is_pull or found.issue is None or found.issue.pull_request is not None
    return HostEvent(
        kind="comment",
        key=key,
        repository=found.repository.full_name,
        number=thread.number,
        is_pull=is_pull,
        sender=clip(found.sender.login, MAX_LOGIN_CHARS),
        sender_id=found.sender.id,
        is_bot=found.sender.type == "Bot",
        author=clip("" if thread.user is None else thread.user.login, MAX_LOGIN_CHARS),
        title=clip(model_text(thread.title), MAX_TITLE_CHARS),
        description=_text(thread.body),
        url=thread.html_url,
    )


def _text(text: str | None) -> str:
    return clip(model_text(text or ""), MAX_EVENT_TEXT_CHARS)
