"""Entries of the audit log in words, for people: who did what to which object. Pure.

An entry names its object by type and id; the store finds the names (store/account/audit.py). What
is deleted keeps its name where one is known, and else is named by its type and id.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from chatd.domain.access.accounts import AuditEntry
from chatd.domain.text import csv_rows

OBJECT_TYPES: Final[Mapping[str, str]] = {
    "audit_log": "the audit log",
    "chat": "chat",
    "file": "file",
    "git_credential": "token for the git host",
    "group": "group",
    "hook": "hook",
    "host_credential": "credential for the host",
    "link": "sign-in link",
    "mcp_server": "MCP server",
    "model": "model",
    "project": "project",
    "provider": "provider",
    "repository_connection": "connection to repositories",
    "rating": "the ratings of answers",
    "runner": "runner",
    "runner_token": "token of runners",
    "server": "server",
    "session": "session",
    "settings": "the settings of the server",
    "slack_connection": "connection to Slack",
    "slack_link": "link to the person of Slack",
    "spend_limit": "spend limit",
    "template": "template",
    "ticket": "ticket",
    "token": "API token",
    "tool_policy": "tool policy",
    "user": "user",
    "webhook": "webhook",
    "workspace": "workspace",
}
_QUOTED: Final = frozenset({"chat", "file"})
"""Their names are titles that people write."""

# {object}: its type and name. {fields}: what was changed. {of}: whose it is, if of another user.
# {person}: the user of the detail. {amount}: of a spend limit.
_PHRASES: Final[Mapping[str, str]] = {
    "audit.export": "exported {entries} of the audit log",
    "call.answer_by_link": "answered a call of {object} by the link of a notification",
    "chat.read": "read {object}{of}",
    "chat.share": "changed who may read {object}{of}",
    "file.read": "read {object}{of}",
    "git_credential.delete": "deleted {object}",
    "git_credential.save": "saved {object}",
    "group.add_member": "added {person} to {object}",
    "group.create": "created {object}",
    "group.delete": "deleted {object}",
    "group.remove_member": "removed {person} from {object}",
    "group.update": "changed {fields} of {object}",
    "hook.ask": "let {object} ask a person about a call",
    "hook.change": "let {object} change the arguments of a call",
    "hook.create": "added {object}",
    "hook.delete": "deleted {object}",
    "hook.deny": "let {object} refuse",
    "hook.fail": "could not ask {object}",
    "hook.update": "changed {object}",
    "host_credential.delete": "deleted {object}",
    "host_credential.save": "saved {object}",
    "link.create": "made a sign-in link for {object}",
    "link.revoke": "revoked a sign-in link{of}",
    "mcp_server.connect": "connected {object}",
    "mcp_server.create": "added {object}",
    "mcp_server.delete": "deleted {object}",
    "mcp_server.disconnect": "disconnected {object}",
    "mcp_server.update": "changed {fields} of {object}",
    "model.create": "added {object}",
    "model.delete": "deleted {object}",
    "model.forgotten": "forgot the context window of {object}",
    "model.learned": "learned the context window of {object}",
    "model.override": "changed the models of titles and summaries",
    "model.update": "changed {fields} of {object}",
    "provider.add_key": "added a key to {object}",
    "provider.create": "added {object}",
    "provider.delete": "deleted {object}",
    "provider.delete_key": "deleted a key of {object}",
    "provider.delete_user_key": "deleted their own key of a provider",
    "provider.set_user_key": "set their own key of {object}",
    "provider.update": "changed {fields} of {object}",
    "provider.update_key": "changed a key of {object}",
    "public_link.create": "made a public link to {object}",
    "public_link.revoke": "revoked a public link to {object}{of}",
    "public_link.update": "let a public link to {object} show what is new",
    "rating.export": "exported the ratings of answers",
    "restore.confirm": "confirmed the restored backup",
    "repository_connection.create": "added {object}",
    "repository_connection.delete": "deleted {object}",
    "repository_connection.update": "changed {object}",
    "runner.delete": "removed {object}",
    "runner.update": "changed {fields} of {object}",
    "runner_token.create": "made {object}",
    "runner_token.revoke": "revoked {object}",
    "server.receive_secrets": "received the secrets of the deployment as {object}",
    "server.send_secrets": "sent the secrets of the deployment to {object}",
    "session.revoke": "ended a session{of}",
    "settings.update": "changed {fields} of {object}",
    "slack_connection.create": "added {object}",
    "slack_connection.delete": "deleted {object}",
    "slack_connection.update": "changed {object}",
    "slack_link.create": "made a {object}",
    "slack_link.delete": "deleted a {object}",
    "spend_limit.delete_default": "removed the spend limit for everyone that was set here",
    "spend_limit.delete_group": "deleted the spend limit of {object}",
    "spend_limit.delete_user": "deleted the spend limit of {object}",
    "spend_limit.set_default": "set the spend limit for everyone to {amount}",
    "spend_limit.set_group": "set the spend limit of {object} to {amount}",
    "spend_limit.set_user": "set the spend limit of {object} to {amount}",
    "template.activate": "changed the active version of {object}",
    "template.create": "created {object}",
    "template.delete": "deleted {object}",
    "template.update": "changed {fields} of {object}",
    "preview.open": "opened a preview of a port of {object}",
    "preview.share": "let the readers of {object}{of} see a preview",
    "preview.unshare": "no longer lets the readers of {object}{of} see a preview",
    "terminal.open": "opened a terminal in {object}",
    "ticket.revoke": "revoked a ticket{of}",
    "token.create": "made {object}{of}",
    "token.revoke": "revoked {object}{of}",
    "tool_policy.update": "changed the tool policy of {object}",
    "user.activate": "activated {object}",
    "user.create": "created {object}",
    "user.delete": "deleted {object}",
    "user.set_password": "set the password of {object}",
    "user.sign_in": "signed in",
    "project.add_note": "added a note to {object}",
    "project.change_note": "changed a note of {object}",
    "project.remove_note": "removed a note from {object}",
    "project.add_file": "added a file to {object}",
    "project.create": "created {object}",
    "project.delete": "deleted {object}",
    "project.remove_file": "removed a file from {object}",
    "project.remove_member": "removed {person} from {object}",
    "project.set_member": "gave {person} a role in {object}",
    "project.update": "changed {object}",
    "user.suspend": "suspended {object}",
    "user.update": "changed {fields} of {object}",
    "webhook.create": "added {object}",
    "webhook.delete": "deleted {object}",
    "webhook.update": "changed {object}",
    "workspace.command": "ran a command in {object}",
    "workspace.file.revert": "reverted a file in {object}",
    "workspace.process.signal": "sent a signal to a command in {object}",
    "workspace.read": "read files of {object}{of}",
}
_LIMIT_TYPES: Final = {"spend_limit.set_group": "group", "spend_limit.delete_group": "group"}
_SERVER: Final = "The server"
_MAX_FIELDS: Final = 3
_MICROS: Final = 1_000_000

CSV_COLUMNS: Final = (
    "time",
    "who",
    "what",
    "action",
    "object_type",
    "object",
    "object_id",
    "outcome",
    "address",
    "actor_id",
    "detail",
)


def actor_text(entry: AuditEntry) -> str:
    """The user's name today, else the one at that time, else the command."""
    if entry.actor_id is None:
        return _SERVER if entry.actor in ("sign-in", "worker") else entry.actor
    name = entry.actor_name or entry.actor
    return f"{name} (deleted user)" if entry.actor_is_deleted else name


