"""One replica: composes the services of a chatd process and starts and stops them in order.

A write of this replica goes to its own worker and viewers at once, and to other replicas as a
hint. A received hint goes to the same services.
"""

import asyncio
import platform
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from importlib import metadata
from typing import Final

from msgspec import Struct

from chatd.aio import BackgroundTasks, PeriodicTask, TaskReaper
from chatd.domain.answer.tool_calls import DEFAULT_STEP_LIMITS, StepLimits
from chatd.domain.chat.change import Change
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.decisions import MAX_STEPS_PER_TURN
from chatd.domain.deployment.webhooks import turn_event
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import WorkerId
from chatd.domain.model.retry import DEFAULT_OUTAGE_S
from chatd.domain.ports import Env, ModelSource, ToolSource
from chatd.domain.prompt.kept_rows import CompactionLimits
from chatd.engine.acquirer import SlotsConfig
from chatd.engine.hooks import TurnHooks
from chatd.engine.kept_histories import KeptHistories
from chatd.engine.lease import WorkerLease
from chatd.engine.maintenance import (
    RetentionConfig,
    SearchIndexing,
    file_tasks,
    maintenance_tasks,
    retention_tasks,
)
from chatd.engine.model.attempt import Committer
from chatd.engine.model.budget import Budget, SpendBudget, SpendLimit
from chatd.engine.model.call_records import DebugGate, DebugRecorder, UsageWriter, never
from chatd.engine.model.circuits import Circuits
from chatd.engine.model.file_loader import FileLoader
from chatd.engine.model.model_call import AnswerTimes
from chatd.engine.model.model_step import ModelStep
from chatd.engine.model.spend_guard import OpenCallWriter, SpendGuard
from chatd.engine.model.summary_call import SummaryCall
from chatd.engine.model.title_generator import (
    CallRecords,
    TitleGenerator,
    TitleModelChoice,
    own_model,
)
from chatd.engine.subagents import AgentWaker
from chatd.engine.tool_runner import ToolDeps
from chatd.engine.turn_loop import TurnLoop, TurnLoopDeps
from chatd.engine.worker import Worker, WorkerConfig, WorkerDeps
from chatd.settings.schema import (
    POSTGRESQL_NOTIFICATIONS,
    FileSettings,
    Settings,
    SettingsError,
)
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.transactor import Transactor
from chatd.store.chat.workers import RunningLimits, worker_lock_key
from chatd.store.database.conn import ConnectConfig, StatementHook
from chatd.store.database.nats import NatsBus, NatsConfig, parse_nats_url
from chatd.store.database.notifications import (
    ConfigChanges,
    HintListener,
    HintPublisher,
    ListenConfig,
    PostgresBus,
    PublishConfig,
)
from chatd.store.database.pool import Database, PoolConfig
from chatd.store.file_stores import (
    FileStoreConfig,
    FileStores,
    S3Config,
    S3Credentials,
    build_file_stores,
)
from chatd.store.model.spend import DefaultLimit
from chatd.stream.chat_list import ChatListFeeds, SpendNotices
from chatd.stream.episodes import EpisodeRegistry
from chatd.stream.feed_registry import FeedRegistry
from chatd.stream.journal_tail import JournalTail, LivePartSource
from chatd.stream.journal_writer import JournalWriter

CLOSE_TIMEOUT_S: Final = 1.0
"""Time limit of each close at shutdown, after the drain."""


class ReplicaConfig(Struct, frozen=True, kw_only=True):
    """`runs_chats`: without it this replica only serves clients. `spend_limit` is per owner.
    `titles`: a model generates the titles of new chats. `model_call_timeout_s` limits one answer,
    even while parts of it arrive; None: the limit of its model. `nats`: carries the hints; without
    it PostgreSQL does."""

    connect: ConnectConfig
    nats: NatsConfig | None = None
    runs_chats: bool = True
    pool_size: int = 10
    worker: WorkerConfig = WorkerConfig()
    retention: RetentionConfig = RetentionConfig()
    spend_limit: SpendLimit | None = None
    titles: bool = False
    model_call_timeout_s: float | None = None
    files: FileStoreConfig = FileStoreConfig()
    answer_times: AnswerTimes = AnswerTimes()
    step_limits: StepLimits = DEFAULT_STEP_LIMITS
    max_steps: int = MAX_STEPS_PER_TURN
    outage_s: float = DEFAULT_OUTAGE_S
    compaction: CompactionLimits = CompactionLimits()


