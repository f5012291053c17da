"""The work of `chatd debug bundle`: one file with what a report about a problem needs, and without
secrets.

Every secret that this host knows is removed from every part, also where it appears by accident;
then everything that looks like one. Chats, prompts and names of users are not part of it.
"""

import io
import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final, cast
from urllib.parse import unquote

import aiohttp
import msgspec

from chatd import sealed_secrets
from chatd.app.database import connect_config, open_database
from chatd.cli.operator import doctor
from chatd.cli.operator.doctor import DoctorReport
from chatd.cli.output import print_notice, print_text
from chatd.cli.target import ADMIN_TOKEN_FILE, read_address
from chatd.client.server import open_session
from chatd.clock import SystemClock
from chatd.domain.chat.lease import LEASE_TTL_S
from chatd.domain.errors import ChatdError
from chatd.services.operation.secret_keys import KEY_FILE
from chatd.settings.schema import Settings
from chatd.settings.shown import MASK, shown_settings
from chatd.store.database import migrator, sealed_columns
from chatd.store.database.pool import Pool, PoolConfig
from chatd.store.deployment import diagnosis

MAX_LOG_BYTES: Final = 2 * 1024 * 1024
"""Of the end of each log."""
MAX_METRICS_BYTES: Final = 8 * 1024 * 1024
METRICS_TIMEOUT_S: Final = 10.0
MIN_SECRET_CHARS: Final = 6
"""A shorter text would be removed where it is an ordinary word."""
SECRET_FILES: Final = (KEY_FILE, ADMIN_TOKEN_FILE, "secret")
_SECRET_NAME: Final = re.compile(r"secret|token|passw|api_?key|credential|private", re.IGNORECASE)
_LOOKS_SECRET: Final = (
    re.compile(r"(?i)(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)"),
    re.compile(
        r"(?i)((?:api[_-]?key|token|secret|password|passwd)[\"']?\s*[:=]\s*[\"']?)"
        r"(?!null\b|true\b|false\b)[^\s\"',&\[{]+"
    ),
    re.compile(r"()\b(?:sk|pk|ghp|gho|xox[abp]|AKIA|AIza|glpat)[-_]?[A-Za-z0-9_-]{12,}"),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_.-]+"),
    re.compile(r"()\b[A-Za-z0-9_-]{40,}={0,2}"),
)


async def write_bundle(
    settings: Settings, report: DoctorReport, target: Path, logs: Iterable[Path]
) -> None:
    """Replaces no file. Raises ChatdError."""
    parts = await collect(settings, report, logs)
    scrub = Scrubber(known_secrets(settings, os.environ))
    try:
        with target.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(pack({name: scrub(text) for name, text in parts.items()}))
    except OSError as error:
        raise ChatdError(f"cannot write {target}: {error.strerror}") from error
    print_text(str(target))
    print_notice("It has no secrets that chatd knows of; look through it before you pass it on.")


async def collect(
    settings: Settings, report: DoctorReport, logs: Iterable[Path]
) -> Mapping[str, str]:
    """The parts by name. One that cannot be had says why."""
    parts = {
        "versions.json": _json(_versions()),
        "settings.json": _json(
            {
                "settings": shown_settings(settings),
                "variables": sorted(name for name in os.environ if name.startswith("CHATD_")),
            }
        ),
        "doctor.json": doctor.encode(report).decode(),
        "metrics.txt": await _read_metrics(settings),
    }
    try:
        parts |= await _read_database(settings)
    except ChatdError as error:
        parts["database.txt"] = error.message
    embedded = settings.data_dir / "pg" / "server.log"
    for path in (*logs, *([embedded] if embedded.exists() else [])):
        parts[f"logs/{path.name}"] = _read_end(path)
    return parts


def _versions() -> dict[str, object]:
    packages = {
        one.metadata["Name"]: one.version
        for one in metadata.distributions()
        if one.metadata["Name"]
    }
    return {
        "chatd": metadata.version("chatd"),
        "python": sys.version,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }


async def _read_metrics(settings: Settings) -> str:
    """Of the server of this data directory."""
    address = read_address(settings.data_dir)
    if address is None:
        return "No server runs in this data directory."
    token = settings.server.metrics_token
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        async with open_session(address, aiohttp.DummyCookieJar()) as http:
            limit = aiohttp.ClientTimeout(total=METRICS_TIMEOUT_S)
            async with http.get(f"{address}/metrics", headers=headers, timeout=limit) as reply:
                return (await reply.content.read(MAX_METRICS_BYTES)).decode(errors="replace")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return f"The metrics could not be read: {error}"


async def _read_database(settings: Settings) -> dict[str, str]:
    async with open_database(settings, os.environ, SystemClock()) as server:
        connect = connect_config(settings, server.dsn)
        pool = Pool(PoolConfig(connect=connect, max_size=1))
        try:
            processes = await sealed_columns.list_processes(pool, LEASE_TTL_S)
        finally:
            await pool.close()
        return {
            "tables.json": _json(await diagnosis.read_tables(connect)),
            "migrations.json": _json(await migrator.status(server.dsn)),
            "replicas.json": _json(processes),
        }


def _read_end(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
            return file.read(MAX_LOG_BYTES).decode(errors="replace")
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


# Secrets


class Scrubber:
    """Removes secrets from a text: those that are known, and what looks like one."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one may be part of another.
        self._secrets = sorted({one for one in secrets if len(one) >= MIN_SECRET_CHARS}, key=len)
        self._secrets.reverse()

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        for pattern in _LOOKS_SECRET:
            text = pattern.sub(lambda found: f"{found[1]}{MASK}", text)
        return text


def known_secrets(settings: Settings, env: Mapping[str, str]) -> set[str]:
    """Of the settings, the environment and the files of the data directory."""
    found = {value for name, value in env.items() if _SECRET_NAME.search(name)}
    found |= set(_secret_values(msgspec.to_builtins(settings, enc_hook=str), is_secret=False))
    for name in SECRET_FILES:
        with suppress(OSError):
            found |= set((sealed_secrets.read(settings.data_dir / name) or "").split())
    for url in (settings.database.url, env.get("CHATD_DATABASE_URL")):
        if url is not None and (match := re.search(r"://[^:@/]*:(.*)@", url)):
            found.add(match[1])
    for url in (settings.server.notifications, env.get("CHATD_SERVER_NOTIFICATIONS")):
        if url is not None and (match := re.search(r"://(?:[^:@]*:)?(.*)@", url)):
            found |= {match[1], unquote(match[1])}
    return found


def _secret_values(value: object, *, is_secret: bool) -> Iterable[str]:
    """Every text below a name that says so; of headers and environments every one."""
    match value:
        case str() if is_secret:
            yield value
        case dict():
            for name, inner in cast("dict[str, object]", value).items():
                inside = is_secret or name in ("headers", "env")
                yield from _secret_values(
                    inner, is_secret=inside or bool(_SECRET_NAME.search(name))
                )
        case list() | tuple():
            for inner in cast("list[object]", value):
                yield from _secret_values(inner, is_secret=is_secret)
        case _:
            return


def pack(parts: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in parts.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"chatd-debug/{name}")
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