def object_text(entry: AuditEntry) -> str:
    """Its type and its name, such as `the chat “Fix the build”`."""
    kind = _noun(entry)
    if kind.startswith("the "):
        return kind
    if entry.object_name:
        name = f"“{entry.object_name}”" if entry.object_type in _QUOTED else entry.object_name
        is_gone = entry.object_is_deleted and not entry.action.endswith(".delete")
        return f"the {kind} {name}" + (" (deleted)" if is_gone else "")
    if entry.object_id == "unknown":
        return f"an unknown {kind}"
    if entry.object_is_deleted:
        return f"a deleted {kind} ({entry.object_id})"
    return f"the {kind} {entry.object_id}"


def summary(entry: AuditEntry) -> str:
    """What the actor did, to be read after the actor's name."""
    if entry.action == "user.sign_in" and entry.outcome != "done":
        return f"refused a sign-in as {object_text(entry)}"
    phrase = _PHRASES.get(entry.action)
    if phrase is None:
        return f"{entry.action}: {object_text(entry)}"
    text = phrase.format(
        object=object_text(entry),
        fields=_fields(entry),
        of=_of(entry),
        person=entry.person_name or "a user",
        amount=_amount(entry.detail),
        entries=_entries(entry.detail),
    )
    return text if entry.outcome == "done" else f"{text}: {entry.outcome}"


