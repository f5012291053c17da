"""The work of `chatd doctor`: examine the deployment of this host, or a server by its address.

On the host of a deployment the database and the host are examined directly, also while no server
runs; then the server's public address as a client uses it. A server elsewhere examines itself, if
the token is that of an administrator.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final, cast, get_args

import aiohttp
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chatd.api.server import ListenError, bind
from chatd.api.web_page import is_built
from chatd.app.database import connect_config, has_database, open_database
from chatd.app.replica import nats_config
from chatd.cli.operator.settings_check import examine_settings
from chatd.cli.output import print_json, print_text
from chatd.cli.target import ADMIN_TOKEN_FILE, read_address, read_token_file
from chatd.client.errors import ApiError
from chatd.client.exchange import ServerAddress, explain_failure
from chatd.client.probes import probe_socket, probe_stream, read_date
from chatd.client.resources import Diagnosis
from chatd.client.server import ServerApi, open_session
from chatd.clock import SystemClock
from chatd.domain.deployment.diagnosis import (
    Finding,
    Verdict,
    exit_code,
    failed,
    judge_client_version,
    judge_clock,
    judge_port,
    judge_provider,
    judge_socket,
    judge_stream,
    ok,
    skipped,
    warning,
)
from chatd.domain.errors import ChatdError
from chatd.services.operation.diagnosis import Doctor, HostFacts, examine_host, probe_sandbox
from chatd.services.operation.restores import (
    RestoreUnfinished,
    refuse_unfinished_database,
    refuse_unfinished_directory,
)
from chatd.services.operation.secret_keys import key_source
from chatd.settings.schema import Settings, SettingsError
from chatd.store.database.pool import Pool, PoolConfig

MAX_PROVIDERS: Final = 200
_MARKS: Final = {"ok": "ok", "warning": "WARN", "failed": "FAIL", "skipped": "skip"}
_VERDICTS: Final = frozenset(get_args(Verdict))


class DoctorReport(Struct, frozen=True, kw_only=True):
    """What `--json` prints. `target` is the data directory, or the address of the server."""

    target: str
    version: str
    findings: tuple[Finding, ...]


# What to examine


async def examine_deployment(
    flags: dict[str, str | None], config: Path | None, *, tries_providers: bool
) -> DoctorReport:
    """Of this host, by its settings. Creates and changes nothing."""
    report, settings = examine_settings(flags, config)
    found = [failed("settings", text, "chatd config check lists all.") for text in report.problems]
    found += [
        warning("settings", gap, "Models of this provider fail until then.") for gap in report.gaps
    ]
    if settings is None:
        return _report("the settings of this host", found)
    if not found:
        found.append(ok("settings", f"Read from {report.file or 'the environment'}."))
    found += await _examine_database(settings)
    address = read_address(settings.data_dir)
    found.append(await _examine_port(settings, address))
    if address is not None:
        found += await _examine_own_server(settings, address, tries_providers=tries_providers)
    elif tries_providers:
        found.append(skipped("providers", "No server runs here that could call them."))
    return _report(str(settings.data_dir), found)


async def examine_server(server: ServerAddress, *, tries_providers: bool) -> DoctorReport:
    """By its address, with what the token may see."""
    async with open_session(server.url, aiohttp.DummyCookieJar()) as http:
        found = await _examine_way(server, http)
        if found[0].verdict == "failed":
            return _report(server.url, found)
        api = ServerApi(server, http, patience_s=0)
        found += await _ask_server(api)
        if tries_providers:
            found += await _try_providers(api)
    return _report(server.url, found)


def _report(target: str, found: Sequence[Finding]) -> DoctorReport:
    return DoctorReport(target=target, version=metadata.version("chatd"), findings=tuple(found))


async def _examine_database(settings: Settings) -> list[Finding]:
    clock = SystemClock()
    nats = None
    with suppress(SettingsError):  # which is a finding about the settings
        nats = nats_config(settings)
    host = HostFacts(
        data_dir=settings.data_dir,
        version=metadata.version("chatd"),
        is_page_built=is_built(),
        sandbox=partial(probe_sandbox, settings, clock),
        backup_every_hours=settings.backup.every_hours,
        nats=nats,
    )
    impatient = replace(settings, database=replace(settings.database, start_wait_s=0))
    try:
        refuse_unfinished_directory(settings.data_dir)
        if not has_database(settings):
            text = f"There is no deployment in {settings.data_dir}."
            remedy = "Name yours with --data-dir or --database-url; chatd serve creates one."
            return [failed("database", text, remedy)]
        async with open_database(impatient, os.environ, clock) as opened:
            connect = connect_config(settings, opened.dsn)
            await refuse_unfinished_database(connect)
            pool = Pool(PoolConfig(connect=connect, max_size=2))
            try:
                keys = key_source(settings.data_dir, os.environ)
                return await Doctor(pool, connect, keys, host, clock).examine()
            finally:
                await pool.close()
    except RestoreUnfinished as error:
        return [failed("restore", error.message, "docs/backup.md."), *await examine_host(host)]
    except ChatdError as error:
        remedy = "Check that PostgreSQL runs and that database.url names it."
        return [failed("database", error.message, remedy), *await examine_host(host)]


async def _examine_port(settings: Settings, own: str | None) -> Finding:
    host, port = settings.server.host, settings.server.port
    problem: str | None = None
    if own is None:
        try:
            (await bind(host, port)).close()
        except ListenError as error:
            problem = error.message
    return judge_port(host, port, own=own, problem=problem)


async def _examine_own_server(
    settings: Settings, address: str, *, tries_providers: bool
) -> list[Finding]:
    """The server of this data directory, at the address that people use."""
    token = os.environ.get("CHATD_ADMIN_TOKEN", "").strip()
    with suppress(SettingsError):
        token = token or read_token_file(settings.data_dir / ADMIN_TOKEN_FILE)
    if not token:
        return [skipped("address", "No administrator's token is here to ask the server with.")]
    server = ServerAddress(url=(settings.server.url or address).rstrip("/"), token=token)
    async with open_session(server.url, aiohttp.DummyCookieJar()) as http:
        found = await _examine_way(server, http)
        if tries_providers and found[0].verdict != "failed":
            found += await _try_providers(ServerApi(server, http, patience_s=0))
    return found


# The way to a server, and what it says


async def _examine_way(server: ServerAddress, http: aiohttp.ClientSession) -> list[Finding]:
    try:
        date = await read_date(server, http)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        remedy = "Check the address, its name in DNS and its certificate, and that chatd runs."
        text = f"{server.url} {explain_failure(error).says or explain_failure(error)}"
        return [failed("address", text, remedy)]
    found = [ok("address", f"{server.url} answers.")]
    if date is not None:
        offset = (date - SystemClock().now()).total_seconds()
        # The header has whole seconds.
        offset = 0.0 if abs(offset) <= 1 else offset
        found.append(judge_clock("client clock", offset, ours="this machine", theirs="The server"))
    stream = await probe_stream(server, http)
    if stream.status == 401:
        text = "The server does not accept the token."
        remedy = "Sign in with chatd login, or name another with --token-file."
        return [*found, failed("token", text, remedy)]
    socket = await probe_socket(server, http)
    return [
        *found,
        judge_stream(stream, server.url),
        judge_socket(socket.status, socket.error, server.url),
    ]


async def _ask_server(api: ServerApi) -> list[Finding]:
    try:
        told = await api.get_diagnosis()
    except ApiError as error:
        if error.status in (401, 403):
            text = "Only an administrator's token shows what the server itself can check."
            return [skipped("server", text)]
        if error.status == 404:
            return [skipped("server", "This server is of a version that cannot examine itself.")]
        return [failed("server", error.message, "Look into the log of the server.")]
    except ChatdError as error:
        return [failed("server", error.message, "Look into the log of the server.")]
    return [judge_client_version(metadata.version("chatd"), told.version), *_findings(told)]


def _findings(told: Diagnosis) -> list[Finding]:
    """A verdict that a newer server has and this program does not know counts as a warning."""
    return [
        Finding(
            check=one.check,
            verdict=cast("Verdict", one.verdict) if one.verdict in _VERDICTS else "warning",
            text=one.text,
            remedy=one.remedy,
        )
        for one in told.findings
    ]


async def _try_providers(api: ServerApi) -> list[Finding]:
    """One small call to each, which its vendor may charge for."""
    try:
        providers = await api.list_providers().items(MAX_PROVIDERS)
    except ChatdError as error:
        return [skipped("providers", error.message)]
    found: list[Finding] = []
    for one in providers:
        try:
            trial = await api.test_provider(one.id)
        except ChatdError as error:
            found.append(judge_provider(one.name, is_ok=False, text=error.message))
            continue
        said = trial.explanation or trial.detail or "The call failed."
        good = f"{trial.model} answered after {trial.duration_ms} ms."
        found.append(judge_provider(one.name, is_ok=trial.ok, text=good if trial.ok else said))
    return found or [skipped("providers", "There is none.")]


# What is printed


def print_report(report: DoctorReport, *, as_json: bool) -> int:
    """Returns the exit code."""
    if as_json:
        print_json(report)
    else:
        print_text(f"chatd {report.version}, {report.target}\n")
        width = max(len(one.check) for one in report.findings)
        for one in report.findings:
            print_text(f"{_MARKS[one.verdict]:<5} {one.check:<{width}}  {one.text}")
            if one.remedy:
                print_text(f"{'':<5} {'':<{width}}  -> {one.remedy}")
        print_text(f"\n{_summary(report.findings)}")
    return exit_code(report.findings)


def _summary(found: Sequence[Finding]) -> str:
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in _MARKS}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def encode(report: DoctorReport) -> bytes:
    """For the debug bundle."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2)