class WorkGate(Struct, frozen=True, kw_only=True):
    """Holds back what a deployment does by itself: running chats, and deleting what is old.
    `wait` returns when it `is_open`, which it stays."""

    is_open: Callable[[], bool]
    wait: Callable[[], Awaitable[None]]


class ReplicaOptions(Struct, frozen=True, kw_only=True):
    """`records_calls`: whether the model calls of a user's chats are recorded for debugging.
    Without a `budget` the replica has its own, by its spend limit."""

    title_models: TitleModelChoice = own_model
    budget: Budget | None = None
    records_calls: DebugGate = never
    on_turn_end: Callable[[], None] = lambda: None
    worker_id: WorkerId | None = None
    gate: WorkGate | None = None
    hooks: TurnHooks | None = None


NO_OPTIONS: Final = ReplicaOptions()


def open_database_pools(
    config: ReplicaConfig, on_statement: StatementHook | None = None
) -> Database:
    """`on_statement` is called with every statement before it is sent."""
    pool = PoolConfig(
        connect=config.connect, max_size=config.pool_size, close_timeout_s=CLOSE_TIMEOUT_S
    )
    return Database(pool, on_statement=on_statement)


class Replica:
    """Construction starts nothing; `running` does."""

    def __init__(
        self,
        config: ReplicaConfig,
        env: Env,
        *,
        models: ModelSource,
        build_tools: Callable[["Replica"], ToolSource],
        options: ReplicaOptions = NO_OPTIONS,
        database: Database | None = None,
        changes: ConfigChanges | None = None,
        files: FileStores | None = None,
    ) -> None:
        """`database`, `changes` and `files` are given if other services use them too; the replica
        closes them.

        The one cycle of the composition is closed here: tools write to chats, and the worker that
        runs those chats is built from the tools. `build_tools` gets this replica before it has a
        worker, and may keep it and its methods, but calls nothing of it."""
        self.worker_id = options.worker_id or WorkerId(env.new_id())
        self.env = env
        self.on_turn_end, self._hooks = options.on_turn_end, options.hooks
        self.database = database or open_database_pools(config)
        pool = self.database.pool
        self.nats = None if config.nats is None else self._build_nats(config.nats)
        self.publisher = self._build_publisher(config.connect)
        self.config_changes = changes or ConfigChanges()
        self.listener = self._build_listener(config.connect)
        self.transactor = Transactor(pool, self.on_applied)
        self._committer = Committer(self.transactor, env)
        self.kept_histories = KeptHistories()
        self._agent_waker = AgentWaker(pool, self.transactor, env, self.reserve_slot)
        self.journal = JournalWriter(pool, env, self.worker_id)
        self.episodes = EpisodeRegistry(env.clock, self.journal)
        self.tail = JournalTail(pool, env, self.publisher.publish)
        live_parts = LivePartSource(self.episodes, self.tail, self.worker_id)
        self.feeds = FeedRegistry(pool, env, live_parts)
        self.chat_lists = ChatListFeeds(pool, env)
        self.config_changes.subscribe(self.chat_lists.on_config_change)
        self.files = files or build_file_stores(config.files, pool, env.clock)
        retention = retention_tasks(config.retention, pool, env, self._committer)
        self.usage_writer = UsageWriter(pool, env)
        self.debug_recorder = DebugRecorder(pool, env, options.records_calls)
        self._indexing = SearchIndexing(pool, env.clock)
        maintenance = maintenance_tasks(pool, env, self.usage_writer, self._indexing)
        removal = file_tasks(pool, env, self.files)
        deleting = (_gated(task, options.gate) for task in (*removal, *retention))
        self.background_tasks = BackgroundTasks(env, (*maintenance, *deleting))
        self.open_calls = OpenCallWriter(self.database.calls, env, self.worker_id)
        self.lease = WorkerLease(env.clock)
        self.task_reaper = TaskReaper(env)
        limit = config.spend_limit or SpendLimit()
        self.default_limit = DefaultLimit(micros=limit.micros, period=limit.period)
        budget = options.budget
        if budget is None:
            budget = SpendBudget(pool, env, limit, self.config_changes, self.background_tasks)
        self.spend_notices = SpendNotices(
            pool, self.default_limit, self.chat_lists, self.config_changes, self.background_tasks
        )
        spend_guard = SpendGuard(
            budget,
            self.open_calls,
            env,
            refuses_unpriced=limit.refuses_unpriced,
            refuses_unchecked=limit.refuses_unchecked,
        )
        self.budget = spend_guard
        self.titles = self._build_title_generator(models, options.title_models, spend_guard)
        model_step = self._build_model_step(config, models, spend_guard)
        titles = self.titles if config.titles else None
        tools = build_tools(self)
        turn_loop = self._build_turn_loop(config, models, tools, model_step, titles)
        self.worker = self._build_worker(config.worker, turn_loop)
        self._works = config.runs_chats
        self._gate = options.gate
        self._work: asyncio.Task[None] | None = None

    @property
    def hears_hints(self) -> bool:
        """Else changes of other replicas are found by polls."""
        hears = self.listener.listening if self.nats is None else self.nats.connected
        return hears.is_set()

    def _build_publisher(self, connect: ConnectConfig) -> HintPublisher:
        bus = self.nats or PostgresBus(connect)
        return HintPublisher(bus, PublishConfig(close_timeout_s=CLOSE_TIMEOUT_S), self.env.clock)

    def _build_nats(self, config: NatsConfig) -> NatsBus:
        return NatsBus(config, self.env, on_hint=self._hinted, on_connected=self._missed)

    def _build_listener(self, connect: ConnectConfig) -> HintListener:
        return HintListener(
            ListenConfig(connect=connect),
            self.env.clock,
            on_hint=self._hinted,
            on_connected=self._missed,
            config_changes=self.config_changes,
            lock_key=worker_lock_key(self.worker_id),
        )

    def _build_title_generator(
        self, models: ModelSource, title_models: TitleModelChoice, spend_guard: SpendGuard
    ) -> TitleGenerator:
        return TitleGenerator(
            self.database.pool,
            self.env,
            self.background_tasks,
            spend_guard,
            models=models,
            records=CallRecords(usage=self.usage_writer, debug=self.debug_recorder),
            announce=self.announce_chat,
            title_models=title_models,
        )

    def _build_model_step(
        self, config: ReplicaConfig, models: ModelSource, spend_guard: SpendGuard
    ) -> ModelStep:
        loader = FileLoader(self.database.pool, self.env, self.files)
        circuits = Circuits(self.env)
        return ModelStep(
            episodes=self.episodes,
            committer=self._committer,
            spend_guard=spend_guard,
            circuits=circuits,
            debug=self.debug_recorder,
            summary_call=SummaryCall(
                episodes=self.episodes,
                spend_guard=spend_guard,
                circuits=circuits,
                debug=self.debug_recorder,
                env=self.env,
                files=loader,
            ),
            models=models,
            env=self.env,
            files=loader,
            timeout_s=config.model_call_timeout_s,
            outage_s=config.outage_s,
        )

    def _build_turn_loop(
        self,
        config: ReplicaConfig,
        models: ModelSource,
        tools: ToolSource,
        model_step: ModelStep,
        title_generator: TitleGenerator | None,
    ) -> TurnLoop:
        tool_deps = ToolDeps(
            conn=self.database.pool,
            lease=self.lease,
            task_reaper=self.task_reaper,
            save_result=tools.save_result,
            env=self.env,
            hooks=self._hooks,
        )
        return TurnLoop(
            TurnLoopDeps(
                committer=self._committer,
                episodes=self.episodes,
                models=models,
                tools=tools,
                model_step=model_step,
                tool_deps=tool_deps,
                usage_writer=self.usage_writer,
                title_generator=title_generator,
                answer_times=config.answer_times,
                limits=config.step_limits,
                max_steps=config.max_steps,
                compaction=config.compaction,
                kept_histories=self.kept_histories,
                env=self.env,
            )
        )

    def _build_worker(self, config: WorkerConfig, turn_loop: TurnLoop) -> Worker:
        deps = WorkerDeps(
            database=self.database,
            committer=self._committer,
            turn_loop=turn_loop,
            usage_writer=self.usage_writer,
            announce=self._announced,
            save_live_parts=self._save_live_parts,
            is_tailing=lambda: self.tail.is_active,
            lease=self.lease,
            task_reaper=self.task_reaper,
            listening=self.listener.listening,
            lost=self.listener.lost,
        )
        return Worker(self.worker_id, deps, self.env, config)

    def reserve_slot(self, *, root: bool) -> AbstractContextManager[WorkerId | None]:
        """Of this replica's worker."""
        return self.worker.reserve_slot(root=root)

    async def _save_live_parts(self) -> None:
        self.episodes.flush_all()
        await self.journal.flush()

    def on_applied(self, applied: AppliedChange) -> None:
        """After the commit of a write of this replica: publish it here and to other replicas."""
        chat = applied.chat
        self.env.emit("step_committed", chat_id=chat.id, snapshot_version=chat.snapshot_version)
        self.publisher.publish(Hint.of(applied.chat))
        self._indexing.on_change()
        self.feeds.on_applied(applied)
        self.chat_lists.on_applied(applied)
        self.worker.on_applied(applied)
        self._agent_waker.on_applied(chat)
        if applied.change is not None:
            self._tell_turn(applied.change, chat)
        if applied.deleted_ids:
            # An edit dropped an answer. If its worker is dead, no other will look for its usage.
            self.usage_writer.settle(chat)

    def _tell_turn(self, change: Change, chat: Chat) -> None:
        if change.before is None:
            self.env.emit("chat_started", chat_id=chat.id, messages=len(change.messages))
        elif (event := turn_event(change)) is not None:
            began = change.before.turn_message_id or chat.next_message_id
            messages = change.after.next_message_id - change.promote - began
            self.env.emit(
                "turn_ended",
                chat_id=chat.id,
                outcome=event.removeprefix("turn."),
                messages=max(messages, 0),
                queued=chat.queue_len,
            )
            self.on_turn_end()

    def announce_chat(self, chat: Chat, kind: str) -> None:
        """Publish a row that changed without a new version, for example its title."""
        self.publisher.publish(Hint.of(chat, kind))
        self._indexing.on_change()
        self.chat_lists.on_metadata_changed(chat, kind)

    def _announced(self, chat: Chat) -> None:
        self.publisher.publish(Hint.of(chat))
        self.feeds.on_applied(AppliedChange(chat=chat))
        self.chat_lists.on_metadata_changed(chat)

    def _hinted(self, hint: Hint) -> None:
        self._indexing.on_change()
        self.journal.on_hint(hint)
        self.feeds.on_hint(hint)
        self.chat_lists.on_hint(hint)
        self.worker.on_hint(hint)

    def _missed(self) -> None:
        self._indexing.on_change()
        self.feeds.mark_all_dirty()
        self.chat_lists.mark_all_dirty()
        self.worker.mark_all_dirty()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Replica"]:
        """Run all services. A normal exit drains the worker first; an error or a cancellation
        stops at once, and other replicas take over the chats."""
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(service, name=name) for name, service in self._services()
                ]
                if self._works:
                    self._work = group.create_task(self._run_worker(), name="worker")
                yield self
                await self.drain()
                await self.publisher.close()
                for service in services:
                    service.cancel()
        finally:
            await self.usage_writer.close(CLOSE_TIMEOUT_S)
            await self.open_calls.close(CLOSE_TIMEOUT_S)
            await self.files.close()
            await self.database.close()

    async def _run_worker(self) -> None:
        if self._gate is not None:
            await self._gate.wait()
        await self.worker.run()

    async def drain(self) -> None:
        """Acquire no more chats and wait until the running ones have ended or are released.
        Viewers, and requests that start nothing, are still served."""
        work, self._work = self._work, None
        if work is not None and self._gate is not None and not self._gate.is_open():
            work.cancel()
        elif work is not None:
            await self.worker.drain()
            await work

    def _services(self) -> list[tuple[str, Coroutine[None, None, None]]]:
        nats = [] if self.nats is None else [("nats", self.nats.run())]
        return [
            *nats,
            ("publish", self.publisher.run()),
            ("listen", self.listener.run()),
            ("journal", self.journal.run()),
            ("episodes", self.episodes.run()),
            ("tail", self.tail.run()),
            ("feeds", self.feeds.run()),
            ("watches", self.chat_lists.run()),
            ("chores", self.background_tasks.run()),
            ("usage", self.usage_writer.run()),
            ("debug", self.debug_recorder.run()),
            ("open_calls", self.open_calls.run()),
            ("agent_waits", self._agent_waker.run()),
        ]


