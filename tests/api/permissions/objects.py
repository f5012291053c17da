"""Objects that the path of a row names, of any owner."""

from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from chatd.domain.answer.answer import Answer
from chatd.domain.answer.debug_calls import build_document
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.states import State
from chatd.domain.ids import ChatId, UserId
from chatd.domain.model.protocol import ModelRequest
from chatd.store.model import model_calls
from chatd.store.workspace import workspaces
from tests.api.permissions.callers import Callers
from tests.api.permissions.table import (
    GIT_CREDENTIAL,
    HOOK,
    HOST_CREDENTIAL,
    LIMIT,
    MCP_SERVER,
    NOTE,
    PROJECT,
    REPOSITORY_CONNECTION,
    SCHEDULE,
    SKILL,
    SLACK_CONNECTION,
    SUBSCRIPTION,
    TEMPLATE_CONFIG,
    WEBHOOK,
    Row,
)
from tests.api.workspace_api import HERE
from tests.support.api.server import ApiServer, Json
from tests.support.debug_calls import debug_call
from tests.support.factories import HARNESS
from tests.support.runners import insert_runner, own_runner
from tests.support.seeds import Seed
from tests.support.store import chat_id, copy, insert_seed
from tests.support.workspaces import TEMPLATE, insert_template, new_workspace

DELETIONS: Final[Mapping[str, str]] = {
    "chat_id": "/chats/{chat_id}",
    "group_id": "/groups/{group_id}",
    "mcp_server_id": "/mcp-server-configs/{mcp_server_id}",
    "model_id": "/models/{model_id}",
    "provider_id": "/providers/{provider_id}",
    "public_link_id": "/public-links/{public_link_id}",
    "project_id": "/projects/{project_id}",
    "runner_id": "/runners/{runner_id}",
    "runner_token_id": "/runner-tokens/{runner_token_id}",
    "schedule_id": "/schedules/{schedule_id}",
    "skill_id": "/skills/{skill_id}",
    "note_id": "/memory/notes/{note_id}",
    "credential_id": "/git-credentials/{credential_id}",
    "host_credential_id": "/host-credentials/{host_credential_id}",
    "shared_credential_id": "/host-credential-configs/{shared_credential_id}",
    "hook_id": "/hooks/{hook_id}",
    "connection_id": "/repository-connections/{connection_id}",
    "slack_id": "/slack-connections/{slack_id}",
    "slack_link_id": "/slack-links/{slack_link_id}",
    "session_id": "/auth/sessions/{session_id}",
    "subscription_id": "/push/subscriptions/{subscription_id}",
    "user_id": "/users/{user_id}",
    "token_id": "/auth/tokens/{token_id}",
    "webhook_id": "/webhooks/{webhook_id}",
    "key_id": "/user-keys/{key_id}",
}
"""How objects are deleted that a path names; the first of the path counts."""
SEEDED: Final = (State.W, State.R0, State.R1, State.A0, State.E1)

_JOIN_PROJECT: Final = """
    INSERT INTO project_members (project_id, user_id, role) VALUES ($1, $2, 'reader')"""
Objects = dict[str, str]
Make = Callable[[Objects, str, Row], Awaitable[str]]


