"""Pods that hold their own connections: the dialler in a pod connects as a runner does, for the one
agent of its build.

The token of a pod follows from the key of its agent, so no row holds it. It counts while its build
is the latest of a workspace that exists: a new build, a stop, a deletion or a failed start ends it,
also for a pod that is connected, within seconds.
"""

import asyncio
import hmac
from contextlib import suppress
from typing import Final

from chatd.domain.access.secret_text import pod_token_build, pod_token_text
from chatd.domain.errors import ChatdError
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import BuildId
from chatd.domain.workspace.runners import pod_holder
from chatd.store.database.conn import Conn
from chatd.store.workspace import tunnels
from chatd.workspaces.agents.agent_session import derive_agent_key
from chatd.workspaces.build_backend import agent_id_of
from chatd.workspaces.tunnels.runner_link import RunnerLink, RunnerLinks, refuse
from chatd.workspaces.tunnels.wire import (
    CLOSE_REFUSED,
    CLOSE_SUPERSEDED,
    PROTOCOL,
    MessageSocket,
    Welcome,
    encode,
)

MAX_PODS: Final = 5000
"""Limit for pods connected to one replica."""
POD_IDLE_EXCHANGES: Final = 2
"""Fewer than for a runner: a pod has one agent."""
POD_STORE_TIMEOUT_S: Final = 5.0
BUILD_OVER: Final = "The workspace of this pod was stopped, deleted or built again."


class PodTunnels:
    """`address` is that of this replica for others, set before the first pod comes."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        *,
        replica: WorkerId,
        secret: bytes,
        version: str,
        links: RunnerLinks,
    ) -> None:
        self._conn = conn
        self._env = env
        self._replica = replica
        self._secret = secret
        self._version = version
        self._links = links
        self.address = ""

    def find_build(self, token: str) -> BuildId | None:
        """The build whose pod shows this token; None if the token is not valid. `serve` refuses one
        whose build is over."""
        named = pod_token_build(token)
        if named is None:
            return None
        build_id = BuildId(named)
        key = derive_agent_key(self._secret, agent_id_of(build_id))
        expected = pod_token_text(build_id, key)
        return build_id if hmac.compare_digest(expected.encode(), token.encode()) else None

    async def serve(self, messages: MessageSocket, build_id: BuildId, protocol: int) -> None:
        """Serve the control socket of a pod until it ends. Never raises but CancelledError."""
        if len(self._links.pods()) >= MAX_PODS:
            text = "Too many pods are connected to this server."
            await refuse(messages, "too_many_pods", text, final=False)
            return
        try:
            async with asyncio.timeout(POD_STORE_TIMEOUT_S):
                pod = await tunnels.connect_pod(self._conn, build_id, self._replica, self.address)
        except (ChatdError, TimeoutError):
            text = "The server's database does not answer."
            await refuse(messages, "unavailable", text, final=False)
            return
        if pod is None:
            await refuse(messages, "build_replaced", BUILD_OVER)
            return
        link = RunnerLink(messages, pod, protocol, pod_of=build_id)
        before = self._links.add(link)
        if before is not None:
            before.close(CLOSE_SUPERSEDED, "another process of this pod has connected")
        self._env.emit("pod_connected", build_id=build_id, name=pod.name)
        welcome = Welcome(
            epoch=pod.epoch,
            version=self._version,
            idle_exchanges=POD_IDLE_EXCHANGES,
            protocol=PROTOCOL,
        )
        try:
            with suppress(OSError):
                await messages.send(encode(welcome))
                await link.run()
        finally:
            self._links.remove(link)
            self._env.emit("pod_disconnected", build_id=build_id, name=pod.name)
            with suppress(ChatdError, TimeoutError):
                async with asyncio.timeout(POD_STORE_TIMEOUT_S):
                    await tunnels.disconnect_pod(self._conn, pod, self._replica)

    async def renew(self) -> None:
        """Keep the rows of the pods that are connected here, and disconnect those that may not be.
        Raises ChatdError and TimeoutError."""
        links = {link.pod_of: link for link in self._links.pods() if link.pod_of is not None}
        if not links:
            return
        rows = [(build_id, link.runner.epoch) for build_id, link in links.items()]
        async with asyncio.timeout(POD_STORE_TIMEOUT_S):
            mine = await tunnels.renew_pods(self._conn, self._replica, self.address, rows)
        for build_id in links.keys() - mine:
            link = links[build_id]
            async with asyncio.timeout(POD_STORE_TIMEOUT_S):
                holder = await tunnels.find_holder(self._conn, pod_holder(build_id))
            if holder is not None and holder.runner.epoch > link.runner.epoch:
                link.close(CLOSE_SUPERSEDED, "another process of this pod has connected")
            else:
                link.close(CLOSE_REFUSED, BUILD_OVER)
