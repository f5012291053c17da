"""The APIs of GitHub, Gitea and GitLab on loopback, as strict as the real ones: they refuse a wrong
token, unknown paths, bodies without the fields that they need, and too many requests. They sign
what they deliver to a webhook as the real ones do."""

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

from aiohttp import web

Json = dict[str, Any]
TOKEN: Final = "host-token-A1b2C3d4E5"
REPOSITORY: Final = "acme/app"
MAX_COMMENT_CHARS: Final = 65_536


@dataclass
class Comment:
    id: int
    body: str
    edits: list[str] = field(default_factory=list[str])


@dataclass
class Pull:
    number: int
    branch: str
    base: str
    title: str
    body: str
    commit: str
    state: str = "open"
    is_fork: bool = False


class FakeHost:
    """One repository, `acme/app`. `writers` may push, `readers` may not. `branches` have a commit;
    one with the commit of `main` has no changes."""

    prefix = event_header = delivery_header = ""

    def __init__(self) -> None:
        self.url = ""
        self.tokens = {TOKEN}
        self.login = "chatd-bot"
        self.repositories = {REPOSITORY}
        self.writers = {"ada"}
        self.readers = {"eve"}
        self.branches = {"main": "a" * 40}
        self.comments: dict[tuple[str, int], list[Comment]] = {}
        self.pulls: list[Pull] = []
        self.requests: list[tuple[str, str]] = []
        self.limited: list[tuple[int, dict[str, str]]] = []
        self.broken: list[int] = []
        self.hold: asyncio.Event | None = None
        self.on_comment: Callable[[], None] = lambda: None
        self._next = 1000

    def next_id(self) -> int:
        self._next += 1
        return self._next

    def asked(self, method: str, part: str) -> int:
        return sum(1 for known, path in self.requests if known == method and part in path)

    def all_comments(self) -> list[Comment]:
        return [one for listed in self.comments.values() for one in listed]

    def push(self, branch: str, commit: str = "b" * 40) -> None:
        self.branches[branch] = commit
        for pull in self.pulls:
            if pull.branch == branch:
                pull.commit = commit

    async def handle(self, request: web.Request) -> web.Response:
        path = request.rel_url.raw_path
        self.requests.append((request.method, path))
        if self.hold is not None:
            await self.hold.wait()
        if self.broken:
            return self.error(self.broken.pop(0), "broken")
        if self.limited:
            status, headers = self.limited.pop(0)
            return self.error(status, "You have exceeded a secondary rate limit.", headers)
        if not request.headers.get("user-agent"):
            return self.error(403, "Request forbidden by administrative rules.")
        if (refusal := self.refuse(request, path)) is not None:
            return refusal
        body: Json = {}
        if request.method in ("POST", "PATCH", "PUT"):
            if request.content_type != "application/json":
                return self.error(415, "Unsupported media type")
            body = await request.json()
        if not path.startswith(f"{self.prefix}/"):
            return self.error(404, "Not Found")
        return self.route(request, path.removeprefix(self.prefix), body)

    def accepted(self) -> set[str]:
        return {f"Bearer {token}" for token in self.tokens}

    def refuse(self, request: web.Request, path: str) -> web.Response | None:
        del path
        is_known = request.headers.get("authorization") in self.accepted()
        return None if is_known else self.error(401, "Bad credentials")

    def route(self, request: web.Request, path: str, body: Json) -> web.Response:
        raise NotImplementedError

    def sign(self, body: bytes, secret: str) -> dict[str, str]:
        raise NotImplementedError

    def delivery(self, event: str, body: Json, secret: str) -> tuple[dict[str, str], bytes]:
        content = json.dumps(body).encode()
        headers = {
            self.event_header: event,
            self.delivery_header: f"delivery-{self.next_id()}",
            "content-type": "application/json",
            **self.sign(content, secret),
        }
        return headers, content

    def error(
        self, status: int, message: str, headers: dict[str, str] | None = None
    ) -> web.Response:
        return web.json_response({"message": message}, status=status, headers=headers)

    def find_comment(self, comment_id: int) -> Comment | None:
        return next((one for one in self.all_comments() if one.id == comment_id), None)

    def add_comment(self, kind: str, number: int, body: Json) -> Comment | None:
        text = body.get("body")
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_COMMENT_CHARS:
            return None
        made = Comment(self.next_id(), text)
        self.comments.setdefault((kind, number), []).append(made)
        self.on_comment()
        return made

    def edit(self, comment: Comment, body: Json) -> bool:
        text = body.get("body")
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_COMMENT_CHARS:
            return False
        comment.edits.append(comment.body)
        comment.body = text
        return True

    def open(self, branch: object, base: object, title: object, body: str) -> str | None:
        """What is wrong."""
        if branch not in self.branches or base not in self.branches or not title:
            return "Validation Failed: head"
        own = [pull for pull in self.pulls if not pull.is_fork]
        if any(pull.branch == branch and pull.state == "open" for pull in own):
            return "A pull request already exists"
        commit = self.branches[str(branch)]
        if commit == self.branches[str(base)]:
            return "No commits between base and head"
        number = 50 + len(self.pulls)
        pull = Pull(number, str(branch), str(base), str(title), body, commit)
        self.pulls.append(pull)
        return None


