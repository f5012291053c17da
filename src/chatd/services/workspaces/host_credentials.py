"""Credentials of hosts: what users and administrators do with them, and how they reach the proxies.

A replica gives each runner that it reaches the credentials for the workspaces that run there, and
only those for hosts that their templates allow. Runners keep them in memory for some minutes, so
the replica gives them again and again; a change is given at once. A runner that a user has started
gets that user's own credentials only: the user could read the others from its memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from chatd.aio import InterruptibleSleep, run_contained
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.repositories import host_of
from chatd.domain.description import describe
from chatd.domain.errors import ChatdError, InvalidInput
from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import GitSeed, TemplateSpec
from chatd.domain.workspace.host_credentials import (
    HTTPS_PORT,
    MAX_PATH_CHARS,
    MAX_SECRET_CHARS,
    MIN_SECRET_CHARS,
    CredentialScheme,
    CredentialScope,
    HostCredential,
    find_problem,
    git_credential,
    make_credential,
    normal_path,
    repository_credentials,
)
from chatd.domain.workspace.network import HostRule, NetworkTarget, find_rule, normal_host
from chatd.git_hosts.host_api import HostCallFailed
from chatd.git_hosts.host_apis import HostApis
from chatd.sealed_secrets import KeyRing, SecretUnreadable
from chatd.store.account import git_credentials, host_credentials
from chatd.store.account.audit import ChangeAuthor
from chatd.store.account.host_credentials import (
    SECRET,
    NewStoredCredential,
    ProxiedWorkspace,
    StoredCredential,
)
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool
from chatd.store.deployment import repositories, repository_work
from chatd.store.deployment.repository_work import RepositoryAccess
from chatd.workspaces.network.workspace_networks import clone_rules, policy_rules
from chatd.workspaces.tunnels.wire import NetworkGrant

DELIVERY_INTERVAL_S: Final = 60.0
"""How often each runner gets its credentials again. It keeps them for five times as long."""
MAX_GRANT_BYTES: Final = 1024 * 1024
"""Of one message to a runner."""
APP_TOKENS_TIMEOUT_S: Final = 10.0
"""For all tokens of one delivery that GitHub makes for Apps. Those that are late come with the
next one."""
MAX_TOKENS_AT_ONCE: Final = 8
APP_REST_S: Final = 120.0
"""GitHub is not asked again for a repository within this time after it refused."""
_OTHER_CHANGES: Final = ("user", "group")
"""A user was deactivated, or left a group."""

Header = Annotated[str, Meta(max_length=64)]


class NewHostCredentialBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A credential for a host. It replaces the former one for the same host, port and path."""

    host: Annotated[
        Annotated[str, Meta(min_length=1, max_length=253)],
        describe("The host, without wildcards.", "registry.example.org"),
    ]
    secret: Annotated[
        Annotated[
            str,
            Meta(min_length=MIN_SECRET_CHARS, max_length=MAX_SECRET_CHARS, pattern=r"^[!-~]+$"),
        ],
        describe("The token or password. It is never shown again.", "npm_A1b2C3d4E5"),
    ]
    scheme: Annotated[
        CredentialScheme,
        describe(
            "How requests carry it: `Authorization: Bearer`, `Authorization: Basic` with"
            " `username`, or as the value of `header`.",
            "bearer",
        ),
    ] = "bearer"
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65_535)], describe("Its port. Always with TLS.", HTTPS_PORT)
    ] = HTTPS_PORT
    path: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_PATH_CHARS)],
        describe("Only requests for this path and all below it get it.", "/team"),
    ] = "/"
    header: Annotated[
        Header, describe("The name of the header, with the scheme `header`.", "PRIVATE-TOKEN")
    ] = ""
    username: Annotated[
        Annotated[str, Meta(max_length=200)], describe("With the scheme `basic`.", "ada")
    ] = ""

    def __repr__(self) -> str:
        """Without the secret."""
        return f"{type(self).__name__}(host={self.host!r})"


class NewSharedCredentialBody(NewHostCredentialBody, frozen=True, kw_only=True):
    """A credential for the workspaces of all users, or of the members of a group."""

    group: Annotated[
        Annotated[str, Meta(max_length=200)],
        describe("The name of a group. Empty: for all users.", "data"),
    ] = ""

    def __repr__(self) -> str:
        return f"NewSharedCredentialBody(host={self.host!r})"


