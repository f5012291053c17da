"""Who may do what over HTTP: one row for every operation of the API.

A row names the rule that holds, the scope that a token needs, and a valid request. The tests send
it as every caller. A route without a row fails a test.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import TokenScope
from chatd.domain.chat.states import State

Caller = Literal["owner", "reader", "stranger", "viewer", "admin", "service"]

CALLERS: Final[tuple[Caller, ...]] = (
    *("owner", "reader", "stranger", "viewer", "admin", "service"),
)
_OUTCOMES: Final[Mapping[str, str]] = {
    # owner reader stranger viewer admin service, on an object of the owner
    "public": "ok ok ok ok ok ok",
    "any role": "ok ok ok ok ok ok",
    "own": "ok 404 404 404 404 404",
    "own, of creators": "ok 404 404 403 404 404",
    "read": "ok ok 404 ok ok 404",
    "read files": "ok ok 404 ok ok 404",
    "read unshared": "ok 404 404 ok ok 404",
    "write": "ok 403 404 403 403 404",
    "read, not by a share": "ok 403 404 ok ok 404",
    "control": "ok 403 404 403 ok 404",
    "delete files": "ok 404 404 403 404 404",
    "write unshared": "ok 404 404 403 403 404",
    "control unshared": "ok 404 404 403 ok 404",
    "create": "ok ok ok 403 ok ok",
    "administration read": "403 403 403 ok ok 403",
    "administration": "403 403 403 403 ok 403",
    "costs": "ok 404 404 ok ok 404",
    "read project": "ok ok 404 404 404 404",
    "write project": "ok 403 404 403 404 404",
}


class Row(Struct, frozen=True, kw_only=True):
    """`state` is that of the chat. `says` are the error codes of an allowed request that
    fails later, by the state of its object: authorization comes first."""

    endpoint: str
    rule: str
    scope: TokenScope | None
    body: object = None
    query: str = ""
    state: State = State.W
    says: str = ""
    content_type: str = "application/json"
    is_stream: bool = False
    is_audited: bool = False
    """Reads of the content by the role alone are recorded."""
    records: str = ""
    """What the audit log says of a write that succeeded."""
    works_deleted: bool = False
    """Those who may do it may do it to a deleted object too."""

    @property
    def method(self) -> str:
        return self.endpoint.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.endpoint.partition(" ")[2]

    @property
    def outcomes(self) -> Mapping[Caller, str]:
        return dict(zip(CALLERS, _OUTCOMES[self.rule].split(), strict=True))

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path + self.query)

    @property
    def allowed(self) -> Caller:
        """Somebody who may, on an object of the owner."""
        return "owner" if self.outcomes["owner"] == "ok" else "admin"

    @property
    def other_owners(self) -> tuple[Caller, ...]:
        """Callers that may do it to an object of their own, though not to one of the owner."""
        if self.rule in ("any role", "create", "public") or self.outcomes["owner"] != "ok":
            return ()
        if "session_id" in self.parameters:
            return ("stranger",)  # a service account has no sessions
        return ("service", "stranger") if self.outcomes["stranger"] == "404" else ()


def row(
    endpoint: str, rule: str, scope: TokenScope | None, body: object = None, **more: object
) -> Row:
    plain = Row(endpoint=endpoint, rule=rule, scope=scope, body=body)
    return msgspec.structs.replace(plain, **more)


MESSAGE: Final = {"content": [{"type": "text", "text": "hello"}]}
POLICY: Final = {"rules": [{"tool": "execute", "action": "ask"}]}
TRIAL: Final = {"tool": "execute", "args": {"command": "ls"}}
RESULTS: Final = {
    "results": [{"tool_call_id": call, "output": {"ok": True}} for call in ("c1", "c2")]
}
WEBHOOK: Final = {"url": "https://example.com/hook", "events": ["turn.finished"]}
SUBSCRIPTION: Final = {
    "endpoint": "https://push.example.com/send/{n}",
    "keys": {
        "p256dh": (
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
        ),
        "auth": "BTBZMqHH6r4Tts7J_aSIgg",
    },
}
TEMPLATE_CONFIG: Final = {"name": "template-{n}", "spec": {"env": {"A": "b"}}}
SCHEDULE: Final = {"name": "nightly", "cron": "@daily", "prompt": "Say hello."}
GIT_CREDENTIAL: Final = {"host": "git-{n}.example.com", "kind": "gitea", "token": "abcdefgh1"}
HOOK: Final = {
    "name": "hook-{n}",
    "url": "http://127.0.0.1:9/hook",
    "events": ["before_tool"],
    "timeout_ms": 100,
}
REPOSITORY_CONNECTION: Final = {
    "name": "host-{n}",
    "vendor": "gitea",
    "url": "http://127.0.0.1:9",
    "repositories": ["acme/*"],
    "template_id": "{repository_template}",
    "token": "abcdefgh1",
}
SLACK_CONNECTION: Final = {
    "name": "slack-{n}",
    "bot_token": "xoxb-12345678",
    "app_token": "xapp-12345678",
}
HOST_CREDENTIAL: Final = {"host": "host-{n}.example.com", "secret": "abcdefgh1"}
SKILL: Final = {"name": "skill-{n}", "description": "Does it.", "body": "Do it."}
NOTE: Final = {"text": "Note {n}."}
PROJECT: Final = {"name": "Project {n}", "instructions": "Answer briefly."}
NO_FILE: Final = {"file_id": "00000000-0000-0000-0000-000000000000", "name": "notes.md"}
KEY: Final = {"api_key": "sk-very-secret-a1b2"}
PROVIDER: Final = {
    "name": "new-{n}",
    "kind": "openai-compat",
    "base_url": "http://127.0.0.1:1/v1",
}
MCP_SERVER: Final = {
    "slug": "new-{n}",
    "url": "http://127.0.0.1:1/mcp",
    "auth": "oauth2",
    "oauth": {
        "client_id": "chatd",
        "authorization_url": "https://login.example.com/authorize",
        "token_url": "http://127.0.0.1:1/token",
    },
}
PASSWORD: Final = "correct horse battery"
LIMIT: Final = {"spend_limit_micros": 5_000_000}
IMPORT: Final = b"""{"type":"chatd","version":1}
{"type":"chat","number":1,"title":"Imported","labels":{},"created_at":"2026-01-01T00:00:00Z"}
{"type":"message","chat":1,"id":1,"role":"user","content":[{"type":"text","text":"hi"}],\
"created_at":"2026-01-01T00:00:00Z"}
{"type":"end","chats":1,"messages":1}
"""

CHATS: Final = (
    row("POST /chats", "create", "chat:write", MESSAGE),
    row("GET /chats", "any role", "chat:read"),
    row("GET /chats/by-workspace", "any role", "chat:read", query="?workspace_ids={workspace_id}"),
    row("GET /chats/{chat_id}", "read", "chat:read", is_audited=True),
    row("PATCH /chats/{chat_id}", "write", "chat:write", {"title": "Mine"}),
    row("DELETE /chats/{chat_id}", "control", "chat:write", works_deleted=True),
    row("POST /chats/{chat_id}/read", "read", "chat:read", {"message_id": 2}),
    row("GET /chats/{chat_id}/subagents", "read", "chat:read"),
    row("GET /chats/{chat_id}/matches", "read", "chat:read", query="?q=x"),
    row("POST /chats/{chat_id}/interrupt", "control", "chat:write", state=State.R0),
    row("POST /chats/{chat_id}/resume", "write", "chat:write", state=State.E1),
    row("POST /chats/{chat_id}/compact", "write", "chat:write"),
    row(
        "PUT /chats/{chat_id}/context",
        "write",
        "chat:write",
        says="no_workspace",
    ),
    row("POST /chats/import", "create", "chat:write", IMPORT),
    row("GET /chats/{chat_id}/acl", "read, not by a share", "chat:read"),
    row(
        "PATCH /chats/{chat_id}/acl",
        "write",
        "chat:write",
        {"user_roles": {"{viewer}": "read"}},
        records="chat.share",
    ),
    row(
        "PATCH /chats/{chat_id}/acl",
        "control",
        "chat:write",
        {"user_roles": {"{viewer}": None}},
    ),
    row("GET /chats/{chat_id}/public-links", "read, not by a share", "chat:read"),
    row(
        "POST /chats/{chat_id}/public-links",
        "write",
        "chat:write",
        {"days": 7},
        records="public_link.create",
    ),
    row("GET /public-links", "any role", "chat:read"),
    row(
        "POST /public-links/{public_link_id}/update",
        "write unshared",
        "chat:write",
        records="public_link.update",
    ),
    row(
        "DELETE /public-links/{public_link_id}",
        "control unshared",
        "chat:write",
        records="public_link.revoke",
    ),
    row("POST /public/call", "public", None, {"secret": "A" * 43}, says="not_found"),
    row(
        "POST /public/call/answer",
        "public",
        None,
        {"secret": "A" * 43, "decision": "approve"},
        says="not_found",
    ),
    row("POST /public/chat", "public", None, {"secret": "A" * 43}, says="not_found"),
    row(
        "POST /public/file",
        "public",
        None,
        {"secret": "A" * 43, "message_id": 1, "part": 0},
        says="not_found",
    ),
    row(
        "PUT /chats/{chat_id}/messages/{message_id}/rating",
        "write",
        "chat:write",
        {"value": "up"},
        says="not_an_answer",
    ),
    row("DELETE /chats/{chat_id}/messages/{message_id}/rating", "write", "chat:write"),
    row("GET /chats/{chat_id}/ratings", "read, not by a share", "chat:read"),
    row("GET /ratings", "administration read", "admin"),
    row("GET /ratings/export.csv", "administration read", "admin", records="rating.export"),
    row("GET /directory", "create", "chat:write", query="?q=the"),
    row("POST /chats/{chat_id}/fork", "write", "chat:write", {}),
    row("GET /chats/{chat_id}/export", "read", "chat:read", is_audited=True),
    row("GET /chats/{chat_id}/diff", "read", "chat:read", says="no_workspace", is_audited=True),
    row("GET /chats/{chat_id}/runs", "read", "chat:read", is_audited=True),
    row("GET /chats/{chat_id}/files", "read", "chat:read", is_audited=True),
    row(
        "POST /chats/{chat_id}/web-images",
        "read",
        "chat:read",
        {"url": "http://127.0.0.1/dot.png"},
        says="web_image_failed",
        is_audited=True,
    ),
    row("GET /chats/{chat_id}/debug/runs", "read, not by a share", "chat:read", is_audited=True),
    row(
        "GET /chats/{chat_id}/debug/runs/{debug_run_id}",
        "read, not by a share",
        "chat:read",
        is_audited=True,
    ),
    row("GET /chats/{chat_id}/cost", "read", "chat:read"),
    row("POST /chats/{chat_id}/title/regenerate", "write", "chat:write"),
    row("POST /chats/{chat_id}/title/propose", "write", "chat:write"),
    row("GET /chats/{chat_id}/messages", "read", "chat:read", is_audited=True),
    row("POST /chats/{chat_id}/messages", "write", "chat:write", MESSAGE),
    row("PATCH /chats/{chat_id}/messages/{message_id}", "write", "chat:write", MESSAGE),
    row("POST /chats/{chat_id}/messages/{message_id}/regenerate", "write", "chat:write"),
    row("GET /chats/{chat_id}/versions", "read, not by a share", "chat:read", is_audited=True),
    row("PUT /chats/{chat_id}/messages/{message_id}/version", "write", "chat:write"),
    row("POST /chats/{chat_id}/tool-results", "write", "chat:write", RESULTS, state=State.A0),
    row(
        "POST /chats/{chat_id}/answers",
        "write",
        "chat:write",
        {"answers": [{"tool_call_id": "c1", "decision": "deny"}]},
        state=State.A0,
        says="invalid_input",
    ),
    row("GET /chats/{chat_id}/tool-policy", "read, not by a share", "chat:read"),
    row("PUT /chats/{chat_id}/tool-policy", "write", "chat:write", POLICY),
    row("POST /chats/{chat_id}/tool-policy/try", "read, not by a share", "chat:read", TRIAL),
    row("GET /chats/{chat_id}/prompts", "read", "chat:read"),
    row("GET /prompts", "any role", "chat:read"),
    row("GET /chats/{chat_id}/queue", "read", "chat:read", state=State.R1, is_audited=True),
    row("PATCH /chats/{chat_id}/queue/{queue_id}", "write", "chat:write", MESSAGE, state=State.R1),
    row(
        "POST /chats/{chat_id}/queue/{queue_id}/move",
        "write",
        "chat:write",
        {"before": None},
        state=State.R1,
    ),
    row(
        "POST /chats/{chat_id}/queue/{queue_id}/promote",
        "write",
        "chat:write",
        state=State.R1,
    ),
    row("DELETE /chats/{chat_id}/queue/{queue_id}", "write", "chat:write", state=State.R1),
    row("GET /events", "any role", "chat:read", is_stream=True),
    row("GET /chats/{chat_id}/events", "read", "chat:read", is_stream=True, is_audited=True),
    row(
        "GET /chats/{chat_id}/git",
        "read",
        "chat:read",
        is_stream=True,
        is_audited=True,
        says="no_workspace",
    ),
)
FILES_AND_WORKSPACES: Final = (
    row(
        "GET /chats/{chat_id}/workspace/files",
        "read, not by a share",
        "chat:read",
        is_audited=True,
        says="no_workspace",
    ),
    row(
        "PUT /chats/{chat_id}/workspace/file",
        "write",
        "chat:write",
        b"text",
        query="?path=a.txt",
        content_type="text/plain",
        says="no_workspace",
    ),
    row(
        "GET /chats/{chat_id}/workspace/file",
        "read, not by a share",
        "chat:read",
        query="?path=a.txt",
        is_audited=True,
        says="no_workspace",
    ),
    row(
        "GET /chats/{chat_id}/workspace/processes",
        "read, not by a share",
        "chat:read",
        is_audited=True,
        says="no_workspace",
    ),
    row(
        "POST /chats/{chat_id}/workspace/processes/signal",
        "write",
        "chat:write",
        {"process_id": "p1"},
        says="no_workspace",
    ),
    row("GET /chats/{chat_id}/desktop", "write", "chat:write", says="no_workspace"),
    row("POST /chats/{chat_id}/desktop/take", "write", "chat:write", says="no_workspace"),
    row("POST /chats/{chat_id}/desktop/release", "write", "chat:write", says="no_workspace"),
    row(
        "POST /chats/{chat_id}/workspace/revert",
        "write",
        "chat:write",
        {"scope": "git", "repo_root": "/home/dev/app", "path": "a.txt"},
        says="no_workspace",
    ),
    row("POST /files", "create", "files", b"words", content_type="text/plain"),
    row("GET /files", "any role", "files"),
    row("GET /files/{file_id}", "read files", "files", is_audited=True),
    row("GET /files/{file_id}/content", "read files", "files", is_audited=True),
    row("POST /files/{file_id}/download-url", "read files", "files", is_audited=True),
    row("GET /files/{file_id}/download", "public", None, query="?token={link}"),
    row("DELETE /files/{file_id}", "delete files", "files", says="file_in_use"),
    row("POST /workspaces", "create", "chat:write", {"template": "scratch"}),
    row("GET /workspaces", "any role", "chat:read"),
    row("GET /workspaces/{workspace_id}", "read unshared", "chat:read"),
    row("DELETE /workspaces/{workspace_id}", "control unshared", "chat:write"),
    row("GET /workspaces/{workspace_id}/network", "read unshared", "chat:read"),
    row("GET /workspaces/{workspace_id}/archive", "write unshared", "chat:write", says="no_agent"),
    row(
        "PUT /workspaces/{workspace_id}/archive",
        "write unshared",
        "chat:write",
        b"",
        content_type="application/x-tar",
        says="no_agent",
    ),
    row("GET /workspaces/{workspace_id}/ports", "write unshared", "chat:write", says="no_agent"),
    row(
        "POST /workspaces/{workspace_id}/previews",
        "write unshared",
        "chat:write",
        {"port": 3000},
        records="preview.open",
    ),
    row("GET /chats/{chat_id}/previews", "read", "chat:read"),
    row(
        "PATCH /chats/{chat_id}/previews",
        "write",
        "chat:write",
        {"port": 3000, "shared": True},
        says="no_workspace",
    ),
    row(
        "PATCH /chats/{chat_id}/previews",
        "control",
        "chat:write",
        {"port": 3000, "shared": False},
    ),
    row("GET /workspaces/{workspace_id}/builds", "read unshared", "chat:read"),
    row(
        "POST /workspaces/{workspace_id}/builds",
        "write unshared",
        "chat:write",
        {"transition": "start"},
    ),
    row(
        "POST /workspaces/{workspace_id}/builds",
        "control unshared",
        "chat:write",
        {"transition": "stop"},
    ),
    row("GET /builds/{build_id}", "read unshared", "chat:read"),
    row("POST /builds/{build_id}/cancel", "control unshared", "chat:write"),
    row("GET /builds/{build_id}/logs", "read unshared", "chat:read"),
    row("GET /builds/{build_id}/logs", "read unshared", "chat:read", is_stream=True),
    row("GET /templates", "any role", "chat:read"),
    row("GET /templates/{template_id}", "any role", "chat:read"),
    row("GET /templates/{template_id}/tool-policy", "any role", "chat:read"),
    row("GET /models", "any role", "chat:read"),
    row("GET /models/{model_id}", "any role", "chat:read"),
    row("GET /model-options/schema", "any role", "chat:read"),
)
ACCOUNT: Final = (
    row("GET /setup", "public", None),
    row("GET /auth/methods", "public", None),
    row(
        "POST /auth/login",
        "public",
        None,
        {"username": "the-owner", "password": PASSWORD},
        records="user.sign_in",
    ),
    row(
        "POST /auth/link",
        "public",
        None,
        {"secret": "x" * 43},
        says="invalid_link",
        records="user.sign_in",
    ),
    row("GET /auth/oidc/start", "public", None, says="not_found"),
    row("GET /auth/oidc/callback", "public", None, says="not_found"),
    row("POST /auth/logout", "any role", None),
    row("GET /auth/me", "any role", None),
    row("POST /auth/ticket", "any role", None),
    row(
        "POST /auth/password",
        "any role",
        "account",
        {"current_password": "not the password", "new_password": PASSWORD},
        says="wrong_password service_account",
    ),
    row("GET /auth/sessions", "any role", "account"),
    row("DELETE /auth/sessions/{session_id}", "own", "account", records="session.revoke"),
    row("GET /auth/tokens", "any role", "account"),
    row(
        "POST /auth/tokens",
        "any role",
        "account",
        {"name": "job", "scopes": ["account"]},
        says="service_account",
        records="token.create",
    ),
    row("DELETE /auth/tokens/{token_id}", "own", "account", records="token.revoke"),
    row("GET /settings/me", "any role", "account"),
    row("GET /settings/me/tool-policy", "any role", "account"),
    row("PUT /settings/me/tool-policy", "any role", "account", POLICY),
    row("POST /settings/me/tool-policy/try", "any role", "account", TRIAL),
    row("PATCH /settings/me", "any role", "account", {"custom_prompt": "Short."}),
    row("GET /user-keys", "any role", "account"),
    row(
        "POST /user-keys",
        "any role",
        "account",
        {"provider": "{provider}", **KEY},
        records="provider.set_user_key",
    ),
    row("DELETE /user-keys/{key_id}", "own", "account", records="provider.delete_user_key"),
    row("GET /cost/me/summary", "any role", "account"),
    row("GET /usage-limits/status", "any role", "account"),
    row("POST /webhooks", "any role", "account", WEBHOOK, records="webhook.create"),
    row("GET /webhooks", "any role", "account"),
    row("GET /webhooks/{webhook_id}", "own", "account"),
    row(
        "PATCH /webhooks/{webhook_id}",
        "own",
        "account",
        {"enabled": False},
        records="webhook.update",
    ),
    row("DELETE /webhooks/{webhook_id}", "own", "account", records="webhook.delete"),
    row("POST /webhooks/{webhook_id}/ping", "own", "account"),
    row("GET /webhooks/{webhook_id}/deliveries", "own", "account"),
    row("GET /push/key", "any role", "account"),
    row("POST /push/subscriptions", "any role", "account", SUBSCRIPTION),
    row("GET /push/subscriptions", "any role", "account"),
    row("DELETE /push/subscriptions/{subscription_id}", "own", "account"),
    row("POST /push/subscriptions/{subscription_id}/test", "own", "account"),
    row(
        "POST /git-credentials",
        "any role",
        "account",
        GIT_CREDENTIAL,
        records="git_credential.save",
    ),
    row("GET /git-credentials", "any role", "account"),
    row(
        "DELETE /git-credentials/{credential_id}", "own", "account", records="git_credential.delete"
    ),
    row(
        "POST /host-credentials",
        "any role",
        "account",
        HOST_CREDENTIAL,
        records="host_credential.save",
    ),
    row("GET /host-credentials", "any role", "account"),
    row(
        "DELETE /host-credentials/{host_credential_id}",
        "own",
        "account",
        records="host_credential.delete",
    ),
    row("POST /projects", "create", "chat:write", PROJECT, records="project.create"),
    row("GET /projects", "any role", "chat:read"),
    row("GET /projects/{project_id}", "read project", "chat:read"),
    row(
        "PATCH /projects/{project_id}",
        "write project",
        "chat:write",
        {"name": "Renamed"},
        records="project.update",
    ),
    row("DELETE /projects/{project_id}", "write project", "chat:write", records="project.delete"),
    row("GET /projects/{project_id}/members", "read project", "chat:read"),
    row(
        "PUT /projects/{project_id}/members/{user_id}",
        "write project",
        "chat:write",
        {"role": "writer"},
        records="project.set_member",
    ),
    row(
        "DELETE /projects/{project_id}/members/{user_id}",
        "write project",
        "chat:write",
        records="project.remove_member",
    ),
    row("GET /projects/{project_id}/files", "read project", "chat:read"),
    row(
        "POST /projects/{project_id}/files",
        "write project",
        "chat:write",
        NO_FILE,
        says="invalid_input",
    ),
    row(
        "DELETE /projects/{project_id}/files/{file_id}",
        "write project",
        "chat:write",
        records="project.remove_file",
    ),
    row("POST /skills", "any role", "account", SKILL),
    row("GET /skills", "any role", "account"),
    row("GET /skills/{skill_id}", "own", "account"),
    row("PATCH /skills/{skill_id}", "own", "account", {"description": "Does it well."}),
    row("DELETE /skills/{skill_id}", "own", "account"),
    row("POST /memory/notes", "any role", "account", NOTE),
    row("GET /memory/notes", "any role", "account"),
    row("GET /memory/notes/{note_id}", "own", "account"),
    row("PATCH /memory/notes/{note_id}", "own", "account", {"enabled": False}),
    row("DELETE /memory/notes/{note_id}", "own", "account"),
    row("POST /memory/notes/{note_id}/accept", "own", "account", NOTE),
    row("POST /memory/notes/{note_id}/dismiss", "own", "account", says="note_kept"),
    row("POST /schedules", "create", "chat:write", SCHEDULE),
    row("GET /schedules", "any role", "account"),
    row("GET /schedules/{schedule_id}", "own", "account"),
    row("PATCH /schedules/{schedule_id}", "own, of creators", "chat:write", {"name": "other"}),
    row("DELETE /schedules/{schedule_id}", "own, of creators", "chat:write"),
    row("POST /schedules/{schedule_id}/run", "own, of creators", "chat:write"),
    row("GET /cost/{user_id}/summary", "costs", "account"),
)
ADMINISTRATION: Final = (
    row("GET /cost/users", "administration read", "admin"),
    row("GET /cost/summary", "administration read", "admin"),
    row("GET /cost/export.csv", "administration read", "admin"),
    row("GET /workers", "administration read", "admin"),
    row("GET /demo", "administration read", "admin"),
    row("POST /demo/worker", "administration", "admin", says="not_in_demo"),
    row("POST /demo/kill-worker", "administration", "admin", says="not_in_demo"),
    row("GET /users", "administration read", "admin"),
    row("POST /users", "administration", "admin", {"username": "new-{n}"}, records="user.create"),
    row("GET /users/{user_id}", "administration read", "admin"),
    row(
        "PATCH /users/{user_id}",
        "administration",
        "admin",
        {"name": "Other"},
        records="user.update",
    ),
    row("DELETE /users/{user_id}", "administration", "admin", records="user.delete"),
    row(
        "POST /users/{user_id}/password",
        "administration",
        "admin",
        {"password": PASSWORD},
        records="user.set_password",
    ),
    row("GET /users/{user_id}/tokens", "administration read", "admin"),
    row(
        "POST /users/{user_id}/tokens",
        "administration",
        "admin",
        {"name": "job"},
        says="not_a_service_account",
        records="token.create",
    ),
    row(
        "DELETE /users/{user_id}/tokens/{token_id}",
        "administration",
        "admin",
        records="token.revoke",
    ),
    row("GET /audit", "administration read", "admin"),
    row("GET /audit/export.csv", "administration read", "admin", records="audit.export"),
    row("GET /groups", "administration read", "admin"),
    row("POST /groups", "administration", "admin", {"name": "new-{n}"}, records="group.create"),
    row("GET /groups/{group_id}", "administration read", "admin"),
    row(
        "PATCH /groups/{group_id}",
        "administration",
        "admin",
        {"name": "new-{n}"},
        records="group.update",
    ),
    row("DELETE /groups/{group_id}", "administration", "admin", records="group.delete"),
    row("GET /groups/{group_id}/members", "administration read", "admin"),
    row(
        "PUT /groups/{group_id}/members/{user_id}",
        "administration",
        "admin",
        records="group.add_member",
    ),
    row(
        "DELETE /groups/{group_id}/members/{user_id}",
        "administration",
        "admin",
        records="group.remove_member",
    ),
    row("GET /settings", "administration read", "admin"),
    row("GET /diagnosis", "administration read", "admin"),
    row(
        "POST /restore/confirm",
        "administration",
        "admin",
        says="nothing_to_confirm",
        records="restore.confirm",
    ),
    row("GET /settings/tool-policy", "administration read", "admin"),
    row("POST /settings/tool-policy/try", "administration read", "admin", TRIAL),
    row(
        "PUT /settings/tool-policy", "administration", "admin", POLICY, records="tool_policy.update"
    ),
    row(
        "PUT /templates/{template_id}/tool-policy",
        "administration",
        "admin",
        POLICY,
        records="tool_policy.update",
    ),
    row(
        "PATCH /settings",
        "administration",
        "admin",
        {"system_prompt": "Be kind."},
        records="settings.update",
    ),
    row("GET /mcp-servers", "any role", "chat:read"),
    row("POST /mcp-servers/{mcp_server_id}/connect", "any role", "account"),
    row(
        "GET /mcp-servers/{mcp_server_id}/callback", "any role", "account", says="mcp_oauth_failed"
    ),
    row("GET /mcp-servers/{mcp_server_id}/client", "public", None),
    row("DELETE /mcp-servers/{mcp_server_id}/connection", "any role", "account", says="not_found"),
    row("GET /mcp-server-configs", "administration read", "admin"),
    row(
        "POST /mcp-server-configs",
        "administration",
        "admin",
        MCP_SERVER,
        records="mcp_server.create",
    ),
    row("GET /mcp-server-configs/{mcp_server_id}", "administration read", "admin"),
    row(
        "PATCH /mcp-server-configs/{mcp_server_id}",
        "administration",
        "admin",
        {"enabled": False},
        records="mcp_server.update",
    ),
    row(
        "DELETE /mcp-server-configs/{mcp_server_id}",
        "administration",
        "admin",
        records="mcp_server.delete",
    ),
    row("POST /mcp-server-configs/{mcp_server_id}/test", "administration", "admin"),
    row("GET /template-configs", "administration read", "admin"),
    row(
        "POST /template-configs",
        "administration",
        "admin",
        TEMPLATE_CONFIG,
        records="template.create",
    ),
    row("GET /template-configs/{template_id}", "administration read", "admin"),
    row(
        "PUT /template-configs/{template_id}",
        "administration",
        "admin",
        TEMPLATE_CONFIG,
        records="template.update",
    ),
    row(
        "DELETE /template-configs/{template_id}",
        "administration",
        "admin",
        records="template.delete",
    ),
    row(
        "POST /template-configs/{template_id}/duplicate",
        "administration",
        "admin",
        {"name": "copy-{n}"},
        records="template.create",
    ),
    row("GET /template-configs/{template_id}/versions", "administration read", "admin"),
    row(
        "GET /template-configs/{template_id}/versions/{version_id}", "administration read", "admin"
    ),
    row(
        "POST /template-configs/{template_id}/versions/{version_id}/activate",
        "administration",
        "admin",
        records="template.activate",
    ),
    row("GET /runners", "any role", "chat:read"),
    row("GET /runners/{runner_id}", "read unshared", "chat:read"),
    row(
        "PATCH /runners/{runner_id}",
        "control unshared",
        "admin",
        {"draining": True},
        records="runner.update",
    ),
    row("DELETE /runners/{runner_id}", "control unshared", "admin", records="runner.delete"),
    row("GET /runner-tokens", "administration read", "admin"),
    row(
        "POST /runner-tokens",
        "administration",
        "admin",
        {"pool": "build"},
        records="runner_token.create",
    ),
    row(
        "DELETE /runner-tokens/{runner_token_id}",
        "administration",
        "admin",
        records="runner_token.revoke",
    ),
    row("GET /hooks", "administration read", "admin"),
    row("POST /hooks", "administration", "admin", HOOK, records="hook.create"),
    row("GET /hooks/{hook_id}", "administration read", "admin"),
    row(
        "PATCH /hooks/{hook_id}",
        "administration",
        "admin",
        {"enabled": False},
        records="hook.update",
    ),
    row("DELETE /hooks/{hook_id}", "administration", "admin", records="hook.delete"),
    row("POST /hooks/{hook_id}/test", "administration", "admin"),
    row("GET /repository-connections", "administration read", "admin"),
    row(
        "POST /repository-connections",
        "administration",
        "admin",
        REPOSITORY_CONNECTION,
        records="repository_connection.create",
    ),
    row("GET /repository-connections/{connection_id}", "administration read", "admin"),
    row(
        "PATCH /repository-connections/{connection_id}",
        "administration",
        "admin",
        {"enabled": False},
        records="repository_connection.update",
    ),
    row(
        "DELETE /repository-connections/{connection_id}",
        "administration",
        "admin",
        records="repository_connection.delete",
    ),
    row("POST /repository-connections/{connection_id}/test", "administration", "admin"),
    row("GET /repository-connections/{connection_id}/events", "administration read", "admin"),
    row(
        "POST /repository-connections/{connection_id}/events",
        "public",
        None,
        b"{}",
        says="signature_invalid",
    ),
    row("GET /slack-connections", "administration read", "admin"),
    row(
        "POST /slack-connections",
        "administration",
        "admin",
        SLACK_CONNECTION,
        records="slack_connection.create",
    ),
    row("GET /slack-connections/{slack_id}", "administration read", "admin"),
    row(
        "PATCH /slack-connections/{slack_id}",
        "administration",
        "admin",
        {"enabled": False},
        records="slack_connection.update",
    ),
    row(
        "DELETE /slack-connections/{slack_id}",
        "administration",
        "admin",
        records="slack_connection.delete",
    ),
    row("POST /slack-connections/{slack_id}/test", "administration", "admin"),
    row("GET /slack-connections/{slack_id}/events", "administration read", "admin"),
    row("GET /slack-links", "any role", "account"),
    # Refused to tokens with scopes: the person of Slack has none.
    row("POST /slack-links/code", "any role", "account", says="forbidden"),
    row("DELETE /slack-links/{slack_link_id}", "own", "account", records="slack_link.delete"),
    row("GET /host-credential-configs", "administration read", "admin"),
    row(
        "POST /host-credential-configs",
        "administration",
        "admin",
        HOST_CREDENTIAL,
        records="host_credential.save",
    ),
    row(
        "DELETE /host-credential-configs/{shared_credential_id}",
        "administration",
        "admin",
        records="host_credential.delete",
    ),
    row("GET /builds/waiting", "any role", "chat:read"),
    row("GET /providers", "administration read", "admin"),
    row("POST /providers", "administration", "admin", PROVIDER, records="provider.create"),
    row("GET /providers/{provider_id}", "administration read", "admin"),
    row(
        "PATCH /providers/{provider_id}",
        "administration",
        "admin",
        {"enabled": False},
        records="provider.update",
    ),
    row("DELETE /providers/{provider_id}", "administration", "admin", records="provider.delete"),
    row("POST /providers/{provider_id}/test", "administration", "admin", {"model": "m"}),
    row(
        "GET /providers/{provider_id}/models",
        "administration read",
        "admin",
        says="provider_failed",
    ),
    row(
        "POST /providers/{provider_id}/keys",
        "administration",
        "admin",
        KEY,
        records="provider.add_key",
    ),
    row(
        "PATCH /providers/{provider_id}/keys/{key_id}",
        "administration",
        "admin",
        KEY,
        records="provider.update_key",
    ),
    row(
        "DELETE /providers/{provider_id}/keys/{key_id}",
        "administration",
        "admin",
        records="provider.delete_key",
    ),
    row(
        "POST /models",
        "administration",
        "admin",
        {"name": "new-{n}", "provider": "{provider}", "model": "m"},
        records="model.create",
    ),
    row(
        "PATCH /models/{model_id}",
        "administration",
        "admin",
        {"display_name": "Other"},
        records="model.update",
    ),
    row("DELETE /models/{model_id}", "administration", "admin", records="model.delete"),
    row("GET /model-overrides", "administration read", "admin"),
    row(
        "PATCH /model-overrides",
        "administration",
        "admin",
        {"title": None},
        records="model.override",
    ),
    row("GET /usage-limits", "administration read", "admin"),
    row(
        "PUT /usage-limits",
        "administration",
        "admin",
        {**LIMIT, "period": "month"},
        records="spend_limit.set_default",
    ),
    row("DELETE /usage-limits", "administration", "admin", records="spend_limit.delete_default"),
    row("GET /usage-limits/overrides", "administration read", "admin"),
    row(
        "PUT /usage-limits/overrides/{user_id}",
        "administration",
        "admin",
        LIMIT,
        records="spend_limit.set_user",
    ),
    row(
        "DELETE /usage-limits/overrides/{user_id}",
        "administration",
        "admin",
        works_deleted=True,
        records="spend_limit.delete_user",
    ),
    row("GET /usage-limits/group-overrides", "administration read", "admin"),
    row(
        "PUT /usage-limits/group-overrides/{group_id}",
        "administration",
        "admin",
        LIMIT,
        records="spend_limit.set_group",
    ),
    row(
        "DELETE /usage-limits/group-overrides/{group_id}",
        "administration",
        "admin",
        records="spend_limit.delete_group",
    ),
)
PARTS: Final[Mapping[str, tuple[Row, ...]]] = {
    "chats": CHATS,
    "files and workspaces": FILES_AND_WORKSPACES,
    "account": ACCOUNT,
    "administration": ADMINISTRATION,
}