class FakeGitHub(FakeHost):
    prefix = "/api/v3"
    event_header = "x-github-event"
    delivery_header = "x-github-delivery"

    def route(self, request: web.Request, path: str, body: Json) -> web.Response:
        if path == "/user":
            return web.json_response({"login": self.login, "id": 1})
        found = re.fullmatch(r"/repos/([\w.-]+/[\w.-]+)(/.*)?", path)
        if found is None or found[1] not in self.repositories:
            return self.error(404, "Not Found")
        return self._repository(request, found[2] or "", body)

    def _repository(self, request: web.Request, rest: str, body: Json) -> web.Response:
        if (request.method, rest) == ("GET", ""):
            return web.json_response({"full_name": REPOSITORY, "default_branch": "main"})
        if rest == "/pulls":
            return self._open_pull(body) if request.method == "POST" else self._list_pulls(request)
        answers: tuple[tuple[str, Callable[[str], web.Response]], ...] = (
            (r"/collaborators/([^/]+)/permission", self._permission),
            (r"/issues/(\d+)/comments", lambda n: self._comments(request, int(n), body)),
            (r"/issues/comments/(\d+)", lambda n: self._edit_comment(request, int(n), body)),
            (r"/branches/(.+)", self._branch),
            (r"/pulls/(\d+)", self._pull),
            (r"/commits/[0-9a-f]{40}/(check-runs|status)", self._checks),
        )
        for pattern, answer in answers:
            if found := re.fullmatch(pattern, rest):
                return answer(unquote(found[1]))
        return self.error(404, "Not Found")

    def _edit_comment(self, request: web.Request, comment_id: int, body: Json) -> web.Response:
        comment = self.find_comment(comment_id)
        if comment is None or request.method != "PATCH":
            return self.error(404, "Not Found")
        if not self.edit(comment, body):
            return self.error(422, "Validation Failed")
        return web.json_response({"id": comment.id, "body": comment.body})

    def _branch(self, name: str) -> web.Response:
        if name not in self.branches:
            return self.error(404, "Branch not found")
        return web.json_response({"name": name, "commit": {"sha": self.branches[name]}})

    def _pull(self, number: str) -> web.Response:
        pull = next((one for one in self.pulls if one.number == int(number)), None)
        return self.error(404, "Not Found") if pull is None else web.json_response(self.show(pull))

    def _checks(self, kind: str) -> web.Response:
        if kind == "check-runs":
            return web.json_response({"total_count": 0, "check_runs": []})
        return web.json_response({"state": "pending", "total_count": 0})

    def _open_pull(self, body: Json) -> web.Response:
        problem = self.open(
            body.get("head"), body.get("base"), body.get("title"), str(body.get("body"))
        )
        if problem is not None:
            return self.error(self.exists_status if "exists" in problem else 422, problem)
        return web.json_response(self.show(self.pulls[-1]), status=201)

    exists_status = 422

    def _permission(self, login: str) -> web.Response:
        known = {**dict.fromkeys(self.readers, "read"), **dict.fromkeys(self.writers, "write")}
        if login not in known:
            return self.error(404, f"{login} is not a user")
        return web.json_response({"permission": known[login], "user": {"login": login}})

    def _comments(self, request: web.Request, number: int, body: Json) -> web.Response:
        if request.method == "POST":
            made = self.add_comment("thread", number, body)
            if made is None:
                return self.error(422, "Validation Failed")
            return web.json_response({"id": made.id, "body": made.body}, status=201)
        listed = self.comments.get(("thread", number), [])
        return web.json_response(
            [{"id": one.id, "body": one.body} for one in self.page(request, listed)]
        )

    def page(self, request: web.Request, listed: list[Comment]) -> list[Comment]:
        size = int(request.query.get("per_page", "30"))
        assert 1 <= size <= 100
        start = (int(request.query.get("page", "1")) - 1) * size
        return listed[start : start + size]

    def _list_pulls(self, request: web.Request) -> web.Response:
        head, state = request.query.get("head"), request.query.get("state", "open")
        assert head is None or re.fullmatch(r"[\w.-]+:.+", head)
        found = [
            one
            for one in reversed(self.pulls)
            if (head is None or head == f"acme:{one.branch}") and (state == "all")
        ]
        return web.json_response([self.show(one) for one in found])

    def show(self, pull: Pull) -> Json:
        repository = "stranger/app" if pull.is_fork else REPOSITORY
        return {
            "number": pull.number,
            "title": pull.title,
            "state": pull.state,
            "html_url": f"{self.url}/{REPOSITORY}/pull/{pull.number}",
            "head": {"ref": pull.branch, "sha": pull.commit, "repo": {"full_name": repository}},
            "draft": False,
            "merged_at": None,
        }

    # Events

    def sign(self, body: bytes, secret: str) -> dict[str, str]:
        digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return {"x-hub-signature-256": f"sha256={digest}"}

    def issue(self, number: int = 12, **fields: object) -> Json:
        return {
            "id": 7000 + number,
            "number": number,
            "title": "The build fails",
            "body": "It fails since Monday. @ops look at it",
            "html_url": f"{self.url}/{REPOSITORY}/issues/{number}",
            "user": {"login": "eve", "id": 3, "type": "User"},
            **fields,
        }

    def event(self, action: str, sender: str = "ada", **fields: object) -> Json:
        kind = "Bot" if sender.endswith("[bot]") else "User"
        return {
            "action": action,
            "repository": {"id": 1, "full_name": REPOSITORY, "default_branch": "main"},
            "sender": {"login": sender, "id": 2, "type": kind},
            **fields,
        }

    def comment(
        self, text: str, sender: str = "ada", *, number: int = 12, at: str | None = None
    ) -> Json:
        comment_id = self.next_id()
        comment = {
            "id": comment_id,
            "body": text,
            "html_url": f"{self.url}/{REPOSITORY}/issues/{number}#issuecomment-{comment_id}",
            "user": {"login": sender},
        }
        if at is not None:
            comment["created_at"] = at
        issue = self.issue(number)
        if any(pull.number == number for pull in self.pulls):
            issue["pull_request"] = {"url": f"{self.url}/api/pulls/{number}"}
        return self.event("created", sender, comment=comment, issue=issue)

    def failed_checks(self, branch: str, commit: str) -> Json:
        suite = {
            "id": self.next_id(),
            "head_branch": branch,
            "head_sha": commit,
            "conclusion": "failure",
            "status": "completed",
        }
        return self.event("completed", "github-actions[bot]", check_suite=suite)


