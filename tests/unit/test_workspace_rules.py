"""The next step to create, start or stop a workspace, for every state; agents and deadlines."""

from datetime import timedelta
from uuid import UUID

import pytest

from chatd.domain.workspace.entities import AgentRow, VersionId, Workspace
from chatd.domain.workspace.rules import (
    AlreadyStopped,
    AmbiguousAgent,
    AwaitAgent,
    AwaitBuild,
    CreateWorkspace,
    InsertBuild,
    NoAgent,
    NoWorkspace,
    Remedy,
    ReportAmbiguousAgent,
    WorkspaceSnapshot,
    agent_status,
    bumped_deadline,
    choose_agent,
    next_for_create,
    next_for_start,
    next_for_stop,
    remedy_after_timeout,
    start_version,
    workspace_ttl_s,
)
from tests.support.factories import AT
from tests.support.workspaces import VERSION, agent, build, build_id, template, workspace


def ago(**spans: float) -> dict[str, object]:
    """Columns set the given number of seconds ago."""
    return {name: AT - timedelta(seconds=span) for name, span in spans.items()}


NEVER = {"first_connected_at": None, "last_connected_at": None}


@pytest.mark.parametrize(
    ("columns", "status"),
    [
        ({}, "connected"),
        (ago(last_connected_at=30), "connected"),
        (ago(last_connected_at=30.001), "disconnected"),
        (ago(last_connected_at=5, disconnected_at=5), "disconnected"),
        (ago(last_connected_at=5, disconnected_at=6), "connected"),
        (NEVER | ago(created_at=119), "connecting"),
        (NEVER | ago(created_at=121), "timeout"),
        (NEVER | ago(created_at=1e6) | {"connection_timeout_s": 0}, "connecting"),
        (NEVER | ago(created_at=5, disconnected_at=1), "disconnected"),
    ],
)
def test_the_status_of_an_agent_follows_from_its_last_contact(
    columns: dict[str, object], status: str
) -> None:
    assert agent_status(agent(1, **columns), AT) == status


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["b", "a"], "a"),
        (["B", "a"], "a"),
        (["b", "A"], "A"),
        (["a", "A"], "A"),
        (["main", "x-chatd-chat"], "x-chatd-chat"),
        (["main", "X-ChatD-Chat"], "X-ChatD-Chat"),
    ],
)
def test_the_agent_for_chats_is_chosen_by_name(names: list[str], chosen: str) -> None:
    rows = [agent(number, name=name) for number, name in enumerate(names)]
    assert choose_agent(rows).name == chosen
    assert choose_agent(rows[::-1]).name == chosen


def test_display_order_comes_before_name_and_child_agents_are_never_chosen() -> None:
    rows = [
        agent(1, name="a", display_order=2),
        agent(2, name="z", display_order=1),
        agent(3, name="child-chatd-chat", parent_id=agent(1).id),
    ]
    assert choose_agent(rows).name == "z"


def test_no_agent_and_ambiguous_agents_are_distinct_errors() -> None:
    with pytest.raises(NoAgent):
        choose_agent([])
    with pytest.raises(NoAgent):
        choose_agent([agent(1, parent_id=agent(2).id)])
    with pytest.raises(AmbiguousAgent, match="a-chatd-chat, b-chatd-chat"):
        choose_agent([agent(1, name="b-chatd-chat"), agent(2, name="a-chatd-chat")])


CONNECTED = agent()
CONNECTING = agent(1, **NEVER, **ago(created_at=1))
DISCONNECTED = agent(1, **ago(last_connected_at=31))
LATE = agent(1, **NEVER, **ago(created_at=1000))
TWO = (agent(1, name="a-chatd-chat"), agent(2, name="b-chatd-chat"))
DELETED = workspace(deleted=True)
EXISTING = workspace()


def snapshot_of(
    row: Workspace | None = EXISTING,
    *agents: AgentRow,
    status: str = "succeeded",
    what: str = "start",
) -> WorkspaceSnapshot:
    latest = None if status == "none" else build(status=status, transition=what, build_number=4)
    return WorkspaceSnapshot(workspace=row, build=latest, agents=agents, now=AT)


AMBIGUOUS = ReportAmbiguousAgent(
    error="Several agents of the workspace are named for chats (a-chatd-chat, b-chatd-chat); "
    "keep one of them."
)
WAIT = AwaitBuild(build_id=build_id(1))
STOPPED = AlreadyStopped(build_id=build_id(1))
AGAIN = InsertBuild(after=4)

