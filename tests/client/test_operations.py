"""The client against the API's description: every operation's path, parameters, body and reply."""

import ast
import inspect
import io
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin
from uuid import UUID

import jsonschema
import msgspec
import pytest
from aiohttp import ClientSession
from msgspec import Raw, Struct

import chatd.client
from chatd.api.openapi.components import build_example
from chatd.client import drafts, frames
from chatd.client.calls import Call, Download, ListCall, UploadedStream
from chatd.client.drafts import CallAnswer, ChatChange, Draft, EditBody, FileInput, TextInput
from chatd.client.exchange import ServerAddress
from chatd.client.resources import ModelFallback
from chatd.client.server import ServerApi
from chatd.domain.chat.call_waits import QuestionReply
from chatd.domain.ids import (
    ChatId,
    CredentialId,
    FileId,
    GroupId,
    McpServerId,
    MessageId,
    ModelConfigId,
    ProjectId,
    QueueId,
    ToolCallId,
    UserId,
    WorkspaceId,
)
from chatd.domain.tool_policy.rules import ToolRule
from tools.openapi import openapi_document

Json = dict[str, Any]

SOURCE = Path(chatd.client.__file__).parents[1]

HOOK = {"name": "policy", "url": "https://a.test/", "events": ["before_tool"]}
CONNECTION = {
    "name": "host",
    "vendor": "github",
    "repositories": ["acme/*"],
    "template_id": "018f4e9a-0000-7000-8000-000000000001",
    "token": "abcdefgh1",
}
SLACK = {"name": "acme", "bot_token": "xoxb-12345678", "app_token": "xapp-12345678"}
HOST_CREDENTIAL = {"host": "git.example.com", "secret": "abcdefgh1", "scheme": "bearer"}
ID = UUID("018f4e9a-0000-7000-8000-000000000001")
CHAT, FILE, MCP, PROJECT = ChatId(ID), FileId(ID), McpServerId(ID), ProjectId(ID)
QUEUED = QueueId(7)
TEXT = (TextInput("hello"), FileInput(FILE))
DRAFT = Draft(
    content=TEXT,
    busy_behavior="steer",
    model_config_id=ModelConfigId(ID),
    reasoning_effort="high",
    mode="plan",
    mcp_server_ids=(MCP,),
    system_prompt="Be brief.",
    labels={"team": "core"},
    workspace_id=WorkspaceId(ID),
    max_cost_micros=1,
)
EDIT = EditBody(content=TEXT, model_config_id=ID, reasoning_effort="high", mode="off")
CHANGE = ChatChange(
    title="Renamed",
    archived=True,
    pin_order=1,
    workspace_id=WorkspaceId(ID),
    mcp_server_ids=(MCP,),
    mode="off",
)
ANSWER = CallAnswer(
    tool_call_id=ToolCallId("call"),
    decision="answer",
    reason="no",
    always=True,
    rule_args={"command": "ls *"},
    replies=(QuestionReply(labels=("yes",)),),
)
DEFINITION = {"name": "shop", "spec": {"seed": {"kind": "demo"}, "env": {"A": "b"}}}
RULE = ToolRule(tool="execute", args={"command": "ls *"}, action="auto")
POLICY = {"rules": [RULE], "may_loosen": True, "version": 3}
TRIED = {"tool": "execute", "args": {"command": "ls"}, "rules": [RULE]}
USER = UserId(ID)


async def _no_chunks() -> AsyncIterator[bytes]:
    yield b""


ARCHIVE = UploadedStream(media_type="application/x-tar", chunks=_no_chunks)

Ask = Callable[[ServerApi], "Call[Any] | Download"]

