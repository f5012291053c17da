"""Logs and metrics: a log line and a counter for every event, and gauges for the current state.

Owns metric names and the log level of each event. INFO: a state changed. WARNING: chatd retries.
ERROR: an operator must act. Events carry ids and numbers, never content, arguments or headers.
"""

import logging
import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from chatd.domain.errors import ChatdError
from chatd.domain.ports import NO_TRACER, Clock, Emit, Env, Tracer
from chatd.log_event import LogEvent
from chatd.settings.schema import OtelSettings, SettingsError
from chatd.store.chat import workers
from chatd.store.database.conn import DATABASE_CAUSES, Conn, StatementWatch, statement_name

log: Final = logging.getLogger("chatd")

_LEVELS: Final[Mapping[str, int]] = {
    "agent_connected": logging.INFO,
    "agent_disconnected": logging.WARNING,
    # Repeated until the agent counts as gone; agent_disconnected is logged once.
    "agent_check_missed": logging.DEBUG,
    # Repeated while the database is away; heartbeat_failed is logged once.
    "backlog_read_failed": logging.DEBUG,
    "build_abandoned": logging.WARNING,
    "build_interrupted": logging.INFO,
    "pod_connected": logging.INFO,
    "pod_disconnected": logging.INFO,
    "runner_connected": logging.INFO,
    "runner_disconnected": logging.WARNING,
    "host_credential_unreadable": logging.WARNING,
    "host_credentials_undelivered": logging.WARNING,
    "runner_renewal_failed": logging.WARNING,
    "build_crashed": logging.ERROR,
    "build_ended": logging.INFO,
    "build_lost": logging.WARNING,
    # Repeated while the database is away; heartbeat_failed is logged once.
    "build_write_failed": logging.DEBUG,
    "backup_failed": logging.ERROR,
    "backup_made": logging.INFO,
    "backups_removed": logging.INFO,
    "restore_unconfirmed": logging.WARNING,
    "build_result_rejected": logging.ERROR,
    "build_worker_failed": logging.ERROR,
    "build_worker_waiting": logging.DEBUG,
    "chat_compacted": logging.INFO,
    "chat_started": logging.INFO,
    "chat_taken_over": logging.INFO,
    "chats_removed": logging.INFO,
    "files_deleted": logging.INFO,
    "file_lost": logging.ERROR,
    "file_not_removed": logging.WARNING,
    "circuit_closed": logging.INFO,
    "circuit_opened": logging.WARNING,
    "commit_delayed": logging.WARNING,
    "continuation_refused": logging.WARNING,
    "answer_continued": logging.INFO,
    # Repeated while an agent does not answer.
    "context_read_failed": logging.DEBUG,
    "database_recovered": logging.INFO,
    "drain_finished": logging.INFO,
    "drain_started": logging.INFO,
    # One for every chat with viewers; heartbeat_failed is logged once.
    "feed_failed": logging.DEBUG,
    "heartbeat_failed": logging.WARNING,
    "journal_write_failed": logging.ERROR,
    "lease_lost": logging.WARNING,
    "limit_forgotten": logging.INFO,
    "limit_learned": logging.INFO,
    "limit_not_kept": logging.WARNING,
    "model_failed": logging.WARNING,
    "orphan_removed": logging.INFO,
    "release_failed": logging.WARNING,
    "results_cleared": logging.INFO,
    "chat_task_crashed": logging.ERROR,
    "chat_task_failed": logging.ERROR,
    "prompts_unreadable": logging.WARNING,
    "schedule_failed": logging.WARNING,
    "schedules_unread": logging.WARNING,
    "git_host_failed": logging.WARNING,
    "hook_failed": logging.WARNING,
    "pull_request_not_opened": logging.WARNING,
    "repositories_unread": logging.WARNING,
    "repository_delivery_refused": logging.WARNING,
    "repository_event": logging.INFO,
    "repository_events_full": logging.WARNING,
    "repository_work_failed": logging.ERROR,
    "slack_event": logging.INFO,
    "slack_events_full": logging.WARNING,
    "slack_failed": logging.WARNING,
    "slack_unread": logging.WARNING,
    "slack_work_failed": logging.ERROR,
    "webhook_failed": logging.WARNING,
    "webhooks_unread": logging.WARNING,
    "chat_task_left": logging.DEBUG,
    "admin_token_of_this_host": logging.WARNING,
    "secret_key_created": logging.INFO,
    "secret_key_missing": logging.WARNING,
    "secret_key_outdated": logging.WARNING,
    "secrets_asked": logging.INFO,
    "secrets_not_received": logging.WARNING,
    "secrets_not_sent": logging.WARNING,
    "secrets_received": logging.INFO,
    "secrets_sent": logging.INFO,
    "sign_in_limited": logging.WARNING,
    "sign_in_refused": logging.INFO,
    "signed_in": logging.INFO,
    "settings_differ": logging.WARNING,
    "settings_incomplete": logging.WARNING,
    "settings_shadowed": logging.WARNING,
    "mcp_refresh_failed": logging.WARNING,
    "mcp_refresh_slow": logging.WARNING,
    "mcp_grant_refused": logging.INFO,
    "mcp_server_shadowed": logging.WARNING,
    "summary_failed": logging.WARNING,
    "task_model_unusable": logging.WARNING,
    "provider_key_rests": logging.WARNING,
    "settings_lack_models": logging.WARNING,
    "chat_task_past_lost": logging.WARNING,
    "task_not_cancelled": logging.WARNING,
    "tool_failed": logging.WARNING,
    "notifications_connected": logging.INFO,
    "notifications_lost": logging.WARNING,
    "open_call_delayed": logging.WARNING,
    "open_call_write_failed": logging.WARNING,
    "slow_statement": logging.WARNING,
    "spend_warning": logging.INFO,
    "traces_not_sent": logging.WARNING,
    "model_fell_back": logging.WARNING,
    "fallback_skipped": logging.INFO,
    "turn_ended": logging.INFO,
    "usage_estimated": logging.INFO,
    "call_never_sent": logging.INFO,
    "usage_write_delayed": logging.WARNING,
    "usage_write_failed": logging.WARNING,
    "chat_list_unreadable": logging.ERROR,
    "worker_failed": logging.ERROR,
    # Repeated while the database is away; heartbeat_failed is logged once.
    "wake_failed": logging.DEBUG,
    "workers_reaped": logging.WARNING,
    "workspace_down": logging.WARNING,
    "workspace_overdue": logging.INFO,
}
# Explanations for the operator, logged with the event.
_EXPLANATIONS: Final[Mapping[str, str]] = {
    "backup_failed": "a scheduled backup could not be made; it is tried again in a quarter of an"
    " hour",
    "backup_made": "made a scheduled backup",
    "backups_removed": "removed scheduled backups that are older than those to keep",
    "restore_unconfirmed": "restored from a backup: chats, schedules, webhooks, retention and"
    " backups wait until an administrator confirms it (chatd admin confirm-restore)",
    "agent_connected": "a workspace agent answers",
    "agent_disconnected": "a workspace agent stopped answering; its chats wait or fail",
    "build_interrupted": "the runner of a build was cut off; the build continues there",
    "pod_connected": "the pod of a workspace dialled in",
    "pod_disconnected": "the connection of a workspace's pod ended; commands continue if it runs",
    "runner_connected": "a runner dialled in; its builds are taken here",
    "runner_disconnected": "a runner's connection ended; its commands go on, its chats wait for it",
    "host_credential_unreadable": "a credential of a host was not given to workspaces: this server"
    " cannot open it",
    "host_credentials_undelivered": "a runner did not take the credentials of its workspaces; tried"
    " again within a minute, and after five minutes without them its proxy adds none",
    "runner_renewal_failed": "runners could not be reported to the database; tried again soon",
    "instructions_failed": "a chat continues without the instructions of its workspace",
    "mcp_server_failed": "an MCP server cannot be used; it is tried again",
    "mcp_list_failed": "an MCP server did not renew its list of tools; the former list stays",
    "mcp_refresh_failed": "an authorization server did not renew a token; it is tried again",
    "mcp_refresh_slow": "an authorization server is slow; a chat continues with the token it has",
    "mcp_grant_refused": "a user must connect to an MCP server again",
    "mcp_server_shadowed": "an MCP server of the settings has the slug of one that administrators"
    " created, which is used",
    "mcp_directory_failed": "a chat continues without the tools of MCP servers",
    "prompts_unreadable": "a chat continues without the prompts of the settings",
    "schedule_failed": "a schedule could not start its chat; its last_error says why",
    "schedules_unread": "the database did not answer; schedules wait",
    "git_host_failed": "a git host did not do what a chat's issue or pull request needs; it is"
    " asked again later, except for what is missing",
    "pull_request_not_opened": "the git host did not accept a pull request for a chat's branch",
    "repositories_unread": "the database did not answer; events of git hosts wait",
    "repository_delivery_refused": "a delivery to a connection to repositories had a wrong"
    " signature",
    "repository_event": "acted upon an event of a git host, or ignored it",
    "repository_events_full": "too many events of a connection to repositories wait; the git host"
    " must deliver again",
    "repository_work_failed": "a bug while handling an event of a git host; it is tried again",
    "slack_event": "acted upon a message or a press of a button in Slack, or ignored it",
    "slack_events_full": "too many events of a connection to Slack wait; Slack sends them again",
    "slack_failed": "Slack did not answer, limits requests or refuses a token; tried again later",
    "slack_unread": "the database did not answer; events of Slack wait",
    "slack_work_failed": "an event of Slack met a bug; it is tried again",
    "hook_failed": "a hook gave no answer that can be read; its failure policy decided",
    "webhook_failed": "the receiver of a webhook did not accept a delivery; it is sent again later",
    "webhooks_unread": "the database did not answer; webhooks wait",
    "build_abandoned": "no server could do a build: is the host of its workspace down?",
    "build_crashed": "a bug in a backend; the build has failed",
    "build_ended": "a workspace was started, stopped or deleted, or could not be",
    "build_lost": "the database was away for too long; a build is begun again",
    "build_result_rejected": "a bug in a backend; the build has failed",
    "build_worker_failed": "a bug in the build worker; it continues",
    "chat_taken_over": "took over a chat of a replica that died",
    "files_deleted": "deleted files that no chat names",
    "file_lost": "the bytes of a file are missing; the model is told that it has expired",
    "file_not_removed": "the bytes of a deleted file stay for now, and are removed later",
    "chats_removed": "removed chats that were archived long ago",
    "continuation_refused": "the provider does not go on from the text of an answer that was cut"
    " off; the answer is made again. The model's option prefill = false avoids the request",
    "call_wait_not_noted": "viewers do not see yet what a tool call waits for",
    "circuit_closed": "the provider answers again",
    "circuit_opened": "the provider fails for all chats; they wait, and one of them tries it",
    "commit_delayed": "the database is slow or away; a step waits for its commit",
    "context_rejected": "a workspace's instructions cannot be kept; chats go by the last good ones",
    "database_recovered": "the database answers again",
    "drain_finished": "stopped: unfinished chats were released to other replicas",
    "drain_started": "stopping: waiting for the steps in progress",
    "heartbeat_failed": "the database did not answer; leases are not renewed",
    "journal_lagging": "the database is slow or away; viewers elsewhere see live text late",
    "lease_lost": "the database was away for too long; other replicas take over the chats",
    "orphan_not_removed": "files of a deleted workspace cannot be removed; tried again",
    "orphan_removed": "removed the files of a workspace that was deleted",
    "release_failed": "the database was away at shutdown; other replicas find the chats later",
    "admin_token_of_this_host": "hosts that share a database have a token each: set"
    " CHATD_ADMIN_TOKEN to the same value on all of them",
    "secret_key_created": "made the key that seals secrets in the database; keep a copy of this"
    " file apart from the database's backups",
    "secret_key_missing": "the database has secrets that this host cannot open, and no running"
    " server sent the key: copy this file from the data directory of a host that has it; it is read"
    " within seconds",
    "secret_key_outdated": "the key was rotated: copy this file from a host that has the new key;"
    " it is read within seconds",
    "secrets_asked": "this host lacks secrets of the deployment, and asks the running servers for"
    " them",
    "secrets_not_received": "no running server sent the secrets of the deployment; copy the files"
    " secret and secret-keys of a host that has them",
    "secrets_not_sent": "a request for secrets is damaged; nothing was sent",
    "secrets_received": "another server sent the secrets of the deployment; they are in the files"
    " secret and secret-keys",
    "secrets_sent": "sent the secrets of the deployment to a host that asked for them and may write"
    " to the database; if you did not add it, see docs/replicas.md",
    "settings_incomplete": "models of this provider fail until this is corrected",
    "settings_shadowed": "administrators made providers or models of these names, which are used;"
    " remove them from these settings, or give them other names",
    "task_model_unusable": "the model that was chosen for this task cannot be used; the chat's own"
    " is used instead",
    "provider_key_rests": "the provider refused or limited a key; for now, calls use the next one",
    "settings_differ": "other running replicas define these models differently; each uses its own"
    " definition: give all replicas the same settings",
    "settings_lack_models": "other running replicas have these models and these settings do not;"
    " they stay enabled, and run here only if their provider is configured here",
    "chat_task_past_lost": "the database lost commits, perhaps in a failover; the chat continues"
    " from what is left",
    "sign_in_limited": "too many sign-ins from one address or for one user; they must wait",
    "sign_in_refused": "a wrong password, or a link that is used up or too old",
    "signed_in": "a user signed in with a browser",
    "template_skipped": "a template has a name that another has; it is left out",
    "notifications_connected": "NATS carries the notifications between the servers",
    "notifications_lost": "NATS is not connected; changes of other servers are seen seconds late,"
    " and it is tried again",
    "open_call_delayed": "the database is slow or away; model calls wait until they are recorded",
    "open_call_write_failed": "the record of a model call could not be written or deleted",
    "slow_statement": "the database took long for one statement of chatd; docs/monitoring.md says"
    " how to look at it",
    "spend_warning": "a user has spent this share of the spend limit",
    "call_never_sent": "a replica died before it sent the request of a model call; no cost",
    "traces_not_sent": "the collector of traces did not accept them; they are dropped, chats go on",
    "model_fell_back": "a model failed, and a fallback answers in its place",
    "fallback_skipped": "a fallback of a model cannot answer this chat",
    "usage_estimated": "recorded an estimate for a model call that its replica had not recorded",
    "usage_write_delayed": "the database is slow or away; usage is recorded later",
    "usage_write_failed": "usage of a discarded answer was not recorded",
    "workers_reaped": "a replica died or lost its connection; its chats were released",
    "workspace_down": "a workspace that should run does not; it is shown as stopped",
    "workspace_overdue": "a workspace was not used for long and is being stopped",
}
_DEFAULT_LEVEL: Final = logging.DEBUG
BACKLOG_READ_INTERVAL_S: Final = 10.0
SLOW_STATEMENT_LOG_INTERVAL_S: Final = 60.0
# A drain is logged only if chats were running.
_ONLY_WITH_CHATS: Final = frozenset({"drain_started", "drain_finished"})


