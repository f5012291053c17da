"""The table of log events in docs/log-events.md, read from the source and from `app/telemetry.py`.

A row per event that the server may log at INFO or above: events with a level of their own, and
those that carry an error.
"""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chatd.app.telemetry import explanation_of, level_of

SOURCE: Final = Path(__file__).parent.parent / "src" / "chatd"
WARNED_BY: Final = frozenset({"error", "error_kind"})
COMPUTED: Final = ("limit_forgotten", "limit_learned")
"""Names that are no constant where they are emitted."""

MEANINGS: Final = {
    "acquire_failed": "the database did not answer; waiting chats are acquired later",
    "answer_continued": "after a crash or a deploy an answer went on from the text so far",
    "browser_not_read": "the browser of a workspace could not be read",
    "chat_compacted": "a chat was summarized",
    "chat_list_poll_failed": "the database did not answer; lists of chats are late",
    "chat_list_read_failed": "the database did not answer; lists of chats are late",
    "chat_list_unreadable": "a row of a chat cannot be read: a bug; other chats go on",
    "answer_rated": "a user rated an answer",
    "chat_not_removed": "a deleted chat could not be removed; tried again",
    "chat_started": "a worker has begun to run a chat",
    "chat_task_crashed": "a bug ended the task of a chat; it is tried again, then fails",
    "chat_task_failed": "a bug failed a turn; a message continues the chat",
    "debug_record_dropped": "the record of a model call was not written",
    "diff_status_failed": "the changes in a workspace could not be read",
    "feeds_poll_failed": "the database did not answer; viewers see changes late",
    "inspect_failed": "the state of a workspace could not be read",
    "journal_truncate_failed": "old live text was not dropped yet; tried again",
    "journal_write_failed": "live text cannot be written: a bug; answers are stored as always",
    "limit_forgotten": "a model answered a longer prompt than its refusals had taught",
    "limit_learned": "a provider's refusal told the size of a model's window",
    "limit_not_kept": "a learned window was not stored; the next refusal teaches it again",
    "mcp_tools_not_kept": "the list of an MCP server's tools was not stored",
    "model_failed": "a call of a provider failed; `error_kind` says how, and `detail` its words",
    "models_read_failed": "the database did not answer; the models known last are used",
    "periodic_task_failed": "work at intervals has failed once; it goes on",
    "pull_request_failed": "a git host did not tell about a pull request",
    "reap_failed": "the database did not answer; chats of dead workers are released later",
    "release_refused": "another worker has the chat already",
    "results_cleared": "old tool results of a chat were shortened for the model",
    "screen_not_read": "the desktop of a workspace could not be read",
    "secret_keys_unread": "the keys of stored secrets could not be read; tried again",
    "share_read_failed": "the database did not answer; a shared chat is shown later",
    "project_unreadable": "a chat goes on with what it was told of its project",
    "skills_unreadable": "a chat goes on without skills",
    "memory_unreadable": "a chat goes on without new notes of the memory",
    "spend_check_failed": "the spend of a user could not be read (docs/spending.md)",
    "summary_failed": "a model did not write a summary; the turn goes on while it can",
    "tail_failed": "live text of other replicas could not be read; it comes late",
    "task_not_cancelled": "a tool ignored its cancellation; its later writes are refused",
    "tool_failed": "a bug in a tool; the model is told",
    "tool_order_not_kept": "the order of MCP tools was not stored",
    "tool_output_not_kept": "the result of a tool was not written before its step's commit",
    "turn_ended": "a turn has ended; `outcome` says how",
    "turn_failed": "a turn ended with an error, which the chat shows",
    "worker_failed": "a bug in the worker; it is started again",
    "workspace_activity_write_failed": "the last use of a workspace was not written",
    "workspace_mcp_failed": "an MCP server inside a workspace cannot be used",
}
"""Of events that need no explanation beside their fields in the log itself."""


def logged_events() -> dict[str, int]:
    """Each event with the level at which it is logged."""
    found = {name: level_of(name, has_error=False) for name in COMPUTED}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "emit(" in text else ():
            if isinstance(node, ast.Call) and _is_emit(node.func) and node.args:
                fields = {keyword.arg for keyword in node.keywords}
                for name in _names(node.args[0]):
                    level = level_of(name, has_error=bool(fields & WARNED_BY))
                    found[name] = max(level, found.get(name, 0))
    return {name: level for name, level in sorted(found.items()) if level >= logging.INFO}


def _is_emit(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.lstrip("_") == "emit"
        case _:
            return False


def _names(argument: ast.expr) -> Iterator[str]:
    """Of a constant, or of a choice between constants."""
    match argument:
        case ast.Constant(value=str(name)):
            yield name
        case ast.IfExp(body=one, orelse=other):
            yield from (*_names(one), *_names(other))
        case _:
            pass


def meaning_of(event: str) -> str:
    """Raises LookupError for an event that nothing explains."""
    found = explanation_of(event) or MEANINGS.get(event)
    if found is None:
        raise LookupError(f"Say what {event} means, in tools/log_table.py or app/telemetry.py.")
    return found


def rows() -> Iterator[str]:
    yield "| event | level | meaning |"
    yield "|---|---|---|"
    for name, level in logged_events().items():
        yield f"| `{name}` | {logging.getLevelName(level)} | {meaning_of(name)} |"