ASKED: dict[str, Ask] = {
    "list_chats": lambda api: api.list_chats(
        q="x",
        label=["team:core"],
        status="waiting",
        archived=True,
        source="shared",
        pinned=True,
        limit=5,
        cursor="c",
    ),
    "create_chat": lambda api: api.create_chat(DRAFT),
    "get_chat": lambda api: api.get_chat(CHAT),
    "amend_chat": lambda api: api.amend_chat(CHAT, CHANGE),
    "delete_chat": lambda api: api.delete_chat(CHAT),
    "mark_read": lambda api: api.mark_read(CHAT, 3),
    "interrupt_chat": lambda api: api.interrupt_chat(CHAT, queue="hold", subagents="stop"),
    "resume_chat": lambda api: api.resume_chat(CHAT),
    "compact_chat": lambda api: api.compact_chat(CHAT),
    "regenerate_title": lambda api: api.regenerate_title(CHAT),
    "fork_chat": lambda api: api.fork_chat(CHAT, 3),
    "export_chat": lambda api: api.export_chat(CHAT, "jsonl"),
    "import_chat": lambda api: api.import_chat(io.BytesIO(b"{}\n")),
    "list_ports": lambda api: api.list_ports(WorkspaceId(ID)),
    "create_preview": lambda api: api.create_preview(WorkspaceId(ID), 3000, "/a"),
    "load_archive": lambda api: api.load_archive(WorkspaceId(ID), "app", gzip=True),
    "unpack_archive": lambda api: api.unpack_archive(WorkspaceId(ID), ARCHIVE, "app"),
    "list_subagents": lambda api: api.list_subagents(CHAT, limit=5, cursor="c"),
    "get_diff": lambda api: api.get_diff(CHAT, "chat"),
    "revert_file": lambda api: api.revert_file(CHAT, "turn", "/home/me", "a.py", old_path="b.py"),
    "get_chat_cost": lambda api: api.get_chat_cost(CHAT),
    "list_messages": lambda api: api.list_messages(CHAT, before_id=9, limit=5, cursor="c"),
    "send_message": lambda api: api.send_message(CHAT, DRAFT),
    "edit_message": lambda api: api.edit_message(CHAT, MessageId(3), EDIT),
    "regenerate_turn": lambda api: api.regenerate_turn(
        CHAT, MessageId(3), model_config_id=ID, reasoning_effort="low"
    ),
    "list_versions": lambda api: api.list_versions(CHAT, limit=5, cursor="c"),
    "choose_version": lambda api: api.choose_version(CHAT, MessageId(3)),
    "answer_calls": lambda api: api.answer_calls(CHAT, [ANSWER]),
    "edit_queued": lambda api: api.edit_queued(CHAT, QUEUED, TEXT),
    "delete_queued": lambda api: api.delete_queued(CHAT, QUEUED),
    "move_queued": lambda api: api.move_queued(CHAT, QUEUED, QueueId(8)),
    "promote_queued": lambda api: api.promote_queued(CHAT, QUEUED),
    "list_prompts": lambda api: api.list_prompts(limit=5),
    "list_chat_prompts": lambda api: api.list_chat_prompts(CHAT, limit=5),
    "get_acl": lambda api: api.get_acl(CHAT),
    "change_acl": lambda api: api.change_acl(
        CHAT, user_roles={str(ID): "read"}, group_roles={str(ID): ""}
    ),
    "rate_answer": lambda api: api.rate_answer(CHAT, MessageId(3), "up", "Right."),
    "remove_rating": lambda api: api.remove_rating(CHAT, MessageId(3)),
    "create_public_link": lambda api: api.create_public_link(
        CHAT, days=7, with_tools=True, with_files=True
    ),
    "list_public_links": lambda api: api.list_public_links(everyone=True),
    "list_links_of_chat": lambda api: api.list_links_of_chat(CHAT),
    "update_public_link": lambda api: api.update_public_link(ID),
    "revoke_public_link": lambda api: api.revoke_public_link(ID),
    "search_directory": lambda api: api.search_directory("ada", limit=5),
    "get_tool_policy": lambda api: api.get_tool_policy(),
    "get_my_tool_policy": lambda api: api.get_my_tool_policy(),
    "get_template_tool_policy": lambda api: api.get_template_tool_policy(str(ID)),
    "get_chat_tool_policy": lambda api: api.get_chat_tool_policy(CHAT),
    "put_tool_policy": lambda api: api.put_tool_policy(POLICY),
    "put_my_tool_policy": lambda api: api.put_my_tool_policy({"rules": [RULE]}),
    "put_template_tool_policy": lambda api: api.put_template_tool_policy(str(ID), POLICY),
    "try_tool_policy": lambda api: api.try_tool_policy(TRIED),
    "try_my_tool_policy": lambda api: api.try_my_tool_policy(TRIED),
    "try_chat_tool_policy": lambda api: api.try_chat_tool_policy(CHAT, TRIED),
    "list_users": lambda api: api.list_users(),
    "create_user": lambda api: api.create_user({"username": "ada", "role": "member"}),
    "change_user": lambda api: api.change_user(USER, {"role": "viewer", "status": "suspended"}),
    "delete_user": lambda api: api.delete_user(USER),
    "set_user_password": lambda api: api.set_user_password(USER, "correct horse battery"),
    "list_groups": lambda api: api.list_groups(),
    "create_group": lambda api: api.create_group("core"),
    "delete_group": lambda api: api.delete_group(GroupId(ID)),
    "list_group_members": lambda api: api.list_group_members(GroupId(ID)),
    "add_group_member": lambda api: api.add_group_member(GroupId(ID), USER),
    "remove_group_member": lambda api: api.remove_group_member(GroupId(ID), USER),
    "get_spend_limits": lambda api: api.get_spend_limits(),
    "set_default_limit": lambda api: api.set_default_limit(5_000_000, "week"),
    "delete_default_limit": lambda api: api.delete_default_limit(),
    "list_user_limits": lambda api: api.list_user_limits(),
    "set_user_limit": lambda api: api.set_user_limit(USER, 5_000_000),
    "delete_user_limit": lambda api: api.delete_user_limit(USER),
    "list_group_limits": lambda api: api.list_group_limits(),
    "set_group_limit": lambda api: api.set_group_limit(GroupId(ID), 5_000_000),
    "delete_group_limit": lambda api: api.delete_group_limit(GroupId(ID)),
    "put_chat_tool_policy": lambda api: api.put_chat_tool_policy(
        CHAT, {"rules": [RULE], "version": 3}
    ),
    "list_models": lambda api: api.list_models(include_disabled=True, limit=5),
    "update_model": lambda api: api.update_model(
        ModelConfigId(ID), fallbacks=[ModelFallback(model="gpt", on=("outage",))], is_default=True
    ),
    "create_model": lambda api: api.create_model(
        name="fast", provider="openai", model="gpt", is_default=True
    ),
    "delete_model": lambda api: api.delete_model(ModelConfigId(ID)),
    "list_providers": lambda api: api.list_providers(include_disabled=True),
    "create_provider": lambda api: api.create_provider(
        name="own", kind="openai", base_url="https://models.test", region="eu", api_keys=["key"]
    ),
    "delete_provider": lambda api: api.delete_provider(ID),
    "test_provider": lambda api: api.test_provider(ID, "gpt", key_id=ID),
    "create_provider_key": lambda api: api.create_provider_key(ID, "sk-1"),
    "delete_provider_key": lambda api: api.delete_provider_key(ID, ID),
    "list_user_keys": lambda api: api.list_user_keys(),
    "set_user_key": lambda api: api.set_user_key("openai", "sk-1"),
    "list_offered_models": lambda api: api.list_offered_models(ID),
    "get_diagnosis": lambda api: api.get_diagnosis(),
    "confirm_restore": lambda api: api.confirm_restore(),
    "list_mcp_servers": lambda api: api.list_mcp_servers(limit=5, cursor="c"),
    "disconnect_mcp_server": lambda api: api.disconnect_mcp_server(MCP),
    "test_mcp_server": lambda api: api.test_mcp_server(MCP),
    "list_workspaces": lambda api: api.list_workspaces(limit=5),
    "get_workspace": lambda api: api.get_workspace(WorkspaceId(ID)),
    "create_workspace": lambda api: api.create_workspace(
        "python", name="shop", runner_id="r", parameters={"directory": "/shop"}
    ),
    "create_build": lambda api: api.create_build(WorkspaceId(ID), "stop"),
    "list_templates": lambda api: api.list_templates(limit=5),
    "list_template_configs": lambda api: api.list_template_configs(limit=5),
    "get_template_config": lambda api: api.get_template_config(ID),
    "create_template": lambda api: api.create_template(DEFINITION),
    "replace_template": lambda api: api.replace_template(ID, DEFINITION, activate=False),
    "duplicate_template": lambda api: api.duplicate_template(ID, "copy"),
    "delete_template": lambda api: api.delete_template(ID),
    "list_template_versions": lambda api: api.list_template_versions(ID, limit=5),
    "activate_template_version": lambda api: api.activate_template_version(ID, ID),
    "list_runners": lambda api: api.list_runners(),
    "get_runner": lambda api: api.get_runner("r1"),
    "update_runner": lambda api: api.update_runner("r1", draining=True),
    "remove_runner": lambda api: api.remove_runner("r1"),
    "list_waiting_builds": lambda api: api.list_waiting_builds(),
    "list_runner_tokens": lambda api: api.list_runner_tokens(),
    "create_runner_token": lambda api: api.create_runner_token(
        "build", name="rack 3", expires_at=datetime(2030, 1, 1, tzinfo=UTC)
    ),
    "revoke_runner_token": lambda api: api.revoke_runner_token(ID),
    "list_host_credentials": lambda api: api.list_host_credentials(),
    "save_host_credential": lambda api: api.save_host_credential(HOST_CREDENTIAL),
    "delete_host_credential": lambda api: api.delete_host_credential(ID),
    "list_shared_credentials": lambda api: api.list_shared_credentials(),
    "save_shared_credential": lambda api: api.save_shared_credential(
        {**HOST_CREDENTIAL, "group": "data"}
    ),
    "delete_shared_credential": lambda api: api.delete_shared_credential(ID),
    "list_hooks": lambda api: api.list_hooks(),
    "get_hook": lambda api: api.get_hook(ID),
    "create_hook": lambda api: api.create_hook(HOOK),
    "change_hook": lambda api: api.change_hook(ID, {"enabled": False}),
    "delete_hook": lambda api: api.delete_hook(ID),
    "try_hook": lambda api: api.try_hook(ID),
    "list_repository_connections": lambda api: api.list_repository_connections(),
    "get_repository_connection": lambda api: api.get_repository_connection(ID),
    "create_repository_connection": lambda api: api.create_repository_connection(CONNECTION),
    "change_repository_connection": lambda api: api.change_repository_connection(
        ID, {"enabled": False}
    ),
    "delete_repository_connection": lambda api: api.delete_repository_connection(ID),
    "try_repository_connection": lambda api: api.try_repository_connection(ID),
    "list_repository_events": lambda api: api.list_repository_events(ID),
    "list_slack_connections": lambda api: api.list_slack_connections(),
    "get_slack_connection": lambda api: api.get_slack_connection(ID),
    "create_slack_connection": lambda api: api.create_slack_connection(SLACK),
    "change_slack_connection": lambda api: api.change_slack_connection(ID, {"enabled": False}),
    "delete_slack_connection": lambda api: api.delete_slack_connection(ID),
    "try_slack_connection": lambda api: api.try_slack_connection(ID),
    "list_slack_events": lambda api: api.list_slack_events(ID),
    "list_slack_links": lambda api: api.list_slack_links(),
    "make_slack_code": lambda api: api.make_slack_code(),
    "delete_slack_link": lambda api: api.delete_slack_link(ID),
    "get_workspace_network": lambda api: api.get_workspace_network(WorkspaceId(ID)),
    "upload_file": lambda api: api.upload_file("a.txt", "text/plain", io.BytesIO(b"a")),
    "get_file": lambda api: api.get_file(FILE),
    "load_content": lambda api: api.load_content(FILE),
    "load_web_image": lambda api: api.load_web_image(CHAT, "https://example.com/a.png"),
    "get_me": lambda api: api.get_me(),
    "sign_in_with_password": lambda api: api.sign_in_with_password("ada", "password"),
    "sign_in_with_link": lambda api: api.sign_in_with_link("secret"),
    "sign_out": lambda api: api.sign_out(),
    "list_tokens": lambda api: api.list_tokens(),
    "create_token": lambda api: api.create_token(
        "laptop", scopes=["chat:read"], expires_at=datetime(2030, 1, 1, tzinfo=UTC)
    ),
    "revoke_token": lambda api: api.revoke_token(CredentialId(ID)),
    "list_skills": lambda api: api.list_skills(),
    "get_skill": lambda api: api.get_skill(ID),
    "create_skill": lambda api: api.create_skill(name="a", description="b", body="c"),
    "change_skill": lambda api: api.change_skill(ID, description="b", body="c"),
    "get_my_settings": lambda api: api.get_my_settings(),
    "change_my_settings": lambda api: api.change_my_settings({"memory": "proposals"}),
    "list_notes": lambda api: api.list_notes(state="proposed", project_id=PROJECT),
    "get_note": lambda api: api.get_note(ID),
    "create_note": lambda api: api.create_note("a", project_id=PROJECT, enabled=False),
    "change_note": lambda api: api.change_note(ID, {"enabled": False, "place": 1}),
    "delete_note": lambda api: api.delete_note(ID),
    "accept_note": lambda api: api.accept_note(ID, text="a", project_id=PROJECT),
    "dismiss_note": lambda api: api.dismiss_note(ID),
    "list_projects": lambda api: api.list_projects(),
    "get_project": lambda api: api.get_project(PROJECT),
    "create_project": lambda api: api.create_project({"name": "Billing"}),
    "change_project": lambda api: api.change_project(PROJECT, {"template_id": None}),
    "delete_project": lambda api: api.delete_project(PROJECT),
    "list_project_members": lambda api: api.list_project_members(PROJECT),
    "set_project_member": lambda api: api.set_project_member(PROJECT, UserId(ID), "writer"),
    "remove_project_member": lambda api: api.remove_project_member(PROJECT, UserId(ID)),
    "list_project_files": lambda api: api.list_project_files(PROJECT),
    "add_project_file": lambda api: api.add_project_file(PROJECT, FILE, "notes.md"),
    "remove_project_file": lambda api: api.remove_project_file(PROJECT, FILE),
    "delete_skill": lambda api: api.delete_skill(ID),
    "get_my_costs": lambda api: api.get_my_costs(start_date="2026-11-01"),
    "list_user_costs": lambda api: api.list_user_costs(start_date="2026-11-01"),
    "get_spend_status": lambda api: api.get_spend_status(),
}

