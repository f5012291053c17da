"""The proxies of the workspaces on this host, and what each workspace sees of its own.

`<data>/ws-network/<workspace>` has `policy.json` (what it may reach), `authority.pem` (the key and
the certificate with which TLS to hosts with a credential ends here), `lock` and the directory
`inside`, which the workspace sees read-only, with the socket, the certificates to trust and what
was refused: any replica reads that through the agent. Credentials are in memory only.

Workspaces outlive the process that built them: the process that holds a lock serves that workspace,
and if it dies another one of the same data directory, or the next one, takes over. The policy is
read from the file whenever it has changed.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from chatd import sealed_secrets
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Clock
from chatd.domain.workspace.entities import GitSeed, TemplateSpec
from chatd.domain.workspace.host_credentials import HostCredential
from chatd.domain.workspace.network import (
    ANY_PUBLIC_HOST,
    HostRule,
    NetworkTarget,
    Refusal,
    merge_refusals,
    parse_rule,
    parse_target,
    read_refusals,
)
from chatd.workspaces.local.workspace_dirs import chown_to_workspace
from chatd.workspaces.network.inside import REFUSALS_FILE, write_trust
from chatd.workspaces.network.network_proxy import Dialer, NetworkProxy, ProxyRules
from chatd.workspaces.network.tls_endpoint import WorkspaceAuthority, new_authority

ADOPT_INTERVAL_S: Final = 1.0
"""How often a process looks for workspaces whose proxy no process runs."""
POLICY_FILE: Final = "policy.json"
AUTHORITY_KEY_FILE: Final = "authority.pem"
CREDENTIALS_KEPT_S: Final = 300.0
"""A credential that was not given again for this long is no longer used: the server is unreachable
and may have revoked it."""


class NetworkPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`uid` is the workspace's account; None with `any_account`: a container's, which the engine
    maps. `trusts_authority`: its programs were started with the variables for it."""

    allow: tuple[str, ...]
    uid: int | None = None
    any_account: bool = False
    trusts_authority: bool = False


def policy_rules(allow: tuple[str, ...]) -> ProxyRules:
    """Decode the rules. Entries of another version that this one cannot read allow nothing."""
    rules: list[HostRule] = []
    for text in allow:
        with contextlib.suppress(ValueError):
            rules.append(parse_rule(text))
    return ProxyRules(rules=tuple(rules), allow=allow)


def clone_rules(spec: TemplateSpec, seed: GitSeed) -> ProxyRules:
    """The rules while the seed is cloned: its own host besides those of the template; without a
    network, every public host."""
    rules = policy_rules(spec.allow)
    first = (ANY_PUBLIC_HOST,) if spec.network != "allow" else ()
    target = _seed_target(seed)
    if target is not None:
        own = HostRule(host=target.host, ports=(target.port,), private=seed.allow_private)
        first = (*first, own)
    return ProxyRules(rules=(*first, *rules.rules), allow=spec.allow)


def _seed_target(seed: GitSeed) -> NetworkTarget | None:
    scheme, _, rest = seed.url.partition("://")
    authority = rest.partition("/")[0].rpartition("@")[2]
    try:
        return parse_target(authority, default_port=80 if scheme.lower() == "http" else 443)
    except ValueError:
        return None


