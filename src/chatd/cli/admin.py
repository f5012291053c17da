"""The work of `chatd migrate` and `chatd admin`, on the database of a deployment.

`chatd admin` works on a deployment that exists, and names it before anything is changed.
"""

import os
import shlex
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta
from pathlib import Path
from uuid import uuid4

from msgspec import Struct

from chatd.api.accounts.sign_in import Passwords, create_link, local_url, sign_in_link
from chatd.app.database import connect_config, has_database, open_database
from chatd.cli.output import print_json
from chatd.cli.process import read_settings
from chatd.cli.target import read_address
from chatd.clock import SystemClock
from chatd.domain.access.accounts import (
    AuditEntry,
    User,
    check_email,
    check_password,
    check_username,
)
from chatd.domain.access.audit_text import (
    OBJECT_TYPES,
    actor_text,
    csv_entries,
    csv_header,
    object_text,
    summary,
)
from chatd.domain.access.permissions import ROLES, SystemActor
from chatd.domain.errors import NotFound
from chatd.domain.ids import CredentialId, UserId
from chatd.services.operation.key_rotation import KeyRotation
from chatd.services.operation.restores import (
    refuse_unfinished_database,
    refuse_unfinished_directory,
)
from chatd.services.operation.secret_keys import key_source
from chatd.settings.config_file import default_data_dir
from chatd.settings.schema import Settings, SettingsError, redact_url
from chatd.store.account import audit, credentials, users
from chatd.store.account.audit import AuditFilter
from chatd.store.account.users import NewUser
from chatd.store.database import migrator
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool, PoolConfig


def find_deployment(flags: dict[str, str | None], config: Path | None) -> Settings:
    """Says on standard error which one it is. Raises SettingsError if the data directory has none:
    a forgotten flag would create another deployment."""
    settings = read_settings(flags, config)
    if not has_database(settings):
        raise SettingsError(
            f"there is no deployment in {settings.data_dir}. Name the data directory of yours with"
            " --data-dir or CHATD_DATA_DIR, or its database with --database-url; chatd serve"
            " creates a deployment."
        )
    print(f"deployment: {settings.data_dir}, database {database_name(settings)}", file=sys.stderr)
    return settings


@asynccontextmanager
async def open_deployment(settings: Settings) -> AsyncGenerator[Pool]:
    """Its database, migrated. Raises SettingsError if chatd has never used the database."""
    refuse_unfinished_directory(settings.data_dir)
    async with open_database(settings, os.environ, SystemClock()) as server:
        await refuse_unfinished_database(connect_config(settings, server.dsn))
        if all(one.state == "pending" for one in await migrator.status(server.dsn)):
            raise SettingsError(
                f"{database_name(settings)} is no database of chatd: no migration was applied to"
                " it. Name the one of your deployment with --database-url or --data-dir; chatd"
                " serve creates a deployment."
            )
        await migrator.up(server.dsn)
        pool = Pool(PoolConfig(connect=connect_config(settings, server.dsn), max_size=2))
        try:
            yield pool
        finally:
            await pool.close()


def database_name(settings: Settings) -> str:
    url = settings.database.url
    return "embedded PostgreSQL" if url is None else redact_url(url)


# Users


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


# The audit log


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
    as_json: bool