class FakeGitea(FakeGitHub):
    prefix = "/api/v1"
    event_header = "x-gitea-event"
    delivery_header = "x-gitea-delivery"
    exists_status = 409

    def accepted(self) -> set[str]:
        return {f"token {token}" for token in self.tokens}

    def page(self, request: web.Request, listed: list[Comment]) -> list[Comment]:
        return listed

    def sign(self, body: bytes, secret: str) -> dict[str, str]:
        return {"x-gitea-signature": hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}

    def show(self, pull: Pull) -> Json:
        return {**super().show(pull), "merged": False}


@asynccontextmanager
async def running(host: FakeHost) -> AsyncGenerator[None]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", host.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield
    finally:
        if host.hold is not None:
            host.hold.set()
        await runner.cleanup()


class FakeGitLab(FakeHost):
    """Members have ids; an issue and a merge request may have the same number."""

    prefix = "/api/v4"
    event_header = "x-gitlab-event"
    delivery_header = "idempotency-key"
    project = f"/projects/{quote(REPOSITORY, safe='')}"

    def __init__(self) -> None:
        super().__init__()
        self.members = {2: ("ada", 30), 3: ("eve", 20)}

    def route(self, request: web.Request, path: str, body: Json) -> web.Response:
        if path == "/user":
            return web.json_response({"username": self.login, "id": 1})
        rest = path.removeprefix(self.project)
        if rest == path or REPOSITORY not in self.repositories:
            return self.error(404, "404 Project Not Found")
        if rest == "":
            return web.json_response({"id": 9, "default_branch": "main"})
        answers: tuple[tuple[str, Callable[[re.Match[str]], web.Response]], ...] = (
            (r"/members/all/(\d+)", lambda found: self._member(int(found[1]))),
            (r"/(issues|merge_requests)/(\d+)/notes", lambda f: self._notes(request, f, body)),
            (r"/(?:issues|merge_requests)/\d+/notes/(\d+)", lambda f: self._edit(request, f, body)),
            (r"/repository/branches/([^/]+)", lambda found: self._branch(unquote(found[1]))),
            (r"/merge_requests/(\d+)", lambda found: self._merge_request(int(found[1]))),
            (r"/merge_requests", lambda _found: self._merge_requests(request, body)),
        )
        for pattern, answer in answers:
            if found := re.fullmatch(pattern, rest):
                return answer(found)
        return self.error(404, "404 Not Found")

    def _member(self, user_id: int) -> web.Response:
        if user_id not in self.members:
            return self.error(404, "404 Not found")
        name, level = self.members[user_id]
        return web.json_response(
            {"id": user_id, "username": name, "access_level": level, "state": "active"}
        )

    def _notes(self, request: web.Request, found: re.Match[str], body: Json) -> web.Response:
        kind, number = found[1], int(found[2])
        if request.method == "POST":
            made = self.add_comment(kind, number, body)
            if made is None:
                return self.error(400, "400 (Bad request) body is missing")
            return web.json_response({"id": made.id, "body": made.body}, status=201)
        size, page = int(request.query["per_page"]), int(request.query["page"])
        assert (request.query["sort"], request.query["order_by"]) == ("desc", "created_at")
        assert 1 <= size <= 100
        listed = self.comments.get((kind, number), [])[::-1][(page - 1) * size : page * size]
        return web.json_response([{"id": one.id, "body": one.body} for one in listed])

    def _edit(self, request: web.Request, found: re.Match[str], body: Json) -> web.Response:
        comment = self.find_comment(int(found[1]))
        if comment is None or request.method != "PUT":
            return self.error(404, "404 Not found")
        if not self.edit(comment, body):
            return self.error(400, "400 (Bad request) body is missing")
        return web.json_response({"id": comment.id, "body": comment.body})

    def _branch(self, name: str) -> web.Response:
        if name not in self.branches:
            return self.error(404, "404 Branch Not Found")
        return web.json_response({"name": name})

    def _merge_request(self, number: int) -> web.Response:
        pull = next((one for one in self.pulls if one.number == number), None)
        if pull is None:
            return self.error(404, "404 Not found")
        return web.json_response(self.show(pull))

    def _merge_requests(self, request: web.Request, body: Json) -> web.Response:
        if request.method == "POST":
            problem = self.open(
                body.get("source_branch"),
                body.get("target_branch"),
                body.get("title"),
                str(body.get("description")),
            )
            if problem is not None:
                return self.error(409 if "exists" in problem else 400, problem)
            return web.json_response(self.show(self.pulls[-1]), status=201)
        branch = request.query["source_branch"]
        found = [self.show(one) for one in reversed(self.pulls) if one.branch == branch]
        return web.json_response(found)

    def show(self, pull: Pull) -> Json:
        return {
            "iid": pull.number,
            "title": pull.title,
            "state": "opened" if pull.state == "open" else pull.state,
            "web_url": f"{self.url}/{REPOSITORY}/-/merge_requests/{pull.number}",
            "sha": pull.commit,
            "draft": False,
            "merged_at": None,
            "source_branch": pull.branch,
            "source_project_id": 8 if pull.is_fork else 9,
            "target_project_id": 9,
        }

    # Events

    def sign(self, body: bytes, secret: str) -> dict[str, str]:
        return {"x-gitlab-token": secret}

    def event(self, sender: str = "ada", **fields: object) -> Json:
        ids = {name: user_id for user_id, (name, _) in self.members.items()}
        user = {"id": ids.get(sender, 99), "username": sender}
        return {"user": user, "project": {"path_with_namespace": REPOSITORY}, **fields}

    def comment(
        self, text: str, sender: str = "ada", *, number: int = 12, on_pull: bool = False
    ) -> Json:
        kind, key = ("MergeRequest", "merge_request") if on_pull else ("Issue", "issue")
        note = {
            "id": self.next_id(),
            "note": text,
            "noteable_type": kind,
            "action": "create",
            "url": f"{self.url}/{REPOSITORY}/-/{key}s/{number}#note",
        }
        thread = {"iid": number, "title": "The build fails", "description": "Since Monday."}
        return self.event(sender, object_kind="note", object_attributes=note, **{key: thread})

    def failed_checks(self, branch: str, commit: str) -> Json:
        pipeline = {"id": self.next_id(), "ref": branch, "sha": commit, "status": "failed"}
        return self.event(object_kind="pipeline", object_attributes=pipeline)
