"""A backend of a connected runner, called over its control socket.

Builds are idempotent by (workspace, build number): after a lost connection the next replica repeats
the call, and the runner joins the build that still runs or answers with its result.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.errors import Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import (
    AgentSpec,
    BackendState,
    Endpoint,
    FieldProblem,
    TemplateSpec,
    Workspace,
)
from chatd.domain.workspace.runners import RunnerId, pod_holder
from chatd.workspaces.build_backend import (
    AGENT_NAME,
    BuildCancelled,
    BuildContext,
    BuildFailed,
    BuildInterrupted,
)
from chatd.workspaces.tunnels.runner_link import RunnerLink
from chatd.workspaces.tunnels.wire import INVENTORY_PAGE, BackendCall, CallReply, NetworkGrant

BUILD_CALL_TIMEOUT_S: Final = 3600.0
"""The build worker cancels a build long before this."""
QUICK_CALL_TIMEOUT_S: Final = 10.0
REMOVE_CALL_TIMEOUT_S: Final = 60.0
MAX_INVENTORY: Final = 100_000


class RemoteBackend:
    """Implements `Backend`."""

    def __init__(self, link: RunnerLink, kind: str) -> None:
        self._link = link
        self._kind = kind

    @property
    def kind(self) -> str:
        return self._kind

    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        reply = await self._ask(
            BackendCall(call=0, backend=self._kind, method="validate", spec=spec, params=params)
        )
        return reply.problems

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        agents = (await self._build("start", context)).agents
        if any(agent.id != context.agent_id(AGENT_NAME) for agent in agents):
            raise BuildFailed("The runner started an agent that this build does not have.")
        self._link.count_started()
        # A runner speaks for itself only: its agents are reached by it, or by this build's pod.
        pod = pod_holder(context.build.id)
        return [
            replace(
                agent, endpoints=tuple(_held_by(e, self._link.id, pod) for e in agent.endpoints)
            )
            for agent in agents
        ]

    async def stop(self, context: BuildContext) -> None:
        await self._build("stop", context)

    async def delete(self, context: BuildContext) -> None:
        await self._build("delete", context)

    async def inspect(self, workspace: Workspace) -> BackendState:
        try:
            reply = await self._ask(
                BackendCall(call=0, backend=self._kind, method="inspect", workspace=workspace)
            )
        except (Unavailable, BuildFailed) as error:
            return BackendState(state="unknown", detail=error.message)
        return reply.state or BackendState(state="unknown")

    async def workspaces(self) -> Sequence[WorkspaceId]:
        found: list[WorkspaceId] = []
        after = ""
        while len(found) < MAX_INVENTORY:
            page = (
                await self._ask(
                    BackendCall(call=0, backend=self._kind, method="workspaces", workspace_id=after)
                )
            ).workspaces
            try:
                found += [WorkspaceId(UUID(text)) for text in page]
            except ValueError:
                raise BuildFailed("The runner names workspaces that cannot be read.") from None
            if len(page) < INVENTORY_PAGE or page[-1] <= after:
                break
            after = page[-1]
        return found

    async def remove(self, workspace_id: WorkspaceId) -> None:
        request = BackendCall(
            call=0, backend=self._kind, method="remove", workspace_id=str(workspace_id)
        )
        await self._ask(request, timeout_s=REMOVE_CALL_TIMEOUT_S)

    async def _ask(
        self, request: BackendCall, timeout_s: float = QUICK_CALL_TIMEOUT_S
    ) -> CallReply:
        """Raises Unavailable if the runner does not answer."""
        try:
            return _checked(await self._link.call(request, timeout_s=timeout_s))
        except TimeoutError:
            raise Unavailable("The workspace's runner did not answer in time.") from None
        except BuildInterrupted as error:
            raise Unavailable(error.message) from None

    async def _build(self, method: str, context: BuildContext) -> CallReply:
        """Passes on a person's wish to cancel the build; the runner still says how it ended."""
        # The runner is told the key of the build's agent and no other.
        agent_id = context.agent_id(AGENT_NAME)
        keys = {str(agent_id): context.agent_key(agent_id).hex()}
        request = BackendCall(
            call=0,
            backend=self._kind,
            method=method,
            workspace=context.workspace,
            build=context.build,
            spec=context.spec,
            params=context.params,
            agent_keys=keys if method == "start" else {},
            credentials=tuple(context.credentials) if method == "start" else (),
        )

        call = self._link.call(
            request,
            timeout_s=BUILD_CALL_TIMEOUT_S,
            log=lambda stage, level, text: context.log(stage, text, level),
            cancelled=context.cancelled,
        )
        return _checked(await call)


async def send_grants(link: RunnerLink, grants: Sequence[NetworkGrant]) -> None:
    """Give the runner credentials for its workspaces. Raises ChatdError. A runner that answers with
    an error is of a version without them, and is not asked again."""
    if not link.takes_grants:
        return
    request = BackendCall(call=0, backend="", method="grant", grants=tuple(grants))
    try:
        reply = await link.call(request, timeout_s=QUICK_CALL_TIMEOUT_S)
    except TimeoutError:
        raise Unavailable("The workspace's runner did not answer in time.") from None
    if reply.error is not None:
        link.takes_grants = False
        raise BuildFailed("This runner's version does not know credentials. Upgrade the runner.")


def _checked(reply: CallReply) -> CallReply:
    if reply.error is None:
        return reply
    text = reply.error.message[:4000]
    match reply.error.code:
        case BuildCancelled.code:
            raise BuildCancelled(text)
        case "database_down" | "database_unreachable" | Unavailable.code:
            raise Unavailable(text)
        case _:
            raise BuildFailed(text or "The runner failed without a reason.")


def _held_by(endpoint: Endpoint, runner_id: RunnerId, pod: RunnerId) -> Endpoint:
    holder = pod if endpoint.host_id == pod else runner_id
    return Endpoint(kind="unix", path=endpoint.path, host_id=holder)