def level_of(event: str, *, has_error: bool) -> int:
    """A failure without a level of its own is a warning."""
    return _LEVELS.get(event, logging.WARNING if has_error else _DEFAULT_LEVEL)


def explanation_of(event: str) -> str | None:
    return _EXPLANATIONS.get(event)


def explained(event: str, fields: Mapping[str, object]) -> LogEvent:
    """With the explanation of the event, or of the database error that caused it."""
    cause = DATABASE_CAUSES.get(str(fields.get("error_kind")))
    return LogEvent(event=event, fields=fields, explanation=cause or _EXPLANATIONS.get(event))


def check_collector(settings: OtelSettings) -> None:
    """Raises SettingsError if the extra is not installed that the settings need."""
    needed = ("opentelemetry.sdk", "opentelemetry.exporter")
    if (settings.traces or settings.metrics) and not all(map(find_spec, needed)):
        text = "otel.traces and otel.metrics need an extra: pip install 'chatd[otel]'"
        raise SettingsError(text)


def open_tracer(settings: OtelSettings, emit: Emit) -> Tracer:
    """Nothing of OpenTelemetry's SDK is imported if the settings do not ask for it."""
    if not (settings.traces or settings.metrics):
        return NO_TRACER
    from chatd.app.traces import CollectorTracer  # noqa: PLC0415 - an extra, and slow to import

    return CollectorTracer(settings, emit)