class ObjectFactory:
    def __init__(self, server: ApiServer, callers: Callers) -> None:
        self._server = server
        self._pool = server.replica.pool
        self._callers = callers
        self._numbers = count(1000)
        self.provider_name = ""
        self.repository_template = ""
        self._makers: Mapping[str, Make] = {
            "chat_id": self._chat,
            "message_id": _constant("2"),
            "queue_id": _constant("1"),
            "debug_run_id": self._debug_run,
            "file_id": self._file,
            "link": self._link,
            "public_link_id": self._public_link,
            "workspace_id": self._workspace,
            "build_id": self._build,
            "template_id": self._template,
            "version_id": self._version,
            "runner_id": self._runner,
            "runner_token_id": self._runner_token,
            "user_id": self._user,
            "group_id": self._group,
            "session_id": self._session,
            "token_id": self._token,
            "webhook_id": self._webhook,
            "schedule_id": self._schedule,
            "project_id": self._project,
            "skill_id": self._skill,
            "note_id": self._note,
            "credential_id": self._git_credential,
            "host_credential_id": self._host_credential,
            "shared_credential_id": self._shared_credential,
            "hook_id": self._hook,
            "connection_id": self._repository_connection,
            "slack_id": self._slack_connection,
            "slack_link_id": self._slack_link,
            "subscription_id": self._subscription,
            "provider_id": self._provider,
            "mcp_server_id": self._mcp_server,
            "model_id": self._model,
            "key_id": self._key,
        }

    async def prepare(self) -> None:
        """A chat of each state, to be copied; a template, a provider and a model."""
        await insert_template(self._pool)
        await self._administer("PATCH", "/settings", {"public_links": True})
        for number, state in enumerate(SEEDED, 1):
            await insert_seed(self._pool, Seed(state=state, chat_id=chat_id(number)))
        template = {
            "name": "repositories",
            "spec": {"network": "allow", "allow": ["private:127.0.0.1:9"]},
            "parameters": [{"name": "repository"}],
        }
        made = await self._administer("POST", "/template-configs", template)
        self.repository_template = str(made["id"])
        made = await self._administer("POST", "/providers", self._new_provider())
        self.provider_name = str(made["name"])
        await self._administer("POST", "/models", {**self._new_model(), "is_default": True})

    async def make(self, row: Row, owner: str) -> Objects:
        made: Objects = {}
        for name in row.parameters:
            made[name] = await self._makers[name](made, owner, row)
        return made

    async def delete(self, row: Row, made: Objects) -> bool:
        """False if the API cannot delete it alone."""
        if row.path.startswith("/template-configs/"):
            path = f"/template-configs/{made['template_id']}"
            await self._ask(row.allowed, "DELETE", path, None)
            return True
        for name in row.parameters:
            if name in DELETIONS and row.rule not in ("costs", "any role", "public"):
                await self._ask(row.allowed, "DELETE", DELETIONS[name].format(**made), None)
                return True
        return False

    def fill(self, body: object) -> object:
        """With new and existing names where they are needed."""
        if not isinstance(body, dict):
            return body
        text = msgspec.json.encode(body).decode()
        text = text.replace("{n}", str(self._number())).replace("{provider}", self.provider_name)
        text = text.replace("{repository_template}", self.repository_template)
        return msgspec.json.decode(text.replace("{viewer}", str(self._callers.users["viewer"])))

    def _number(self) -> int:
        return next(self._numbers)

    async def _administer(self, method: str, path: str, body: object = None) -> Json:
        return await self._callers.administer(method, path, body)

    async def _ask(self, owner: str, method: str, path: str, body: object) -> Json:
        return await self._callers.ask(self._callers.tokens[owner], method, path, body)

    # Chats and files

    async def _chat(self, made: Objects, owner: str, row: Row) -> str:
        """Shared with the reader, if it is the owner's."""
        chat, user = chat_id(self._number()), self._callers.users[owner]
        await copy(self._pool, chat_id(SEEDED.index(row.state) + 1), [chat])
        await self._pool.execute("UPDATE chats SET owner_id = $2 WHERE id = $1", chat, user)
        if owner == "owner":
            reader = self._callers.users["reader"]
            statement = "INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)"
            await self._pool.execute(statement, chat, reader)
        return str(chat)

    async def _debug_run(self, made: Objects, owner: str, row: Row) -> str:
        answer = Answer(content=(TextPart(text="yes"),))
        call = debug_call(ModelRequest(model="m", messages=()), answer, number=self._number())
        call = replace(call, chat_id=ChatId(UUID(made["chat_id"])))
        await model_calls.insert_debug_call(self._pool, call, build_document(call))
        return str(call.id)

    async def _file(self, made: Objects, owner: str, row: Row) -> str:
        """In a chat that is shared with the reader, if it is the owner's."""
        file = await self._ask(owner, "POST", "/files", f"words {self._number()}".encode())
        chat = UUID(await self._chat({}, owner, row))
        statement = "INSERT INTO chat_files (chat_id, file_id) VALUES ($1, $2)"
        await self._pool.execute(statement, chat, UUID(str(file["id"])))
        if "project_id" in made:
            body = {"file_id": str(file["id"]), "name": "words.txt"}
            await self._ask(owner, "POST", f"/projects/{made['project_id']}/files", body)
        return str(file["id"])

    async def _link(self, made: Objects, owner: str, row: Row) -> str:
        made_url = await self._ask(owner, "POST", f"/files/{made['file_id']}/download-url", None)
        return str(made_url["url"]).partition("token=")[2]

    async def _public_link(self, made: Objects, owner: str, row: Row) -> str:
        path = f"/chats/{await self._chat(made, owner, row)}/public-links"
        return str((await self._ask(owner, "POST", path, {"days": 7}))["id"])

    # Workspaces

    async def _workspace(self, made: Objects, owner: str, row: Row) -> str:
        """Its first build has ended, so that the next one can be requested."""
        build = await self._build(made, owner, row)
        return str(
            await self._pool.fetchval(
                "UPDATE workspace_builds SET status = 'succeeded', completed_at = now()"
                " WHERE id = $1 RETURNING workspace_id",
                UUID(build),
            )
        )

    async def _build(self, made: Objects, owner: str, row: Row) -> str:
        user = self._callers.users[owner]
        new = new_workspace(self._number(), owner_id=user, host_id=HERE)
        await workspaces.create(self._pool, HARNESS, new)
        return str(new.build_id)

    async def _template(self, made: Objects, owner: str, row: Row) -> str:
        """One of its own where it is administered."""
        if not row.path.startswith("/template-configs"):
            return str(TEMPLATE)
        body = self.fill(TEMPLATE_CONFIG)
        return str((await self._administer("POST", "/template-configs", body))["id"])

    async def _version(self, made: Objects, owner: str, row: Row) -> str:
        found = await self._administer("GET", f"/template-configs/{made['template_id']}")
        return str(found["active_version_id"])

    async def _runner(self, made: Objects, owner: str, row: Row) -> str:
        """One that the user has started, and that is not connected."""
        of_user = own_runner(f"runner-{self._number()}", self._callers.users[owner])
        return await insert_runner(self._pool, of_user, connected=False)

    async def _runner_token(self, made: Objects, owner: str, row: Row) -> str:
        return str((await self._administer("POST", "/runner-tokens", {"pool": "build"}))["id"])

    # Accounts

    async def _user(self, made: Objects, owner: str, row: Row) -> str:
        """The owner, so that users ask for themselves too; one more if it is changed."""
        if row.rule == "costs":
            return str(self._callers.users[owner])
        user = await self._administer("POST", "/users", {"username": f"user-{self._number()}"})
        if row.method == "DELETE" and "group_id" in made:
            await self._administer("PUT", f"/groups/{made['group_id']}/members/{user['id']}")
        if row.method == "DELETE" and "project_id" in made:
            statement = _JOIN_PROJECT
            await self._pool.execute(statement, UUID(made["project_id"]), UUID(str(user["id"])))
        await self._limit(row, f"/usage-limits/overrides/{user['id']}")
        return str(user["id"])

    async def _group(self, made: Objects, owner: str, row: Row) -> str:
        group = await self._administer("POST", "/groups", {"name": f"group-{self._number()}"})
        await self._limit(row, f"/usage-limits/group-overrides/{group['id']}")
        return str(group["id"])

    async def _limit(self, row: Row, path: str) -> None:
        if row.method == "DELETE" and row.path.startswith("/usage-limits/"):
            await self._administer("PUT", path, LIMIT)

    async def _session(self, made: Objects, owner: str, row: Row) -> str:
        # A service account has no sessions: it asks for one of its tokens.
        kind = "token" if owner == "service" else "session"
        return str(await self._callers.add_credential(self._callers.users[owner], kind))

    async def _token(self, made: Objects, owner: str, row: Row) -> str:
        user = UserId(UUID(made.get("user_id") or str(self._callers.users[owner])))
        return str(await self._callers.add_credential(user, "token"))

    async def _webhook(self, made: Objects, owner: str, row: Row) -> str:
        reply = await self._ask(owner, "POST", "/webhooks", WEBHOOK)
        return str(msgspec.convert(reply["webhook"], Json)["id"])

    async def _schedule(self, made: Objects, owner: str, row: Row) -> str:
        return str((await self._ask(owner, "POST", "/schedules", SCHEDULE))["id"])

    async def _git_credential(self, made: Objects, owner: str, row: Row) -> str:
        body = self.fill(GIT_CREDENTIAL)
        return str((await self._ask(owner, "POST", "/git-credentials", body))["id"])

    async def _host_credential(self, made: Objects, owner: str, row: Row) -> str:
        body = self.fill(HOST_CREDENTIAL)
        return str((await self._ask(owner, "POST", "/host-credentials", body))["id"])

    async def _hook(self, made: Objects, owner: str, row: Row) -> str:
        return str((await self._ask("admin", "POST", "/hooks", self.fill(HOOK)))["id"])

    async def _repository_connection(self, made: Objects, owner: str, row: Row) -> str:
        body = self.fill(REPOSITORY_CONNECTION)
        return str((await self._ask("admin", "POST", "/repository-connections", body))["id"])

    async def _slack_connection(self, made: Objects, owner: str, row: Row) -> str:
        body = self.fill(SLACK_CONNECTION)
        return str((await self._ask("admin", "POST", "/slack-connections", body))["id"])

    async def _slack_link(self, made: Objects, owner: str, row: Row) -> str:
        """As if the owner had sent a code to the bot."""
        connection = await self._slack_connection(made, owner, row)
        link_id = UUID(int=self._number())
        await self._pool.execute(
            "INSERT INTO slack_links (id, connection_id, slack_user, user_id)"
            " VALUES ($1, $2, $3, $4)",
            *(link_id, UUID(connection), f"U{link_id.int}", self._callers.users[owner]),
        )
        return str(link_id)

    async def _shared_credential(self, made: Objects, owner: str, row: Row) -> str:
        body = self.fill(HOST_CREDENTIAL)
        return str((await self._ask("admin", "POST", "/host-credential-configs", body))["id"])

    async def _project(self, made: Objects, owner: str, row: Row) -> str:
        """The reader belongs to it, if it is the owner's."""
        project = str((await self._ask(owner, "POST", "/projects", self.fill(PROJECT)))["id"])
        if owner == "owner":
            statement = _JOIN_PROJECT
            await self._pool.execute(statement, UUID(project), self._callers.users["reader"])
        return project

    async def _skill(self, made: Objects, owner: str, row: Row) -> str:
        return str((await self._ask(owner, "POST", "/skills", self.fill(SKILL)))["id"])

    async def _note(self, made: Objects, owner: str, row: Row) -> str:
        return str((await self._ask(owner, "POST", "/memory/notes", self.fill(NOTE)))["id"])

    async def _subscription(self, made: Objects, owner: str, row: Row) -> str:
        body = self.fill(SUBSCRIPTION)
        return str((await self._ask(owner, "POST", "/push/subscriptions", body))["id"])

    # Models

    async def _mcp_server(self, made: Objects, owner: str, row: Row) -> str:
        body = {**MCP_SERVER, "slug": f"mcp-{self._number()}"}
        return str((await self._administer("POST", "/mcp-server-configs", body))["id"])

    async def _provider(self, made: Objects, owner: str, row: Row) -> str:
        return str((await self._administer("POST", "/providers", self._new_provider()))["id"])

    async def _model(self, made: Objects, owner: str, row: Row) -> str:
        return str((await self._administer("POST", "/models", self._new_model()))["id"])

    async def _key(self, made: Objects, owner: str, row: Row) -> str:
        """Of the provider, or the user's own."""
        if "provider_id" in made:
            path = f"/providers/{made['provider_id']}/keys"
            return str((await self._administer("POST", path, {"api_key": "sk-of-all"}))["id"])
        body = {"provider": self.provider_name, "api_key": "sk-of-one-user"}
        reply = await self._ask(owner, "POST", "/user-keys", body)
        return str(msgspec.convert(reply["key"], Json)["id"])

    def _new_provider(self) -> Json:
        nowhere = "http://127.0.0.1:1/v1"
        name = f"provider-{self._number()}"
        return {"name": name, "kind": "openai-compat", "base_url": nowhere, "user_keys": True}

    def _new_model(self) -> Json:
        name = f"model-{self._number()}"
        return {"name": name, "provider": self.provider_name, "model": "m"}


def _constant(value: str) -> Make:
    async def give(_made: Objects, _owner: str, _row: Row) -> str:
        return value

    return give