def _gated(task: PeriodicTask, gate: WorkGate | None) -> PeriodicTask:
    """Does nothing while the gate is closed."""
    if gate is None:
        return task

    async def work() -> None:
        if gate.is_open():
            await task.work()

    return PeriodicTask(name=task.name, interval_s=task.interval_s, work=work)


def replica_config(
    settings: Settings, connect: ConnectConfig, *, runs_chats: bool = True
) -> ReplicaConfig:
    slots = SlotsConfig(
        roots=settings.worker.slots,
        children=settings.worker.child_slots,
        limits=_running_limits(settings),
    )
    return ReplicaConfig(
        connect=connect,
        nats=nats_config(settings),
        pool_size=settings.database.pool_size,
        worker=WorkerConfig(
            slots=slots,
            drain_timeout_s=settings.worker.drain_s,
            host=platform.node(),
            version=metadata.version("chatd"),
        ),
        runs_chats=runs_chats,
        retention=RetentionConfig(
            archive_after=settings.chats.auto_archive_days,
            remove_after=settings.chats.retention_days,
            clear_deleted_after=settings.chats.deleted_messages_days,
            remove_usage_after=settings.chats.usage_days,
            remove_debug_after=settings.chats.debug_days,
            remove_workspaces_after=settings.workspaces.retention_days,
            remove_audit_after=settings.audit.retention_days,
        ),
        spend_limit=_spend(settings),
        titles=settings.chats.titles,
        files=file_store_config(settings.files),
        answer_times=AnswerTimes(
            question_s=settings.chats.question_hours * 3600.0,
            approval_s=settings.chats.approval_hours * 3600.0,
        ),
        step_limits=StepLimits(
            calls=settings.limits.calls_per_answer,
            concurrent_calls=settings.limits.concurrent_calls,
            output_bytes=settings.limits.step_output_bytes,
        ),
        compaction=CompactionLimits(
            ceiling_tokens=settings.chats.compaction_ceiling_tokens,
            kept_tokens=settings.chats.compaction_kept_tokens,
            clear_steps=settings.chats.clear_results_steps,
        ),
        max_steps=settings.chats.max_steps,
        outage_s=settings.chats.outage_hours * 3600.0,
    )