class Telemetry:
    """Satisfies `ports.Emit`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter("chatd_events", "Events, by name.", ["event"], registry=registry)
        Gauge("chatd_build_info", "Always 1.", ["version"], registry=registry).labels(
            version("chatd")
        ).set(1)
        # A metric looks up its labels under a lock, and checks them, each time.
        self._counts: dict[str, Callable[[], None]] = {}
        self._measures: dict[str, Callable[[float], None]] = {}
        self._errors = Counter(
            "chatd_errors", "Failures, by event and kind.", ["event", "kind"], registry=registry
        )
        self._durations = Histogram(
            "chatd_duration_seconds",
            "How long things took, by event.",
            ["event"],
            registry=registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300),
        )
        self._model_failures = Counter(
            "chatd_model_failures",
            "Model calls that failed, by provider and kind.",
            ["provider", "kind"],
            registry=registry,
        )

        self._tokens = Counter(
            "chatd_tokens",
            "Tokens of recorded model calls, estimates included.",
            ["provider", "model", "kind"],
            registry=registry,
        )
        self._prompts = Counter(
            "chatd_prompts",
            "Model calls after the first of a turn, by what kept the prompt from beginning like the"
            " previous one.",
            ["cause"],
            registry=registry,
        )
        self._ratings = Counter(
            "chatd_ratings",
            "Thumbs that users gave to answers, by value; a changed one counts again.",
            ["value"],
            registry=registry,
        )
        self._lost_tokens = Counter(
            "chatd_prompt_lost_tokens",
            "Estimated tokens of previous prompts that the provider could not read from its cache.",
            ["cause"],
            registry=registry,
        )
        self._cost = Counter(
            "chatd_cost_usd",
            "Cost of recorded model calls; calls without a price count as nothing.",
            ["provider", "model"],
            registry=registry,
        )
        self._cleared = {
            name: Counter(f"chatd_cleared_{name}", text, registry=registry)
            for name, text in (
                ("results", "Old tool results that were shortened for the model."),
                ("tokens", "Tokens that this took out of prompts, estimated."),
            )
        }

    def __call__(self, event: str, **fields: object) -> None:
        self._count(event)
        if event == "results_cleared":
            self._count_cleared(fields)
        if event == "usage_recorded":
            self._count_usage(fields)
        if event == "prompt_extended":
            self._count_prompt(fields)
        if event == "answer_rated":
            self._ratings.labels(str(fields["value"])).inc()
        if isinstance(kind := fields.get("error_kind"), str):
            self._errors.labels(event, kind).inc()
            if event == "model_failed":
                self._model_failures.labels(str(fields.get("provider", "")), kind).inc()
        if isinstance(duration_ms := fields.get("duration_ms"), int | float):
            self._measure(event, duration_ms / 1000)
        level = level_of(event, has_error="error" in fields or "error_kind" in fields)
        if event in _ONLY_WITH_CHATS and not any(fields.values()):
            level = _DEFAULT_LEVEL
        # Of several failures in a row the first is logged; all are counted.
        if fields.get("failures", 1) != 1:
            level = _DEFAULT_LEVEL
        if log.isEnabledFor(level):
            self._write(level, event, fields)

    def _count(self, event: str) -> None:
        if (count := self._counts.get(event)) is None:
            count = self._counts[event] = self._events.labels(event).inc
        count()

    def _measure(self, event: str, seconds: float) -> None:
        if (measure := self._measures.get(event)) is None:
            measure = self._measures[event] = self._durations.labels(event).observe
        measure(seconds)

    def _count_cleared(self, fields: Mapping[str, object]) -> None:
        for name, counter in self._cleared.items():
            if isinstance(count := fields.get(name), int):
                counter.inc(count)

    def _count_prompt(self, fields: Mapping[str, object]) -> None:
        cause, lost = str(fields["cause"]), fields["lost_tokens"]
        self._prompts.labels(cause).inc()
        self._lost_tokens.labels(cause).inc(lost if isinstance(lost, int) else 0)

    def _count_usage(self, fields: Mapping[str, object]) -> None:
        labels = str(fields["provider"]), str(fields["model"])
        for kind in ("input", "output", "cache_read", "cache_creation"):
            if isinstance(tokens := fields[f"{kind}_tokens"], int) and tokens > 0:
                self._tokens.labels(*labels, kind).inc(tokens)
        if isinstance(micros := fields["cost_micros"], int) and micros > 0:
            self._cost.labels(*labels).inc(micros / 1_000_000)

    def _write(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        error = fields.get("error")
        cause = error if isinstance(error, BaseException) and level >= logging.ERROR else None
        shown = {name: value for name, value in fields.items() if name != "error"}
        log.log(level, explained(event, shown), exc_info=cause)


class SlowStatements:
    """Reports slow statements by name: all are counted, each is logged at most once in
    `SLOW_STATEMENT_LOG_INTERVAL_S`."""

    def __init__(self, registry: CollectorRegistry, emit: Emit, clock: Clock) -> None:
        self._counter = Counter(
            "chatd_slow_statements",
            "Statements that took longer than database.slow_statement_s.",
            ["statement"],
            registry=registry,
        )
        self._emit = emit
        self._clock = clock
        self._names: dict[str, str] = {}
        self._logged: dict[str, tuple[float, int]] = {}

    def watch(self, slow_s: float) -> StatementWatch | None:
        if slow_s == 0:
            return None
        return StatementWatch(now=self._clock.monotonic, slow_s=slow_s, report=self.report)

    def report(self, query: str, took_s: float) -> None:
        if (name := self._names.get(query)) is None:
            name = self._names[query] = statement_name(query)
        self._counter.labels(name).inc()
        now = self._clock.monotonic()
        since, count = self._logged.get(name, (-math.inf, 0))
        is_new = now - since >= SLOW_STATEMENT_LOG_INTERVAL_S
        since, count = (now, 1) if is_new else (since, count + 1)
        self._logged[name] = since, count
        duration_ms = round(took_s * 1000)
        self._emit("slow_statement", statement=name, duration_ms=duration_ms, failures=count)


class Gauges:
    """Current state: of this process, read at every scrape; of all replicas, as last read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, words: str, *labels: str) -> Gauge:
            return Gauge(f"chatd_{name}", words, labels, registry=registry)

        self.running = gauge("running_chats", "Chats that run here.")
        self.kept_history_bytes = gauge(
            "kept_history_bytes", "Histories of chats that ran here lately, kept in memory."
        )
        self.slots = gauge("slots", "Chats that may run here at once.", "kind")
        self.runners = gauge("runners", "Runners that are connected here.")
        self.tick_age = gauge(
            "tick_age_seconds", "Since the database last renewed this worker's lease."
        )
        self.connections = gauge("database_connections", "Connections of the pool that are open.")
        self.connections_limit = gauge("database_connections_limit", "As many may be open.")
        self.connections_waiting = gauge("database_waiting", "Statements that wait for one.")
        self.notifications = gauge(
            "notifications_connected", "Whether hints of other replicas arrive here.", "bus"
        )
        self.dropped_hints = gauge(
            "dropped_hints", "Hints to other replicas that were given up since the start."
        )
        self._chats = gauge("chats", "Chats under way on all replicas, by state.", "state")
        self._oldest = gauge(
            "oldest_pending_seconds", "How long a chat has waited for a worker, on all replicas."
        )
        self._show(None)

    async def run(self, conn: Conn, env: Env) -> None:
        """Read the backlog at intervals. After a failed read the gauges are NaN, not stale."""
        failures = 0
        while True:
            try:
                self._show(await workers.read_backlog(conn))
                failures = 0
            except ChatdError as error:
                self._show(None)
                failures += 1
                env.emit("backlog_read_failed", error_kind=error.code, failures=failures)
            await env.clock.sleep(BACKLOG_READ_INTERVAL_S, "backlog")

    def _show(self, found: workers.Backlog | None) -> None:
        for state in ("pending", "delayed", "running", "interrupting"):
            count: int | float = math.nan if found is None else getattr(found, state)
            self._chats.labels(state).set(count)
        self._oldest.set(math.nan if found is None else found.oldest_pending_s)