NOT_CALLED: dict[str, tuple[str, ...]] = {
    "administration, which is done on the page": (
        "/audit",
        "/cost/",
        "/groups",
        "/mcp-server-configs",
        "/model-options",
        "/model-overrides",
        "/models",
        "/providers",
        "/settings",
        "/template-configs",
        "/templates",
        "/users",
        "/workers",
    ),
    "what a user sets up once, on the page": (
        "/auth/password",
        "/auth/sessions",
        "/git-credentials",
        "/push",
        "/schedules",
        "/user-keys",
        "/webhooks",
    ),
    "called by the webhooks of git hosts": ("/repository-connections/{connection_id}/events",),
    "needs a browser": (
        "/public/",
        "/auth/methods",
        "/auth/oidc",
        "/auth/ticket",
        "/mcp-servers/{mcp_server_id}/",
        "/files/{file_id}/download",
        "/setup",
    ),
    "a stream, which the WebSocket replaces here": (
        "/chats/{chat_id}/events",
        "/chats/{chat_id}/git",
        "/events",
    ),
    "a WebSocket: `client.socket`": ("/ws",),
    "a view or an action that only the page offers yet": (
        "/builds",
        "/chats/by-workspace",
        "/chats/{chat_id}/context",
        "/chats/{chat_id}/debug",
        "/chats/{chat_id}/desktop",
        "/chats/{chat_id}/files",
        "/chats/{chat_id}/matches",
        "/chats/{chat_id}/previews",
        "/chats/{chat_id}/queue",
        "/chats/{chat_id}/ratings",
        "/chats/{chat_id}/runs",
        "/chats/{chat_id}/terminal",
        "/chats/{chat_id}/title/propose",
        "/chats/{chat_id}/tool-results",
        "/chats/{chat_id}/workspace/",
        "/demo",
        "/ratings",
        "/files",
        "/workspaces",
    ),
}

