"""The messages between a runner and a replica, as JSON texts on WebSockets that the runner opens.

The control socket carries calls of the server to the runner's backends, their replies and log
lines, and the state of the runner. Each exchange socket waits until the server names an agent on
it; then it carries the bytes of one HTTP exchange with that agent. With protocol 2 each side ends
the exchange by a text, and the socket waits for the next one; with protocol 1 the socket ends with
its exchange. Unknown fields are ignored, so that versions next to each other work together.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from chatd.domain.workspace.entities import (
    AgentSpec,
    BackendState,
    Build,
    Endpoint,
    FieldProblem,
    LogLevel,
    TemplateSpec,
    Workspace,
)
from chatd.domain.workspace.host_credentials import HostCredential
from chatd.domain.workspace.runners import BackendOffer

PROTOCOL: Final = 2
REUSE_PROTOCOL: Final = 2
"""From this version on a socket serves one exchange after another."""
MAX_RUNNER_MESSAGE_BYTES: Final = 60 * 1024
"""Limit from a runner to the server, whose WebSockets refuse longer messages."""
MAX_SERVER_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Limit from the server to a runner: a call may carry a long start-up script."""
MAX_BYTES_FRAME: Final = 48 * 1024
INVENTORY_PAGE: Final = 1000
"""How many workspaces one reply has."""

CONTROL_PATH: Final = "/api/v1/runners/control"
EXCHANGE_PATH: Final = "/api/v1/runners/exchange"
RUNNER_HEADER: Final = "Chatd-Runner"
EPOCH_HEADER: Final = "Chatd-Runner-Epoch"

CLOSE_TRY_AGAIN: Final = 1013
CLOSE_SUPERSEDED: Final = 4001
"""Another process with the runner's id has connected: this one must not come back."""
CLOSE_REFUSED: Final = 4003
"""The token was revoked, or the runner removed: this one must not come back."""


class _Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


# From the runner


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """The first message on a control socket."""

    protocol: int
    version: str
    runner_id: str
    name: str
    labels: tuple[str, ...] = ()
    backends: tuple[BackendOffer, ...] = ()
    capacity: int = 0
    os: str = ""
    arch: str = ""


class RunnerState(_Message, frozen=True, kw_only=True, tag="state"):
    """Sent every few seconds. `draining`: the runner was asked on its own machine to take no more
    workspaces."""

    running: int = 0
    draining: bool = False


class CallError(Struct, frozen=True, kw_only=True):
    code: str
    message: str


class CallReply(_Message, frozen=True, kw_only=True, tag="reply"):
    """The field of the call's method is set, or `error`."""

    call: int
    error: CallError | None = None
    agents: tuple[AgentSpec, ...] = ()
    state: BackendState | None = None
    problems: tuple[FieldProblem, ...] = ()
    workspaces: tuple[str, ...] = ()


class CallLog(_Message, frozen=True, kw_only=True, tag="log"):
    """A line of a build's log."""

    call: int
    stage: str
    level: LogLevel
    text: str


RunnerMessage = Hello | RunnerState | CallReply | CallLog


# From the server


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    """The reply to `hello`. Exchange sockets name the runner and this epoch."""

    epoch: int
    version: str
    idle_exchanges: int
    protocol: int = 1


class Refused(_Message, frozen=True, kw_only=True, tag="refused"):
    """The last message before the server closes the socket. `final`: a retry does not help."""

    code: str
    message: str
    final: bool = True


class NetworkGrant(Struct, frozen=True, kw_only=True):
    """The credentials that the proxy of a workspace adds to its requests from now on."""

    workspace_id: str
    credentials: tuple[HostCredential, ...] = ()


class BackendCall(_Message, frozen=True, kw_only=True, tag="call"):
    """A method of a backend. `agent_keys` are those of the build's agents, by agent id. Starts,
    stops and deletions are repeated under the same build after a lost connection; the runner joins
    the one that still runs."""

    call: int
    backend: str
    method: str
    """start, stop, delete, validate, inspect, workspaces, remove or grant."""
    workspace: Workspace | None = None
    build: Build | None = None
    spec: TemplateSpec | None = None
    params: Mapping[str, str] = {}
    agent_keys: Mapping[str, str] = {}
    workspace_id: str = ""
    """For `remove`; for `workspaces`: the ids after this one."""
    credentials: tuple[HostCredential, ...] = ()
    """For `start`: what a proxy adds to requests, even while the seed is cloned."""
    grants: tuple[NetworkGrant, ...] = ()
    """For `grant`, which the runner itself answers, not a backend."""


class CallCancel(_Message, frozen=True, kw_only=True, tag="cancel"):
    """A person cancelled the build, or its time is over."""

    call: int


class MoreExchanges(_Message, frozen=True, kw_only=True, tag="more"):
    """Open this many exchange sockets now: requests wait for them."""

    count: int


ServerMessage = Welcome | Refused | BackendCall | CallCancel | MoreExchanges


# On an exchange socket, as its only texts


class OpenAgent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From the side that wants the exchange: connect to this agent. Bytes follow once the reply
    came."""

    agent_id: str
    endpoint: Endpoint


class AgentOpened(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply. `error` says why the agent cannot be reached: nothing was sent to it, and the
    socket is closed. Only replicas set the other fields."""

    error: str = ""
    unknown: bool = False
    """The replica does not reach this runner: ask another one."""
    away: bool = False
    """The runner does not answer; it may come back."""


class ExchangeEnd(Struct, frozen=True, kw_only=True):
    """From each side once, in protocol 2: it sends no more bytes of this exchange, and drops those
    that it still receives. When both have sent it, the socket waits for the next `OpenAgent`."""

    end: bool


RUNNER_MESSAGES: Final = msgspec.json.Decoder(RunnerMessage)
SERVER_MESSAGES: Final = msgspec.json.Decoder(ServerMessage)
OPEN_AGENT: Final = msgspec.json.Decoder(OpenAgent)
AGENT_OPENED: Final = msgspec.json.Decoder(AgentOpened)
EXCHANGE_END: Final = msgspec.json.Decoder(ExchangeEnd)


def encode(message: Struct) -> str:
    return msgspec.json.encode(message).decode()


class MessageSocket(Protocol):
    """A WebSocket. A client that does not read delays `send`."""

    async def receive(self) -> str | bytes | None:
        """None once it is closed."""
        ...

    async def send(self, message: str | bytes) -> None:
        """Raises ConnectionError if it is closed."""
        ...

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Never raises. Idempotent."""
        ...