class HostCredentials:
    """What users and administrators do with them."""

    def __init__(self, pool: Pool, ring: KeyRing, env: Env) -> None:
        self._pool = pool
        self._ring = ring
        self._env = env

    async def save_own(self, by: ChangeAuthor, body: NewHostCredentialBody) -> StoredCredential:
        """Raises InvalidInput, Conflict, SecretKeyMissing."""
        return await self._save(by, self._checked(body, is_own=True))

    async def save_shared(
        self, by: ChangeAuthor, body: NewSharedCredentialBody
    ) -> StoredCredential:
        """Raises Forbidden, InvalidInput, Conflict, SecretKeyMissing."""
        new = self._checked(body, is_own=False)
        return await self._save(by, msgspec.structs.replace(new, group=body.group.strip()))

    async def delete_own(self, by: ChangeAuthor, credential_id: UUID) -> None:
        """Raises Forbidden, NotFound."""
        async with self._pool.transaction() as session:
            await host_credentials.delete_own(session, by.actor, credential_id, ip=by.ip)

    async def delete_shared(self, by: ChangeAuthor, credential_id: UUID) -> None:
        """Raises Forbidden, NotFound."""
        async with self._pool.transaction() as session:
            await host_credentials.delete_shared(session, by.actor, credential_id, ip=by.ip)

    async def _save(self, by: ChangeAuthor, new: NewStoredCredential) -> StoredCredential:
        async with self._pool.transaction() as session:
            return await host_credentials.save(session, by.actor, new, ip=by.ip)

    def _checked(self, body: NewHostCredentialBody, *, is_own: bool) -> NewStoredCredential:
        try:
            host = normal_host(body.host.strip())
        except ValueError as error:
            raise InvalidInput("host", str(error)) from None
        try:
            path = normal_path(body.path)
        except ValueError as error:
            raise InvalidInput("path", str(error)) from None
        problem = find_problem(
            scheme=body.scheme, header=body.header, username=body.username, secret=body.secret
        )
        if problem is not None:
            raise InvalidInput(*problem)
        credential_id = self._env.new_id()
        return NewStoredCredential(
            id=credential_id,
            is_own=is_own,
            host=host,
            port=body.port,
            path=path,
            scheme=body.scheme,
            header=body.header,
            username=body.username,
            sealed_secret=self._ring.seal(body.secret, SECRET.context(credential_id)),
        )


# What workspaces use


def is_reachable(rules: Sequence[HostRule], host: str, port: int) -> bool:
    return find_rule(rules, NetworkTarget(host=host, port=port)) is not None


class CredentialedHost(Struct, frozen=True, kw_only=True):
    """A host to whose requests a proxy adds a credential."""

    host: Annotated[str, describe("The host.", "git.example.com")]
    port: Annotated[int, describe("Its port.", HTTPS_PORT)]
    path: Annotated[str, describe("The path, with all below it, that gets it.", "/")]
    scope: Annotated[CredentialScope, describe("Whose credential it is.", "user")]
    group: Annotated[str | None, describe("The name of its group.", "data")] = None
    git_only: Annotated[
        bool, describe("Whether only the requests of git get it: it is a token for a git host.")
    ] = False


async def list_credentialed_hosts(
    conn: Conn, owner: UserId, allow: Sequence[str], *, is_own_runner: bool
) -> Sequence[CredentialedHost]:
    """Of a workspace with this owner whose template allows these hosts, in the order in which they
    count."""
    _, usable = await host_credentials.list_usable(conn, [owner])
    stored = [each for each, users in usable if users or each.scope == "deployment"]
    own = [each for each in stored if each.scope == "user"]
    shared = [] if is_own_runner else [each for each in stored if each.scope != "user"]
    tokens = await host_credentials.list_git_tokens(conn, [owner])
    found = [*map(_shown, own)]
    for token in tokens:
        name, _, port = token.host.partition(":")
        found.append(
            CredentialedHost(
                host=name, port=int(port or HTTPS_PORT), path="/", scope="user", git_only=True
            )
        )
    found += map(_shown, shared)
    rules = policy_rules(tuple(allow)).rules
    return [each for each in found if is_reachable(rules, each.host, each.port)]


def _shown(stored: StoredCredential) -> CredentialedHost:
    return CredentialedHost(
        host=stored.host,
        port=stored.port,
        path=stored.path,
        scope=stored.scope,
        group=stored.group_name,
    )


class _Opened(Struct, frozen=True, kw_only=True):
    """Of one user."""

    own: list[HostCredential]
    of_groups: list[HostCredential]