FRAMES: dict[type[Struct], str] = {
    frames.Subscribe: "Subscribe",
    frames.Unsubscribe: "Unsubscribe",
    frames.Ping: "Ping",
    frames.Subscribed: "Subscribed",
    frames.Unsubscribed: "Unsubscribed",
    frames.Refused: "SubscribeRefused",
    frames.ListReady: "ChatListReady",
    frames.ChatChanged: "ChatListEvent",
    frames.ChatRemoved: "ChatListRemoved",
    frames.SpendWarning: "SpendWarningEvent",
}
SENT_FRAMES = {frames.Subscribe, frames.Unsubscribe, frames.Ping}


class Described(Struct, frozen=True):
    """An operation as the document has it."""

    method: str
    path: str
    description: Json

    @property
    def parameters(self) -> dict[str, Json]:
        given = self.description.get("parameters", ())
        return {one["name"]: one["schema"] for one in given if one["in"] == "query"}

    @property
    def reply(self) -> Json | None:
        """Its schema, if it is JSON."""
        replies = self.description["responses"]
        content = next(replies[code].get("content", {}) for code in sorted(replies) if code < "3")
        return content.get("application/json", {}).get("schema")


@pytest.fixture(scope="module")
def document() -> Json:
    return msgspec.json.decode(openapi_document())


