"""The work of `chatd admin sign-in-link`, `create-user`, `reset-password` and `audit`, on the
database."""

import sys
from datetime import UTC, date, datetime, time, timedelta
from uuid import uuid4

from msgspec import Struct

from chatd.api.accounts.passwords import Passwords
from chatd.api.accounts.sign_in import create_link, local_url, sign_in_link
from chatd.cli.deployment import open_deployment
from chatd.cli.server_address import read_address
from chatd.domain.access import ROLES, SystemActor
from chatd.domain.account.audit_text import (
    OBJECT_TYPES,
    actor_text,
    csv_entries,
    csv_header,
    summary,
)
from chatd.domain.account.entities import AuditEntry, User
from chatd.domain.account.rules import check_email, check_password, check_username
from chatd.domain.errors import NotFound
from chatd.domain.ids import CredentialId, UserId
from chatd.settings.schema import Settings, SettingsError
from chatd.store.account import audit, credentials, users
from chatd.store.account.audit import AuditFilter
from chatd.store.account.users import NewUser
from chatd.store.conn import Conn


async def print_sign_in_link(settings: Settings, username: str) -> None:
    actor = _actor("sign-in-link")
    async with open_deployment(settings) as pool:
        user = await _find(pool, actor, username)
        link = await _create_link(settings, pool, actor, user)
    print(link)


async def create_user(
    settings: Settings, username: str, *, role: str, email: str | None, password: str | None
) -> None:
    if role not in ROLES:
        raise SettingsError(f"--role: there is no role {role!r}; there are {', '.join(ROLES)}")
    actor = _actor("create-user")
    checked = None if password is None else check_password(password)
    new = NewUser(
        id=UserId(uuid4()),
        username=check_username(username),
        role=role,
        email=None if email is None else check_email(email),
        password_hash=None if checked is None else await Passwords().make_hash(checked),
    )
    async with open_deployment(settings) as pool:
        async with pool.transaction() as session:
            user = await users.create(session, actor, new)
        link = None if password else await _create_link(settings, pool, actor, user)
    print(f"created {user.username}, {user.role}", file=sys.stderr)
    if link is not None:
        print(link)


async def reset_password(settings: Settings, username: str, password: str) -> None:
    actor = _actor("reset-password")
    new_hash = await Passwords().make_hash(check_password(password))
    async with open_deployment(settings) as pool:
        user = await _find(pool, actor, username)
        async with pool.transaction() as session:
            await users.set_password(session, actor, user.id, new_hash)
            ended = await credentials.revoke_of_user(session, actor, user.id, ("session", "link"))
    print(f"the password of {user.username} is set; {ended} sessions and links ended")


class AuditRequest(Struct, frozen=True, kw_only=True):
    """The options of `chatd admin audit`. Days are those of UTC; `until` is part of the range."""

    user: str | None
    since: str | None
    until: str | None
    object_type: str | None
    object_id: str | None
    text: str | None
    limit: int
    as_csv: bool


async def print_audit_log(settings: Settings, request: AuditRequest) -> None:
    """Newest first. Raises SettingsError for a bad filter, NotFound for an unknown user."""
    if request.object_type is not None and request.object_type not in OBJECT_TYPES:
        known = ", ".join(OBJECT_TYPES)
        raise SettingsError(f"--type: there is no type {request.object_type!r}; there are {known}")
    if request.object_id is not None and request.object_type is None:
        raise SettingsError("--object: give its --type too")
    since, until = _day("--since", request.since), _day("--until", request.until)
    actor = _actor("audit")
    async with open_deployment(settings) as pool:
        user = None if request.user is None else await _find(pool, actor, request.user)
        wanted = AuditFilter(
            actor_id=None if user is None else user.id,
            object_type=request.object_type,
            object_id=request.object_id,
            since=since,
            until=None if until is None else until + timedelta(days=1),
            text=request.text,
        )
        if request.as_csv:
            start = await audit.begin_export(pool, actor, wanted)
            sys.stdout.buffer.write(csv_header())
            async for batch in audit.read_export(pool, actor, wanted, start):
                sys.stdout.buffer.write(csv_entries(batch))
            sys.stdout.buffer.flush()
            return
        found = await audit.list_page(pool, actor, wanted, before=None, limit=request.limit)
    for entry in found:
        print(_line(entry))


def _line(entry: AuditEntry) -> str:
    """Names are of others: what could act on a terminal is escaped."""
    words = f"{actor_text(entry)} {summary(entry)}"
    shown = "".join(char if char.isprintable() else "\ufffd" for char in words)
    return f"{entry.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}  {shown}"


def _day(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        raise SettingsError(f"{option}: {text!r} is not a day, such as 2026-11-30") from None


async def _find(conn: Conn, actor: SystemActor, username: str) -> User:
    found = await users.find_by_login(conn, actor, username)
    if found is None:
        raise NotFound(f"there is no user {username!r}")
    return found[0]


async def _create_link(settings: Settings, conn: Conn, actor: SystemActor, user: User) -> str:
    """Raises NotFound."""
    if user.is_service or not user.is_active:
        raise NotFound(f"{user.username} is suspended or a service account and cannot sign in")
    secret, _ = await create_link(conn, actor, user.id, CredentialId(uuid4()))
    server = settings.server
    host = f"[{server.host}]" if ":" in server.host else server.host
    running = read_address(settings.data_dir) or f"http://{host}:{server.port}"
    return sign_in_link(server.url or local_url(running), secret)


def _actor(command: str) -> SystemActor:
    return SystemActor(reason=f"chatd admin {command}")
