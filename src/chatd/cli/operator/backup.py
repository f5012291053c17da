"""The work of `chatd backup`, `chatd restore` and `chatd admin confirm-restore`."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from msgspec.structs import replace

from chatd.app.composition import backup_request
from chatd.app.database import connect_config, has_database, open_database
from chatd.cli.admin import database_name, open_deployment
from chatd.cli.output import byte_size, print_notice, print_text
from chatd.cli.process import read_password
from chatd.clock import SystemClock
from chatd.domain.access.permissions import SystemActor
from chatd.domain.errors import ChatdError, Conflict
from chatd.services.operation import restores
from chatd.services.operation.backup_file import BackupReader, check_passphrase
from chatd.services.operation.backups import (
    BackupResult,
    Report,
    backup_name,
    new_backup_file,
    write_backup,
)
from chatd.services.operation.restores import BackupContent, refuse_unfinished_directory
from chatd.services.operation.secret_keys import key_source
from chatd.settings.schema import Settings, SettingsError
from chatd.store.database.conn import ConnectConfig
from chatd.store.deployment import backups

STANDARD_OUTPUT: Final = Path("-")
PROGRESS_STEP: Final = 5
"""Percent from one line of the progress to the next, where there is no terminal."""
_ACTOR: Final = SystemActor(reason="chatd admin confirm-restore")


class Progress:
    """On standard error: one line that changes on a terminal, else some lines."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._shown = -PROGRESS_STEP
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, done: int, expected: int, what: str) -> None:
        percent = min(100 * done // max(expected, 1), 100)
        if self._is_terminal:
            line = f"{self._verb} {percent:3} %  {byte_size(done)}  {what}"
            sys.stderr.write(f"\r\x1b[K{line[:76]}")
            sys.stderr.flush()
        elif percent >= self._shown + PROGRESS_STEP:
            self._shown = percent
            print_notice(f"{self._verb} {percent} %, {what}")

    def clear(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")


# Backup


async def make_backup(
    settings: Settings,
    target: Path | None,
    *,
    encrypts: bool,
    holds_keys: bool,
    holds_workspaces: bool,
) -> None:
    """Raises ChatdError; then there is no file."""
    refuse_unfinished_directory(settings.data_dir)
    passphrase = settings.backup.passphrase
    if encrypts and passphrase is None:
        passphrase = check_passphrase(read_password("Passphrase"))
    clock = SystemClock()
    path = target or Path(backup_name(clock.now()))
    progress = Progress("copied")
    async with open_database(settings, os.environ, clock) as server:
        request = backup_request(
            settings,
            connect_config(settings, server.dsn),
            key_source(settings.data_dir, os.environ),
        )
        request = replace(
            request,
            passphrase=passphrase,
            holds_keys=holds_keys,
            holds_workspaces=holds_workspaces or settings.backup.workspaces,
        )
        opened = _standard_output() if path == STANDARD_OUTPUT else new_backup_file(path)
        async with opened as stream:
            result = await write_backup(request, stream, uuid4(), progress)
    progress.clear()
    for line in backup_notes(result, is_encrypted=passphrase is not None):
        print_notice(line)
    if path != STANDARD_OUTPUT:
        print_text(str(path))


@asynccontextmanager
async def _standard_output() -> AsyncGenerator[BinaryIO]:
    if sys.stdout.isatty():
        raise SettingsError("--output -: a backup is not for a terminal; name a file")
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


def backup_notes(result: BackupResult, *, is_encrypted: bool) -> list[str]:
    size = f"{result.rows} rows, {byte_size(result.bytes)} before compression"
    lines = [f"{size}, as of {_time(result.made_at)}"]
    match result.keys:
        case "included" if not is_encrypted:
            lines.append(
                "It is not encrypted and has the key of stored secrets: who reads it can use all"
                " API keys. Keep it safe, or use --encrypt, or --no-keys."
            )
        case "environment":
            lines.append("It has no key of stored secrets: CHATD_SECRET_KEYS has it. Keep that.")
        case "left_out":
            lines.append("It has no key of stored secrets: keep a copy of secret-keys elsewhere.")
        case _:
            pass
    if result.changed or result.unread:
        lines.append(
            f"Of the workspaces {result.changed} files changed while they were read, and"
            f" {result.unread} could not be read."
        )
    return lines


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


# Restore


async def restore_backup(settings: Settings, source: Path, *, only_check: bool) -> None:
    """Raises ChatdError."""
    try:
        stream = source.open("rb")
    except OSError as error:
        raise ChatdError(f"cannot read {source}: {error.strerror}") from error
    with stream:
        if not stream.seekable():
            raise SettingsError(f"{source} is not a file: it is read twice, so save it first")
        passphrase = settings.backup.passphrase
        if BackupReader(stream).header.is_sealed and passphrase is None:
            passphrase = read_password("Passphrase", again=False)
        stream.seek(0)
        if only_check:
            progress = Progress("checked")
            content = restores.check_backup(stream, passphrase, progress)
            progress.clear()
            print_text("\n".join(content_lines(content)))
            return
        progress = Progress("read")
        content = await _restore(settings, stream, passphrase, progress)
        progress.clear()
    for line in restored_lines(content, settings):
        print_text(line)


async def _restore(
    settings: Settings, stream: BinaryIO, passphrase: str | None, report: Report
) -> BackupContent:
    if settings.database.url is None and has_database(settings):
        raise Conflict(
            f"{settings.data_dir} has a database. A backup is restored into an empty place only:"
            " name a new directory with --data-dir.",
            code="not_empty",
        )
    return await restores.restore(
        stream, passphrase, settings.data_dir, partial(_opened, settings), report
    )


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[ConnectConfig]:
    async with open_database(settings, os.environ, SystemClock()) as server:
        yield connect_config(settings, server.dsn)


def content_lines(content: BackupContent) -> list[str]:
    manifest = content.manifest
    keys = {
        "included": f"included ({', '.join(manifest.key_ids)})",
        "environment": f"in CHATD_SECRET_KEYS of the servers ({', '.join(manifest.key_ids)})",
        "left_out": f"left out ({', '.join(manifest.key_ids)})",
        "none": "none",
    }
    lines = [
        "The backup is whole, and this version can restore it.",
        f"  made      {_time(manifest.made_at)} on {manifest.host}, by chatd {manifest.version}",
        f"  rows      {content.rows} in {len(manifest.tables)} tables, {byte_size(content.bytes)}",
        f"  secrets   key {keys[manifest.keys]}",
        f"  encrypted {'yes' if content.is_encrypted else 'no'}",
        f"  files     workspaces {'included' if manifest.has_workspaces else 'not included'}",
    ]
    if manifest.s3_files:
        lines.append(
            f"            {manifest.s3_files} in the bucket {manifest.s3_bucket}, not here"
        )
    return lines


def restored_lines(content: BackupContent, settings: Settings) -> list[str]:
    manifest = content.manifest
    place = f"{database_name(settings)}, data directory {settings.data_dir}"
    lines = [f"Restored the backup of {_time(manifest.made_at)}: {content.rows} rows into {place}."]
    ids = ", ".join(manifest.key_ids)
    if manifest.keys == "environment":
        lines.append(f"Set CHATD_SECRET_KEYS to the keys that the servers had: {ids}.")
    elif manifest.keys == "left_out":
        lines.append(f"Copy the file secret-keys with {ids} to {settings.data_dir} (mode 600).")
    if manifest.s3_files:
        lines.append(
            f"{manifest.s3_files} files are in the bucket {manifest.s3_bucket}: give chatd the same"
            " files.s3_* settings."
        )
    lines.append(
        "Start it with chatd serve. Chats, schedules, webhooks, push messages, retention and"
        " backups wait until you confirm that it replaces the original: chatd admin"
        " confirm-restore."
    )
    return lines


async def confirm_restore(settings: Settings) -> None:
    async with open_deployment(settings) as pool, pool.transaction() as session:
        await backups.confirm_restore(session, _ACTOR)
    print_text("Confirmed. Running servers go on within seconds.")