CASES = [
    # snapshot, create, start, stop
    (
        snapshot_of(None),
        CreateWorkspace(because="none"),
        NoWorkspace(deleted=False),
        NoWorkspace(deleted=False),
    ),
    (
        snapshot_of(DELETED),
        CreateWorkspace(because="deleted"),
        NoWorkspace(deleted=True),
        NoWorkspace(deleted=True),
    ),
    (
        snapshot_of(status="none"),
        CreateWorkspace(because="failed"),
        InsertBuild(after=0),
        InsertBuild(after=0),
    ),
    *(
        (snapshot_of(status=status, what=what), WAIT, WAIT, WAIT)
        for status in ("pending", "running", "canceling")
        for what in ("start", "stop", "delete")
    ),
    *(
        (snapshot_of(status=status, what=what), CreateWorkspace(because="failed"), AGAIN, AGAIN)
        for status in ("failed", "canceled")
        for what in ("start", "stop", "delete")
    ),
    (snapshot_of(what="delete"), CreateWorkspace(because="failed"), AGAIN, AGAIN),
    (snapshot_of(what="stop"), STOPPED, AGAIN, STOPPED),
    (snapshot_of(), CreateWorkspace(because="unreachable"), AGAIN, AGAIN),
    (
        snapshot_of(EXISTING, CONNECTED),
        AwaitAgent(agent=CONNECTED, dial=False),
        AwaitAgent(agent=CONNECTED, dial=True),
        AGAIN,
    ),
    (
        snapshot_of(EXISTING, CONNECTING),
        AwaitAgent(agent=CONNECTING, dial=True),
        AwaitAgent(agent=CONNECTING, dial=True),
        AGAIN,
    ),
    (
        snapshot_of(EXISTING, DISCONNECTED),
        CreateWorkspace(because="unreachable"),
        AwaitAgent(agent=DISCONNECTED, dial=True),
        AGAIN,
    ),
    (
        snapshot_of(EXISTING, LATE),
        CreateWorkspace(because="unreachable"),
        AwaitAgent(agent=LATE, dial=True),
        AGAIN,
    ),
    (snapshot_of(EXISTING, *TWO), AMBIGUOUS, AMBIGUOUS, AGAIN),
]


@pytest.mark.covers("workspaces-3", "workspaces-4")
@pytest.mark.parametrize(("snapshot", "create", "start", "stop"), CASES)
def test_the_next_step_follows_from_the_snapshot(
    snapshot: WorkspaceSnapshot, create: object, start: object, stop: object
) -> None:
    assert next_for_create(snapshot) == create
    assert next_for_start(snapshot) == start
    assert next_for_stop(snapshot) == stop


NEWER = VersionId(UUID(int=0x7E2))


@pytest.mark.parametrize(
    ("required", "first", "expected"),
    [
        (False, True, (NEWER, False)),
        (True, True, (NEWER, False)),
        (False, False, (VERSION, False)),
        (True, False, (NEWER, True)),
    ],
)
def test_a_start_uses_the_active_version_only_if_required(
    required: object, first: object, expected: tuple[VersionId, bool]
) -> None:
    row = template(active_version_id=NEWER, require_active_version=required)
    assert start_version(row, None if first else build()) == expected
    same = template(require_active_version=required)
    assert start_version(same, build()) == (VERSION, False)


@pytest.mark.parametrize(
    ("row", "remedy"),
    [
        (CONNECTED, "retry"),
        (CONNECTING, "retry"),
        (LATE, "restart"),
        (agent(1, **ago(last_connected_at=31)), "retry"),
        (agent(1, **ago(last_connected_at=89.9)), "retry"),
        (agent(1, **ago(last_connected_at=90)), "restart"),
        (agent(1, **ago(last_connected_at=200, disconnected_at=10)), "retry"),
        (agent(1, **ago(last_connected_at=200, disconnected_at=100)), "restart"),
        (agent(1, **ago(last_connected_at=100, disconnected_at=200)), "restart"),
        (agent(1, **NEVER, **ago(created_at=500, disconnected_at=300)), "restart"),
    ],
)
def test_a_restart_is_advised_only_if_the_agent_is_also_long_gone(
    row: AgentRow, remedy: Remedy
) -> None:
    assert remedy_after_timeout(row, AT) == remedy


@pytest.mark.covers("workspaces-2")
@pytest.mark.parametrize(
    ("setting", "seconds"),
    [("60", 60), ("0", 7), ("-5", 7), ("1h", 7), ("", 7), (None, 7)],
)
def test_a_valid_ttl_of_the_operator_takes_precedence(setting: str | None, seconds: int) -> None:
    assert workspace_ttl_s(setting, template(default_ttl_s=7)) == seconds


@pytest.mark.parametrize(
    ("left_s", "most_s", "bump_s", "expected_s"),
    [
        (None, None, 3600, None),
        (1800, None, 0, None),
        (1800, None, 3600, 3600),
        (-60, None, 3600, 3600),
        (3600, None, 3600, None),
        (3421, None, 3600, None),
        (3420, None, 3600, 3600),
        (7200, None, 3600, None),
        (1800, 2000, 3600, 2000),
        (1800, 1800, 3600, None),
        (1800, 900, 3600, None),
        (1800, 9000, 3600, 3600),
    ],
)
def test_activity_extends_the_deadline_and_never_shortens_it(
    left_s: float | None, most_s: float | None, bump_s: int, expected_s: float | None
) -> None:
    def at(seconds: float | None) -> object:
        return None if seconds is None else AT + timedelta(seconds=seconds)

    deadline = None if left_s is None else AT + timedelta(seconds=left_s)
    most = None if most_s is None else AT + timedelta(seconds=most_s)
    assert bumped_deadline(deadline, most, bump_s=bump_s, now=AT) == at(expected_s)
