"""GitLab: its API and the events of its webhooks. An issue and a merge request may have the same
number."""

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from chatd.domain.deployment.repositories import (
    MAX_EVENT_TEXT_CHARS,
    MAX_LOGIN_CHARS,
    MAX_TITLE_CHARS,
    Access,
    EventKind,
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

DEVELOPER: Final = 30
"""From this access level on, a member may push."""
_BOT: Final = re.compile(r"(project|group)_\d+_bot(_[0-9a-f]+)?", re.ASCII)


class _User(Struct, frozen=True, kw_only=True):
    id: int = 0
    username: str = ""


class _Member(Struct, frozen=True, kw_only=True):
    username: str = ""
    access_level: int = 0
    state: str = "active"


class _Project(Struct, frozen=True, kw_only=True):
    default_branch: str | None = None


class _MergeRequest(Struct, frozen=True, kw_only=True):
    source_branch: str = ""
    source_project_id: int | None = None
    target_project_id: int | None = None


class _Note(Struct, frozen=True, kw_only=True):
    id: int
    body: str = ""


class GitLabApi:
    """`host` is that of its pages."""

    def __init__(self, requests: HostRequests, host: str) -> None:
        self._requests = requests
        self._host = host

    async def check(self) -> str:
        return (await self._requests.get("/user", _User)).username

    async def access(self, repository: str, login: str, user_id: int) -> Access:
        """The name in the event must be that of the member with this id."""
        path = f"{_project(repository)}/members/all/{user_id}"
        try:
            found = await self._requests.get(path, _Member)
        except HostCallFailed as error:
            if error.reason == "missing":
                return "none"
            raise
        if found.username.lower() != login.lower() or found.state != "active":
            return "none"
        return "write" if found.access_level >= DEVELOPER else "read"

    async def pull_head(self, repository: str, number: int) -> PullHead:
        path = f"{_project(repository)}/merge_requests/{number}"
        found = await self._requests.get(path, _MergeRequest)
        is_here = found.source_project_id == found.target_project_id
        return PullHead(branch=found.source_branch if is_here else "")

    async def find_comment(self, thread: Thread, marker: str) -> str | None:
        for page in range(1, MAX_COMMENT_PAGES + 1):
            query = f"sort=desc&order_by=created_at&per_page={PAGE_SIZE}&page={page}"
            listed = await self._requests.get(f"{_notes(thread)}?{query}", list[_Note])
            for note in listed:
                if marker in note.body:
                    return str(note.id)
            if len(listed) < PAGE_SIZE:
                return None
        return None

    async def create_comment(self, thread: Thread, text: str) -> str:
        made = await self._requests.write("POST", _notes(thread), {"body": text}, _Note)
        return str(made.id)

    async def edit_comment(self, thread: Thread, comment_id: str, text: str) -> None:
        await self._requests.send("PUT", f"{_notes(thread)}/{comment_id}", {"body": text})

    async def has_branch(self, repository: str, branch: str) -> bool:
        path = f"{_project(repository)}/repository/branches/{quote(branch, safe='')}"
        try:
            await self._requests.send("GET", path)
        except HostCallFailed as error:
            if error.reason == "missing":
                return False
            raise
        return True

    async def default_branch(self, repository: str) -> str:
        found = await self._requests.get(_project(repository), _Project)
        return found.default_branch or ""

    async def find_pull(self, repository: str, branch: str) -> FoundPullRequest | None:
        remote = GitRemote(host=self._host, path=repository)
        body = await self._requests.send("GET", search_path("gitlab", remote, branch))
        try:
            return read_pull_request("gitlab", remote, branch, body)
        except (ValueError, msgspec.DecodeError) as error:
            raise HostCallFailed("unavailable", f"The host's reply: {error}.") from None

    async def open_pull(self, repository: str, new: NewPull) -> None:
        fields = {
            "title": new.title,
            "source_branch": new.branch,
            "target_branch": new.base,
            "description": new.body,
        }
        await self._requests.send("POST", f"{_project(repository)}/merge_requests", fields)


def _project(repository: str) -> str:
    return f"/projects/{quote(repository, safe='')}"


def _notes(thread: Thread) -> str:
    kind = "merge_requests" if thread.is_pull else "issues"
    return f"{_project(thread.repository)}/{kind}/{thread.number}/notes"


# Events


class _EventProject(Struct, frozen=True, kw_only=True):
    path_with_namespace: str = ""


class _Label(Struct, frozen=True, kw_only=True):
    title: str = ""


class _LabelChange(Struct, frozen=True, kw_only=True):
    previous: tuple[_Label, ...] = ()
    current: tuple[_Label, ...] = ()


class _Changes(Struct, frozen=True, kw_only=True):
    labels: _LabelChange | None = None


class _Thread(Struct, frozen=True, kw_only=True):
    iid: int = 0
    title: str = ""
    description: str | None = None
    url: str = ""


class _Attributes(Struct, frozen=True, kw_only=True):
    """Of a note, an issue, a merge request or a pipeline."""

    id: int = 0
    iid: int = 0
    title: str = ""
    description: str | None = None
    note: str | None = None
    noteable_type: str = ""
    system: bool = False
    action: str = ""
    url: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    ref: str = ""
    sha: str = ""
    status: str = ""


class _Event(Struct, frozen=True, kw_only=True):
    user: _User = _User()
    project: _EventProject = _EventProject()
    object_attributes: _Attributes = _Attributes()
    issue: _Thread | None = None
    merge_request: _Thread | None = None
    changes: _Changes = _Changes()


_EVENT: Final = msgspec.json.Decoder(_Event)


def read_event(name: str, body: bytes) -> HostEvent | None:
    """None: chatd does nothing at such an event. Raises msgspec.DecodeError."""
    found = _EVENT.decode(body)
    match name:
        case "Note Hook":
            return _comment(found)
        case "Issue Hook" | "Merge Request Hook":
            return _changed(found, is_pull=name == "Merge Request Hook")
        case "Pipeline Hook":
            return _pipeline(found)
        case _:
            return None


def _comment(found: _Event) -> HostEvent | None:
    note = found.object_attributes
    thread = found.merge_request if note.noteable_type == "MergeRequest" else found.issue
    is_known = note.noteable_type in ("Issue", "MergeRequest")
    if thread is None or not is_known or note.system or note.action not in ("", "create"):
        return None
    return _event(
        found,
        "comment",
        f"comment:{note.id}",
        thread,
        is_pull=note.noteable_type == "MergeRequest",
        at=note.created_at,
        text=note.note,
        url=note.url,
    )


def _changed(found: _Event, *, is_pull: bool) -> HostEvent | None:
    one, labels = found.object_attributes, found.changes.labels
    thread = _Thread(iid=one.iid, title=one.title, description=one.description, url=one.url or "")
    kind = "pull" if is_pull else "issue"
    if labels is not None:
        before = {label.title for label in labels.previous}
        new = tuple(each.title for each in labels.current if each.title not in before)
        if new:
            key = f"labeled:{kind}:{one.id}:{','.join(sorted(new))}:{one.updated_at}"
            event = _event(found, "labeled", key, thread, is_pull=is_pull, at=one.updated_at)
            return msgspec.structs.replace(event, key=clip(key, 300), labels=new)
    if one.action == "open":
        key = f"opened:{kind}:{one.id}"
        return _event(found, "opened", key, thread, is_pull=is_pull, at=one.created_at)
    return None


def _pipeline(found: _Event) -> HostEvent | None:
    one = found.object_attributes
    if one.status != "failed" or not one.ref:
        return None
    return HostEvent(
        kind="checks_failed",
        key=f"checks:{one.sha}",
        repository=found.project.path_with_namespace,
        branch=one.ref,
        commit=one.sha,
        url=one.url or "",
        at=_time(one.created_at),
    )


def _event(
    found: _Event,
    kind: EventKind,
    key: str,
    thread: _Thread,
    *,
    is_pull: bool,
    at: str | None,
    text: str | None = None,
    url: str | None = None,
) -> HostEvent:
    return HostEvent(
        kind=kind,
        key=key,
        repository=found.project.path_with_namespace,
        number=thread.iid,
        is_pull=is_pull,
        at=_time(at),
        sender=clip(found.user.username, MAX_LOGIN_CHARS),
        sender_id=found.user.id,
        is_bot=_BOT.fullmatch(found.user.username) is not None,
        title=clip(model_text(thread.title), MAX_TITLE_CHARS),
        description=clip(model_text(thread.description or ""), MAX_EVENT_TEXT_CHARS),
        text=clip(model_text(text or ""), MAX_EVENT_TEXT_CHARS),
        url=url or thread.url,
    )


def _time(text: str | None) -> datetime | None:
    """`2026-11-17T18:08:09Z`, or in older events `2026-11-17 18:08:09 UTC`."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text.removesuffix(" UTC").strip())
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