async def print_audit_log(settings: Settings, request: AuditRequest) -> None:
    """Newest first. Raises SettingsError for a bad filter, NotFound for an unknown user."""
    if request.object_type is not None and request.object_type not in OBJECT_TYPES:
        known = ", ".join(OBJECT_TYPES)
        raise SettingsError(f"--type: there is no type {request.object_type!r}; there are {known}")
    if request.object_id is not None and request.object_type is None:
        raise SettingsError("--object: give its --type too")
    since, until = _day("--since", request.since), _day("--until", request.until)
    if request.as_csv and request.as_json:
        raise SettingsError("say --csv or --json, not both")
    actor = _actor("audit")
    async with open_deployment(settings) as pool:
        user = None if request.user is None else await _find(pool, actor, request.user)
        wanted = AuditFilter(
            actor_id=None if user is None else user.id,
            object_type=request.object_type,
            object_id=request.object_id,
            since=since,
            until=None if until is None or until.year == MAXYEAR else until + timedelta(days=1),
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
    if request.as_json:
        print_json([_fields(entry) for entry in found])
        return
    for entry in found:
        print(_line(entry))


def _fields(entry: AuditEntry) -> dict[str, object]:
    """As `GET /audit` has them."""
    words = {
        "actor_name": actor_text(entry),
        "object_text": object_text(entry),
        "summary": summary(entry),
    }
    return {**{name: getattr(entry, name) for name in entry.__struct_fields__}, **words}


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


# Migrations and keys


async def migrate_up(settings: Settings) -> None:
    async with open_database(settings, os.environ, SystemClock()) as server:
        applied = await migrator.up(server.dsn)
    for name in applied:
        print(f"applied {name}")
    if not applied:
        print("up to date")


async def show_migrations(settings: Settings) -> None:
    async with open_database(settings, os.environ, SystemClock()) as server:
        lines = await migrator.status(server.dsn)
    for line in lines:
        when = "" if line.applied_at is None else f"  {line.applied_at:%Y-%m-%d %H:%M:%S} UTC"
        print(f"{line.version:04d}  {line.state:<8}{when}  {line.name}")


async def check_migrations(settings: Settings) -> bool:
    """Return whether the database is up to date with this version."""
    async with open_database(settings, os.environ, SystemClock()) as server:
        plan = await migrator.check(server.dsn)
    for migration in plan.pending:
        print(f"pending {migration.file}")
    if plan.ahead:
        print(f"ahead of this version by {len(plan.ahead)}")
    if not plan.is_behind:
        print("up to date")
    return not plan.is_behind


@asynccontextmanager
async def _key_rotation(settings: Settings) -> AsyncGenerator[KeyRotation]:
    source = key_source(settings.data_dir, os.environ)
    async with open_deployment(settings) as pool:
        yield KeyRotation(pool, source, SystemClock(), print_line)


async def rotate_keys(settings: Settings, *, lost: bool) -> None:
    async with _key_rotation(settings) as rotation:
        result = await rotation.rotate(lost=lost)
    print_line(f"{result.resealed} secrets sealed again with key {result.key_id}")
    if result.unreadable:
        print_line(f"{result.unreadable} secrets cannot be opened: enter them again")
    if result.unused:
        keys = ", ".join(result.unused)
        command = administration_command("rotate-keys --remove-old", settings, os.environ)
        print_line(f"no secret uses {keys} any more: {command}")


async def remove_old_keys(settings: Settings) -> None:
    async with _key_rotation(settings) as rotation:
        removed = await rotation.remove_unused()
    print_line(f"removed {', '.join(removed)}" if removed else "there is no unused key")


def administration_command(words: str, settings: Settings, env: Mapping[str, str]) -> str:
    """`chatd admin ...` for this deployment, as it works in another shell of the same account: by
    its path if `chatd` is not found by its name. A password stays in the environment, which the
    shell then must have."""
    flags: dict[str, str] = {}
    if config := env.get("CHATD_CONFIG"):
        flags["--config"] = shlex.quote(str(Path.cwd() / config))
    if settings.data_dir != default_data_dir(env, uid=os.geteuid()):
        flags["--data-dir"] = shlex.quote(str(settings.data_dir))
    if (url := settings.database.url) is not None and not config:
        is_public = redact_url(url) == url
        flags["--database-url"] = shlex.quote(url) if is_public else '"$CHATD_DATABASE_URL"'
    installed = Path(sys.executable).with_name("chatd")
    is_found = shutil.which("chatd", path=env.get("PATH", "")) is not None
    program = "chatd" if is_found or not installed.exists() else shlex.quote(str(installed))
    return " ".join([program, "admin", words, *(f"{flag} {at}" for flag, at in flags.items())])


def print_line(line: str) -> None:
    """Flushed: programs that start chatd wait for these lines on a pipe."""
    print(line, flush=True)