class _PolicyFile:
    """The policy of one workspace, read again when its file was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._rules = policy_rules(())

    def rules(self) -> ProxyRules:
        try:
            found = self._path.stat()
            if (found.st_ino, found.st_mtime_ns) != self._seen:
                policy = msgspec.json.decode(self._path.read_bytes(), type=NetworkPolicy)
                self._rules = policy_rules(policy.allow)
                self._seen = found.st_ino, found.st_mtime_ns
        except (OSError, msgspec.MsgspecError):
            self._rules, self._seen = policy_rules(()), None
        return self._rules


class _Served(msgspec.Struct, frozen=True, kw_only=True):
    proxy: NetworkProxy
    policy: NetworkPolicy
    inside: Path
    closing: contextlib.AsyncExitStack


class _Grant(msgspec.Struct, frozen=True, kw_only=True):
    credentials: tuple[HostCredential, ...]
    until_s: float


class WorkspaceNetworks:
    """`run` serves what other processes have left; `open`, `close` and `remove` are steps of
    builds. `grant` says which credentials the requests of a workspace get."""

    def __init__(self, data_dir: Path, clock: Clock, dialer: Dialer | None = None) -> None:
        self.dialer = dialer or Dialer()
        self._directory = data_dir / "ws-network"
        self._clock = clock
        self._served: dict[WorkspaceId, _Served] = {}
        self._granted: dict[WorkspaceId, _Grant] = {}
        self._changing = asyncio.Lock()

    def clone_proxy(
        self, spec: TemplateSpec, seed: GitSeed, credentials: Sequence[HostCredential] = ()
    ) -> NetworkProxy:
        """A proxy with an authority of its own, for one clone."""
        rules = clone_rules(spec, seed)
        authority = WorkspaceAuthority(new_authority("clone", self._clock.now()), self._clock)
        return NetworkProxy(
            lambda: rules,
            self.dialer,
            self._clock,
            authority=authority,
            credentials=lambda: credentials,
        )

    async def open(
        self,
        workspace_id: WorkspaceId,
        policy: NetworkPolicy,
        credentials: Sequence[HostCredential] = (),
    ) -> Path:
        """Serve the workspace from now on. The directory that it must see, as `INSIDE_NETWORK`.
        Raises OSError."""
        top = self._directory / str(workspace_id)
        self.grant(workspace_id, credentials)
        await asyncio.to_thread(_write_policy, top, policy)
        if policy.trusts_authority:
            authority = await asyncio.to_thread(self._authority, top)
            await asyncio.to_thread(write_trust, top / "inside", authority)
        await self._adopt(workspace_id)
        return top / "inside"

    def grant(self, workspace_id: WorkspaceId, credentials: Sequence[HostCredential]) -> None:
        """Replace the workspace's credentials; the new ones count for `CREDENTIALS_KEPT_S`."""
        self._granted.pop(workspace_id, None)
        if credentials:
            until_s = self._clock.monotonic() + CREDENTIALS_KEPT_S
            self._granted[workspace_id] = _Grant(credentials=tuple(credentials), until_s=until_s)

    def credentials_of(self, workspace_id: WorkspaceId) -> Sequence[HostCredential]:
        grant = self._granted.get(workspace_id)
        if grant is None or self._clock.monotonic() < grant.until_s:
            return () if grant is None else grant.credentials
        del self._granted[workspace_id]
        return ()

    def _authority(self, top: Path) -> WorkspaceAuthority:
        """Raises OSError."""
        pem = sealed_secrets.load_or_create(
            top / AUTHORITY_KEY_FILE, lambda: new_authority(top.name, self._clock.now())
        )
        try:
            return WorkspaceAuthority(pem, self._clock)
        except ValueError:
            raise OSError(f"{top / AUTHORITY_KEY_FILE} cannot be read") from None

    async def close(self, workspace_id: WorkspaceId) -> None:
        """The workspace has stopped: without its policy no other process serves it either."""
        self._granted.pop(workspace_id, None)
        async with self._changing:
            await self._release(workspace_id)
            path = self._directory / str(workspace_id) / POLICY_FILE
            with contextlib.suppress(OSError):
                await asyncio.to_thread(path.unlink, missing_ok=True)

    async def remove(self, workspace_id: WorkspaceId) -> None:
        await self.close(workspace_id)
        top = self._directory / str(workspace_id)
        await asyncio.to_thread(shutil.rmtree, top, ignore_errors=True)

    async def run(self) -> None:
        """Run until cancelled: then other processes serve the workspaces."""
        try:
            while True:
                for workspace_id in await asyncio.to_thread(self._list):
                    with contextlib.suppress(OSError):
                        await self._adopt(workspace_id)
                await self._drop_ended()
                await self.write_refusals()
                await self._clock.sleep(ADOPT_INTERVAL_S, "workspace_networks")
        finally:
            await self.release_all()

    async def release_all(self) -> None:
        async with self._changing:
            for workspace_id in tuple(self._served):
                await self._release(workspace_id)

    async def write_refusals(self) -> None:
        """Report new refusals of every workspace, in batches: a workspace can cause many."""
        for served in tuple(self._served.values()):
            await _write_new_refusals(served)

    def _list(self) -> list[WorkspaceId]:
        found: list[WorkspaceId] = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                with contextlib.suppress(ValueError):
                    found.append(WorkspaceId(UUID(name)))
        return found

    async def _drop_ended(self) -> None:
        """Release the workspaces that another process has closed."""
        for workspace_id in tuple(self._served):
            path = self._directory / str(workspace_id) / POLICY_FILE
            if not await asyncio.to_thread(path.exists):
                async with self._changing:
                    await self._release(workspace_id)

    async def _adopt(self, workspace_id: WorkspaceId) -> None:
        """Serve it unless a process does. Raises OSError."""
        async with self._changing:
            if workspace_id in self._served:
                return
            top = self._directory / str(workspace_id)
            held = await asyncio.to_thread(_take_lock, top)
            if held is None:
                return
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(os.close, held)
                policy = await asyncio.to_thread(_read_policy, top)
                if policy is None:
                    return
                file = _PolicyFile(top / POLICY_FILE)
                authority = None
                if policy.trusts_authority:
                    authority = await asyncio.to_thread(self._authority, top)
                proxy = NetworkProxy(
                    file.rules,
                    self.dialer,
                    self._clock,
                    authority=authority,
                    credentials=partial(self.credentials_of, workspace_id),
                )
                await stack.enter_async_context(
                    proxy.listening(top / "inside", policy.uid, any_account=policy.any_account)
                )
                self._served[workspace_id] = _Served(
                    proxy=proxy, policy=policy, inside=top / "inside", closing=stack.pop_all()
                )

    async def _release(self, workspace_id: WorkspaceId) -> None:
        served = self._served.pop(workspace_id, None)
        if served is not None:
            await served.closing.aclose()
            await _write_new_refusals(served)