def actions_like(text: str) -> tuple[str, ...]:
    """The actions of which the code or the words have this text."""
    wanted = " ".join(text.casefold().split())
    return tuple(
        action
        for action, phrase in _PHRASES.items()
        if wanted in action or wanted in _plain(action, phrase).casefold()
    )


def csv_header() -> bytes:
    """With a byte order mark, by which spreadsheets know the encoding."""
    return b"\xef\xbb\xbf" + csv_rows([CSV_COLUMNS])


def csv_entries(entries: Iterable[AuditEntry]) -> bytes:
    return csv_rows(_csv_cells(entry) for entry in entries)


def _csv_cells(entry: AuditEntry) -> Sequence[str]:
    return (
        entry.at.isoformat(),
        actor_text(entry),
        summary(entry),
        entry.action,
        entry.object_type,
        entry.object_name or "",
        entry.object_id,
        entry.outcome,
        entry.ip or "",
        "" if entry.actor_id is None else str(entry.actor_id),
        "" if entry.detail is None else json.dumps(entry.detail, ensure_ascii=False),
    )


def _noun(entry: AuditEntry) -> str:
    """A limit is named by whose it is, a policy by what it is of."""
    if entry.object_type == "spend_limit":
        return _LIMIT_TYPES.get(entry.action, "user")
    if entry.object_type == "tool_policy":
        return "the server" if entry.object_id == "deployment" else "template"
    return OBJECT_TYPES.get(entry.object_type, entry.object_type.replace("_", " "))


def _plain(action: str, phrase: str) -> str:
    """The words of an action, without names."""
    noun = OBJECT_TYPES.get(action.partition(".")[0], "")
    return phrase.format(object=noun, fields="", of="", person="", amount="", entries="")


def _of(entry: AuditEntry) -> str:
    return "" if entry.person_name is None else f" of {entry.person_name}"


def _fields(entry: AuditEntry) -> str:
    names = _changed_fields(entry.detail or {})
    if not names:
        return "nothing"
    words = ["the " + name.removeprefix("is_").replace("_", " ") for name in names]
    if len(words) > _MAX_FIELDS:
        words = [*words[:_MAX_FIELDS], f"{len(words) - _MAX_FIELDS} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _changed_fields(detail: Mapping[str, Any]) -> list[str]:
    named = detail.get("fields")
    if isinstance(named, list):
        return [str(name) for name in cast("list[object]", named)]
    return list(dict.fromkeys((*_mapping(detail.get("before")), *_mapping(detail.get("after")))))


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _amount(detail: Mapping[str, Any] | None) -> str:
    micros = (detail or {}).get("spend_limit_micros")
    if not isinstance(micros, int):
        return "none"
    digits = 2 if micros % (_MICROS // 100) == 0 else 6
    period = (detail or {}).get("period")
    text = f"${micros / _MICROS:,.{digits}f}"
    return f"{text} a {period}" if isinstance(period, str) else text


def _entries(detail: Mapping[str, Any] | None) -> str:
    count = (detail or {}).get("entries")
    if not isinstance(count, int):
        return "entries"
    return "1 entry" if count == 1 else f"{count:,} entries"