class _Usable(Struct, frozen=True, kw_only=True):
    """What the workspaces of some users may use. `of_deployment` are for all of them, and may be
    many: what of them a template allows is looked up once for each `allow`."""

    users: Mapping[UserId, _Opened]
    of_deployment: tuple[HostCredential, ...]
    reachable: dict[tuple[str, ...], tuple[HostCredential, ...]]

    def chosen(
        self, owner: UserId, allow: tuple[str, ...], rules: Sequence[HostRule], *, only_own: bool
    ) -> tuple[HostCredential, ...]:
        """For a workspace that reaches what `rules` allow; `allow` names them. The first one for a
        host counts."""
        opened = self.users.get(owner)
        if opened is None:
            return ()
        first = opened.own if only_own else (*opened.own, *opened.of_groups)
        found = tuple(each for each in first if is_reachable(rules, each.host, each.port))
        if only_own:
            return found
        if allow not in self.reachable:
            self.reachable[allow] = tuple(
                each for each in self.of_deployment if is_reachable(rules, each.host, each.port)
            )
        return (*found, *self.reachable[allow])


class _Reader:
    """Opens what the workspaces of some users may use, each sealed text once for all of them."""

    def __init__(self, conn: Conn, ring: KeyRing, env: Env, apis: HostApis) -> None:
        self._conn = conn
        self._ring = ring
        self._env = env
        self._apis = apis
        self._rests: dict[tuple[UUID, str], float] = {}

    async def read(self, users: Sequence[UserId]) -> _Usable:
        active, usable = await host_credentials.list_usable(self._conn, users)
        tokens = await host_credentials.list_git_tokens(self._conn, active)
        found = {user_id: _Opened(own=[], of_groups=[]) for user_id in active}
        of_deployment: list[HostCredential] = []
        for stored, users_of in usable:
            if (credential := self._open(stored)) is None:
                continue
            if stored.scope == "deployment":
                of_deployment.append(credential)
            for user_id in users_of:
                opened = found[user_id]
                (opened.own if stored.scope == "user" else opened.of_groups).append(credential)
        for token in tokens:
            text = self._open_text(token.sealed_token, git_credentials.TOKEN.context(token.id))
            credential = None if text is None else git_credential(token.host, token.kind, text)
            if credential is not None and token.owner_id in found:
                found[token.owner_id].own.append(credential)
        return _Usable(users=found, of_deployment=tuple(of_deployment), reachable={})

    async def read_repositories(
        self, workspaces: Sequence[WorkspaceId]
    ) -> Mapping[WorkspaceId, tuple[HostCredential, ...]]:
        """For the workspaces of chats that a connection to a repository started: its token, for
        git and that repository only. A GitHub that does not answer for an App holds this up for a
        limited time."""
        listed = await repository_work.list_workspace_access(self._conn, workspaces)
        found: dict[WorkspaceId, tuple[HostCredential, ...]] = {}
        # Tokens that are at hand come first: they wait for nobody.
        waiting = iter(sorted(listed, key=lambda each: each.access.app_id is not None))

        async def find_some() -> None:
            for each in waiting:
                text = await self._find_token(each)
                if text is not None and each.workspace_id is not None:
                    url, vendor = each.access.url, each.access.vendor
                    made = repository_credentials(url, each.repository, vendor, text)
                    found[each.workspace_id] = (*found.get(each.workspace_id, ()), *made)

        with suppress(TimeoutError):
            async with asyncio.timeout(APP_TOKENS_TIMEOUT_S), asyncio.TaskGroup() as group:
                for _ in range(min(MAX_TOKENS_AT_ONCE, len(listed))):
                    group.create_task(find_some())
        return found

    async def _find_token(self, given: RepositoryAccess) -> str | None:
        """None, and no request for a while, if the host refuses it."""
        place = (given.access.id, given.repository.lower())
        now_s = self._env.clock.monotonic()
        self._rests = {key: until for key, until in self._rests.items() if until > now_s}
        if place in self._rests:
            return None
        try:
            return await self._apis.token(given.access, given.repository, "git")
        except SecretUnreadable as error:
            self._env.emit("host_credential_unreadable", error_kind=error.code)
        except HostCallFailed as error:
            self._rests[place] = now_s + APP_REST_S
            self._env.emit(
                "git_host_failed",
                connection_id=given.access.id,
                host=host_of(given.access.url),
                reason=error.reason,
            )
            if error.reason == "refused":
                with suppress(ChatdError):
                    await repositories.set_problem(self._conn, given.access.id, error.message)
        return None

    def _open(self, stored: StoredCredential) -> HostCredential | None:
        secret = self._open_text(stored.sealed_secret, SECRET.context(stored.id))
        if secret is None:
            return None
        return make_credential(
            host=stored.host,
            port=stored.port,
            path=stored.path,
            scheme=stored.scheme,
            header=stored.header,
            username=stored.username,
            secret=secret,
        )

    def _open_text(self, sealed: str, context: str) -> str | None:
        try:
            return self._ring.open(sealed, context)
        except SecretUnreadable as error:
            self._env.emit("host_credential_unreadable", error_kind=error.code)
            return None