@pytest.fixture(scope="module")
def schemas(document: Json) -> dict[str, Json]:
    return document["components"]["schemas"]


@pytest.fixture(scope="module")
def operations(document: Json) -> dict[str, Described]:
    return {
        operation["operationId"]: Described(method.upper(), path.removeprefix("/api/v1"), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


@pytest.fixture
async def api() -> Any:
    async with ClientSession() as http:
        yield ServerApi(ServerAddress(url="http://chatd.test", token=""), http)


def methods_of_client() -> set[str]:
    """Those that give a call or a download: nothing is sent before that is awaited."""
    found = inspect.getmembers(ServerApi, inspect.isfunction)
    replies = {name: inspect.signature(method).return_annotation for name, method in found}
    kinds = {name: get_origin(reply) or reply for name, reply in replies.items()}
    public = {name: kind for name, kind in kinds.items() if not name.startswith("_")}
    return {name for name, kind in public.items() if kind in (Call, ListCall, Download)}


def test_every_method_is_compared() -> None:
    assert methods_of_client() == set(ASKED)


def test_every_operation_has_a_method_or_a_reason_for_none(
    operations: dict[str, Described],
) -> None:
    prefixes = tuple(prefix for group in NOT_CALLED.values() for prefix in group)
    left = {name: one.path for name, one in operations.items() if name not in ASKED}
    assert [name for name, path in left.items() if not path.startswith(prefixes)] == []
    assert [one for one in prefixes if not any(p.startswith(one) for p in left.values())] == []


@pytest.mark.parametrize("name", ASKED)
async def test_an_operation_is_called_as_it_is_described(
    name: str, api: ServerApi, operations: dict[str, Described], schemas: dict[str, Json]
) -> None:
    asked, described = ASKED[name](api).operation, operations[name]
    assert asked.method == described.method
    assert fits(asked.path, described.path)
    assert {one for one, _ in asked.query} <= set(described.parameters)
    for one, value in asked.query:
        check(value, described.parameters[one], schemas)
    headers = {one["name"] for one in described.description.get("parameters", ())}
    assert (asked.key is not None) == ("Idempotency-Key" in headers)
    content = described.description.get("requestBody", {}).get("content", {})
    if asked.file is not None:
        assert asked.file.media_type in content
    else:
        assert (asked.body is not None) == bool(content)
    if asked.body is not None:
        body, schema = msgspec.json.decode(asked.body), content["application/json"]["schema"]
        check(body, schema, schemas)
        assert unknown_fields(body, schema, schemas) == []


@pytest.mark.parametrize("name", ASKED)
async def test_a_reply_is_read_as_it_is_described(
    name: str, api: ServerApi, operations: dict[str, Described], schemas: dict[str, Json]
) -> None:
    call, schema = ASKED[name](api), operations[name].reply
    if isinstance(call, Download) or call.reply is type(None):
        return
    assert schema is not None
    assert list(strange_fields(call.reply, schema, schemas)) == []
    example = msgspec.json.encode(build_example(schema, schemas))
    msgspec.json.decode(example, type=call.reply)
    required = {(one.__name__, field) for one in structs_in(call.reply) for field in needed(one)}
    allowed = {"id", "chat_id", "user", "items"}
    assert {one for one in required if one[1] not in allowed} <= NEEDED, (
        "a server of another version is understood"
    )


NEEDED = {("ToolRule", "action"), ("ToolRule", "tool")}
"""A policy is read as a whole or not at all."""


@pytest.mark.parametrize("struct", FRAMES, ids=lambda struct: struct.__name__)
def test_a_frame_is_as_it_is_described(struct: type[Struct], schemas: dict[str, Json]) -> None:
    schema = schemas[FRAMES[struct]]
    assert list(strange_fields(struct, schema, schemas)) == []
    if struct not in SENT_FRAMES:
        example = msgspec.json.encode(build_example(schema, schemas))
        assert isinstance(msgspec.json.decode(example, type=struct), struct)


def test_a_quoted_file_is_sent_as_it_is_described(schemas: dict[str, Json]) -> None:
    quoted = drafts.FileReferenceInput(file_name="a", start_line=1, end_line=2, content="b")
    check(msgspec.to_builtins(quoted), schemas["InputFileReference"], schemas)


def fits(path: str, template: str) -> bool:
    pieces, wanted = path.split("/"), template.split("/")
    return len(pieces) == len(wanted) and all(
        want.startswith("{") or piece == want for piece, want in zip(pieces, wanted, strict=True)
    )


def check(value: object, schema: Json, schemas: dict[str, Json]) -> None:
    whole = {**schema, "components": {"schemas": schemas}}
    jsonschema.validate(msgspec.to_builtins(value), whole)


def resolve(schema: Any, schemas: dict[str, Json]) -> list[Json]:
    """What a value may be, without references."""
    if isinstance(schema, bool):
        return []
    if "$ref" in schema:
        return resolve(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    branches = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [one for branch in branches for one in resolve(branch, schemas)] or [schema]


def unknown_fields(value: object, schema: Json, schemas: dict[str, Json]) -> list[str]:
    """Fields of a body that the operation does not take."""
    if isinstance(value, list):
        items = [one["items"] for one in resolve(schema, schemas) if "items" in one]
        found = [
            unknown_fields(one, item, schemas)
            for one in cast("list[object]", value)
            for item in items
        ]
        return [one for fields in found for one in fields]
    if not isinstance(value, dict):
        return []
    branches = [one for one in resolve(schema, schemas) if "properties" in one]
    known = {name for one in branches for name in one["properties"]}
    return [name for name in cast("Json", value) if branches and name not in known]


def structs_in(found: object) -> Iterator[type[Struct]]:
    """The structs that a type is made of."""
    if get_origin(found) is not None and not (
        isinstance(get_origin(found), type) and issubclass(cast("type", get_origin(found)), Struct)
    ):
        for one in get_args(found):
            yield from structs_in(one)
    elif get_origin(found) is not None or (isinstance(found, type) and issubclass(found, Struct)):
        struct = cast("type[Struct]", found)
        yield struct
        for field in msgspec.structs.fields(struct):
            yield from structs_in(field.type)


def needed(struct: type[Struct]) -> list[str]:
    return [one.name for one in msgspec.structs.fields(struct) if one.required]


def strange_fields(found: object, schema: Json, schemas: dict[str, Json]) -> Iterator[str]:
    """Fields of a struct, and of the structs in it, that the description does not have."""
    origin, branches = get_origin(found), resolve(schema, schemas)
    if origin in (Union, UnionType):
        for one in get_args(found):
            yield from strange_fields(one, schema, schemas)
    elif origin is tuple:
        for branch in branches:
            if "items" in branch:
                yield from strange_fields(get_args(found)[0], branch["items"], schemas)
    elif is_struct(found):
        objects = [one for one in branches if "properties" in one]
        known = {name: part for one in objects for name, part in one["properties"].items()}
        for field in msgspec.structs.fields(cast("type[Struct]", found)):
            if field.encode_name not in known:
                yield f"{found}.{field.encode_name}"
            elif field.type is not Raw:
                yield from strange_fields(field.type, known[field.encode_name], schemas)


def is_struct(found: object) -> bool:
    kind = get_origin(found) or found
    return isinstance(kind, type) and issubclass(kind, Struct)


OUTSIDE = ("cli", "terminal")
"""Packages that call the server by the client's methods only."""


def strings_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def modules_outside() -> list[Path]:
    return [path for package in OUTSIDE for path in (SOURCE / package).rglob("*.py")]


def test_no_path_of_the_api_is_written_outside_the_client(operations: dict[str, Described]) -> None:
    """Neither whole nor as the beginning of a formatted text."""
    firsts = {one.path.split("/")[1] for one in operations.values()}
    begins = tuple(f"/{name}/" for name in firsts)
    whole = {f"/{name}" for name in firsts} - {"/events"}
    found = [
        f"{path.name}: {text}"
        for path in modules_outside()
        for text in strings_of(ast.parse(path.read_text()))
        if "/api/" in text or text in whole or text.startswith(begins)
    ]
    assert [one for one in found if not one.endswith(": /settings/connections")] == []


def test_every_call_of_an_operation_is_awaited() -> None:
    """A call that nobody awaits is never sent, and nothing else would say so."""
    forgotten = [
        f"{path.name}:{node.lineno}"
        for path in (*modules_outside(), *(SOURCE / "client").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in ASKED
        and ast.unparse(node.value.func.value).endswith("api")
    ]
    assert forgotten == []