def nats_config(settings: Settings) -> NatsConfig | None:
    """None: hints are sent by PostgreSQL. Raises SettingsError."""
    chosen = settings.server.notifications
    if chosen == POSTGRESQL_NOTIFICATIONS:
        return None
    try:
        return parse_nats_url(chosen)
    except InvalidInput as error:
        raise SettingsError(error.message) from None


def _running_limits(settings: Settings) -> RunningLimits | None:
    """None without any: the statement that writes a message can then set the owner too."""
    limits = settings.limits
    running = RunningLimits(
        roots=limits.running,
        roots_per_owner=limits.running_per_user,
        children=limits.running_subagents,
        children_per_owner=limits.running_subagents_per_user,
    )
    return None if running == RunningLimits() else running


def _spend(settings: Settings) -> SpendLimit | None:
    limits = settings.limits
    return SpendLimit(
        micros=limits.spend_micros or None,
        period=limits.spend_period,
        refuses_unpriced=limits.unpriced == "refuse",
        refuses_unchecked=limits.unchecked == "refuse",
    )


def file_store_config(settings: FileSettings) -> FileStoreConfig:
    """Raises SettingsError if only a part of what S3 needs is set."""
    needed = {
        "files.s3_endpoint": settings.s3_endpoint,
        "files.s3_bucket": settings.s3_bucket,
        "files.s3_access_key_id": settings.s3_access_key_id,
        "files.s3_secret_access_key": settings.s3_secret_access_key,
    }
    missing = [name for name, value in needed.items() if not value]
    if missing and (settings.store == "s3" or len(missing) < len(needed)):
        raise SettingsError(f"{', '.join(missing)}: must be set to keep files in S3")
    if missing:
        return FileStoreConfig()
    s3 = S3Config(
        endpoint=settings.s3_endpoint or "",
        bucket=settings.s3_bucket or "",
        prefix=settings.s3_prefix,
        credentials=S3Credentials(
            region=settings.s3_region,
            access_key_id=settings.s3_access_key_id or "",
            secret_access_key=settings.s3_secret_access_key or "",
        ),
    )
    return FileStoreConfig(s3=s3, uses_s3=settings.store == "s3")