async def _write_new_refusals(served: _Served) -> None:
    new = served.proxy.take_refusals()
    if new:
        with contextlib.suppress(OSError):  # A full disk: the client was told.
            await asyncio.to_thread(_add_refusals, served, new)


def _add_refusals(served: _Served, new: tuple[Refusal, ...]) -> None:
    path = served.inside / REFUSALS_FILE
    try:
        kept = read_refusals(path.read_bytes())
    except OSError:
        kept = ()
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(merge_refusals(kept, new)))
    temporary.chmod(0o644 if served.policy.any_account else 0o600)
    chown_to_workspace(temporary, served.policy.uid)
    temporary.replace(path)


def _write_policy(top: Path, policy: NetworkPolicy) -> None:
    top.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    top.mkdir(mode=0o700, exist_ok=True)
    inside = top / "inside"
    inside.mkdir(mode=0o700, exist_ok=True)
    chown_to_workspace(inside, policy.uid)
    if policy.any_account:
        inside.chmod(0o755)
    sealed_secrets.replace(top / POLICY_FILE, msgspec.json.encode(policy).decode())


def _read_policy(top: Path) -> NetworkPolicy | None:
    try:
        return msgspec.json.decode((top / POLICY_FILE).read_bytes(), type=NetworkPolicy)
    except (OSError, msgspec.MsgspecError):
        return None


def _take_lock(top: Path) -> int | None:
    """A descriptor that holds the lock; None if another process has it, or the workspace ended."""
    try:
        held = os.open(top / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held