Receive = Callable[[Sequence[NetworkGrant]], Awaitable[None]]
"""Takes them to a runner, or to the proxies of this process. Raises ChatdError."""


class CredentialDelivery:
    """Gives credentials to the runners that this replica reaches."""

    def __init__(self, conn: Conn, ring: KeyRing, env: Env, apis: HostApis) -> None:
        self._conn = conn
        self._reader = _Reader(conn, ring, env, apis)
        self._env = env
        self._pause = InterruptibleSleep(env.clock)

    def wake(self) -> None:
        self._pause.wake()

    def on_config_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind in ("host_credential", *_OTHER_CHANGES):
            self.wake()

    async def for_build(
        self,
        workspace_id: WorkspaceId,
        owner: UserId,
        spec: TemplateSpec,
        *,
        is_own_runner: bool,
    ) -> Sequence[HostCredential]:
        """For the hosts that the template allows, and for that of its seed. Raises ChatdError."""
        seed = spec.seed if isinstance(spec.seed, GitSeed) else None
        if seed is None and spec.network != "allow":
            return ()
        rules = policy_rules(spec.allow) if seed is None else clone_rules(spec, seed)
        usable = await self._reader.read([owner])
        chosen = usable.chosen(owner, rules.allow, rules.rules, only_own=is_own_runner)
        if is_own_runner:
            return chosen
        of_repository = await self._reader.read_repositories([workspace_id])
        return (*_reachable(of_repository.get(workspace_id, ()), rules.rules), *chosen)

    async def deliver(self, receivers: Mapping[str, Receive]) -> None:
        """To each runner by itself: one that does not answer delays no other."""
        proxied = await host_credentials.list_proxied(self._conn, list(receivers))
        usable = await self._reader.read(list({each.owner_id for each in proxied}))
        shared = [each.id for each in proxied if not each.is_own_runner]
        of_repository = await self._reader.read_repositories(shared)
        async with asyncio.TaskGroup() as group:
            for runner_id, receive in receivers.items():
                mine = [each for each in proxied if each.host_id == runner_id]
                grants = [_grant(each, usable, of_repository.get(each.id, ())) for each in mine]
                group.create_task(self._deliver_to(runner_id, receive, grants))

    async def wait(self) -> None:
        """Until the next delivery is due."""
        await self._pause.sleep(DELIVERY_INTERVAL_S, "host_credentials")

    async def _deliver_to(
        self, runner_id: str, receive: Receive, grants: Sequence[NetworkGrant]
    ) -> None:
        def failed(error: Exception) -> None:
            kind = error.code if isinstance(error, ChatdError) else type(error).__name__
            self._env.emit("host_credentials_undelivered", runner_id=runner_id, error_kind=kind)

        async def give() -> None:
            for part in _parts(grants):
                await receive(part)

        await run_contained(give(), failed)


def _grant(
    workspace: ProxiedWorkspace, usable: _Usable, of_repository: Sequence[HostCredential]
) -> NetworkGrant:
    """The token for the repository of a workspace counts before all others."""
    allow, rules = workspace.allow, policy_rules(workspace.allow).rules
    chosen = usable.chosen(workspace.owner_id, allow, rules, only_own=workspace.is_own_runner)
    first = _reachable(of_repository, rules) if workspace.owner_id in usable.users else ()
    return NetworkGrant(workspace_id=str(workspace.id), credentials=(*first, *chosen))


def _reachable(
    credentials: Sequence[HostCredential], rules: Sequence[HostRule]
) -> tuple[HostCredential, ...]:
    return tuple(each for each in credentials if is_reachable(rules, each.host, each.port))


def _parts(grants: Sequence[NetworkGrant]) -> Sequence[Sequence[NetworkGrant]]:
    """Several messages, each of a limited size."""
    parts: list[list[NetworkGrant]] = []
    size = MAX_GRANT_BYTES
    for grant in grants:
        weight = 100 + sum(200 + 3 * len(each.value) for each in grant.credentials)
        if size + weight > MAX_GRANT_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(grant)
        size += weight
    return parts
