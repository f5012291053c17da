"""The work of `chatd admin runners`: list, show, drain, resume and remove runners, and their
tokens."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from chatd.cli.account.sign_in import read_expiry
from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_request import read_id
from chatd.cli.output import (
    field_lines,
    print_json,
    print_notice,
    print_table,
    print_text,
    short_time,
)
from chatd.client.resources import (
    CreatedRunnerToken,
    Runner,
    RunnerDetail,
    RunnerToken,
    WaitingBuild,
)
from chatd.client.server import ServerApi

MAX_RUNNERS: Final = 2000
MAX_RUNNER_TOKENS: Final = 1000
MAX_WAITING_SHOWN: Final = 10
TOKEN_FILE: Final = "~/.chatd-runner-token"
"""Where the printed commands keep the token."""

_HEADINGS: Final = ("NAME", "POOL", "STATE", "RUNNING", "VERSION", "MAKES", "SEEN", "ID")
_TOKEN_HEADINGS: Final = ("ID", "POOL", "BEGINS WITH", "RUNNERS", "USED", "EXPIRES", "NAME")
_WORKSPACE_HEADINGS: Final = ("STATUS", "USED", "OWNER", "WORKSPACE")


async def list_runners(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_runners()
    if as_json:
        print_json(await listed.raw_items(MAX_RUNNERS))
        return
    now, found = datetime.now(UTC), await listed.items(MAX_RUNNERS)
    print_table(_HEADINGS, [runner_row(one, now) for one in found])
    for runner in found:
        if runner.version_gap:
            print_notice(f"{runner.name}: {runner.version_gap}")
    _print_waiting(await api.list_waiting_builds().items(MAX_WAITING_SHOWN + 1), now)


def runner_row(runner: Runner, now: datetime) -> tuple[str, ...]:
    capacity = f"{runner.running} of {runner.capacity}" if runner.capacity else str(runner.running)
    return (
        runner.name,
        _pool(runner),
        runner_state(runner),
        capacity,
        runner.version,
        ", ".join(offer.kind for offer in runner.backends),
        "now" if runner.connected else short_time(runner.seen_at, now),
        runner.id,
    )


def runner_state(runner: Runner) -> str:
    state = "connected" if runner.connected else "not connected"
    return f"{state}, drained" if runner.draining else state


def _pool(runner: Runner) -> str:
    if runner.builtin:
        return "(a server's own)"
    return f"(of {runner.owner or 'a user'})" if runner.token is None else runner.pool


async def show_runner(api: ServerApi, name: str, *, as_json: bool) -> None:
    found = api.get_runner((await _find(api, name)).id)
    if as_json:
        print_json(await found.raw())
        return
    runner, now = await found, datetime.now(UTC)
    print_text("\n".join(field_lines(_fields(runner, now))))
    if runner.workspaces:
        print_text("")
        rows = [
            (one.status, short_time(one.last_used_at, now), one.owner or "", one.name)
            for one in runner.workspaces
        ]
        print_table(_WORKSPACE_HEADINGS, rows)
    _print_waiting(runner.waiting_builds, now)


def _fields(runner: RunnerDetail, now: datetime) -> dict[str, str]:
    offers = [
        " ".join(word for word in (one.kind, one.isolation, one.detail) if word)
        for one in runner.backends
    ]
    since = "" if runner.connected_at is None else short_time(runner.connected_at, now)
    return {
        "name": runner.name,
        "id": runner.id,
        "pool": _pool(runner),
        "token": runner.token or "",
        "state": runner_state(runner),
        "connected": since if runner.connected else "",
        "last seen": "" if runner.connected else short_time(runner.seen_at, now),
        "makes": ", ".join(offers),
        "labels": ", ".join(runner.labels),
        "running": f"{runner.running} of {runner.capacity or 'any number'}",
        "workspaces": str(runner.workspace_count),
        "version": runner.version,
        "machine": f"{runner.os} {runner.arch}".strip(),
        "orphans": ", ".join(runner.orphans),
        "problem": runner.version_gap or "",
    }


def _print_waiting(waiting: Sequence[WaitingBuild], now: datetime) -> None:
    for build in waiting[:MAX_WAITING_SHOWN]:
        since = short_time(build.created_at, now)
        print_notice(
            f"waits: the {build.transition} of {build.workspace} of {build.owner or 'a user'},"
            f" asked for {since}. {build.reason}"
        )
    if len(waiting) > MAX_WAITING_SHOWN:
        print_notice("waits: more builds; the page Settings, Runners shows all")


async def set_draining(api: ServerApi, name: str, *, draining: bool, as_json: bool) -> None:
    changed = api.update_runner((await _find(api, name)).id, draining=draining)
    if as_json:
        print_json(await changed.raw())
        return
    runner = await changed
    if draining:
        print_notice(f"{runner.name} takes no new workspaces; it has {runner.workspace_count}")
    else:
        print_notice(f"{runner.name} takes new workspaces")


async def remove_runner(api: ServerApi, name: str, *, with_workspaces: bool, as_json: bool) -> None:
    runner = await _find(api, name)
    await api.remove_runner(runner.id, with_workspaces=with_workspaces)
    if as_json:
        print_json({"removed": runner.id})
        return
    print_notice(f"removed {runner.name}")


async def _find(api: ServerApi, name: str) -> Runner:
    """By its id or its name. Raises UsageProblem."""
    known = await api.list_runners().items(MAX_RUNNERS)
    found = [one for one in known if one.id == name] or [one for one in known if one.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(one.id for one in found)
        raise UsageProblem(f"several runners have the name {name!r}; give an id: {ids}")
    there = ", ".join(one.name for one in known[:20]) or "none"
    raise UsageProblem(f"there is no runner {name!r}; there are: {there}")


async def create_token(
    api: ServerApi, pool: str, *, name: str | None, expires: str | None, as_json: bool
) -> None:
    """The token is the output: it cannot be shown again."""
    now = datetime.now(UTC)
    until = None if expires is None else read_expiry(expires, now)
    raw = await api.create_runner_token(pool, name=name, expires_at=until).raw()
    if as_json:
        print_json(raw)
        return
    made = msgspec.json.decode(raw, type=CreatedRunnerToken)
    print_text(made.token)
    ends = "never" if made.expires_at is None else short_time(made.expires_at, now)
    print_notice(
        f"Keep it now: it cannot be shown again. It expires {ends}. Its id: {made.id}\n"
        "To start a runner with it, on its machine:\n"
        + "\n".join(f"  {line}" for line in start_commands(api.server.url, made.token))
    )


def start_commands(url: str, token: str) -> tuple[str, str, str]:
    return (
        "pip install chatd",
        f"(umask 077; printf %s '{token}' > {TOKEN_FILE})",
        f"chatd runner start --server {url} --token-file {TOKEN_FILE}",
    )


async def list_tokens(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_runner_tokens()
    if as_json:
        print_json(await listed.raw_items(MAX_RUNNER_TOKENS))
        return
    now, found = datetime.now(UTC), await listed.items(MAX_RUNNER_TOKENS)
    print_table(_TOKEN_HEADINGS, [token_row(one, now) for one in found])


def token_row(token: RunnerToken, now: datetime) -> tuple[str, ...]:
    return (
        str(token.id),
        token.pool,
        token.prefix,
        str(token.runners),
        short_time(token.last_used_at, now),
        "expired" if token.expired else short_time(token.expires_at, now),
        token.name,
    )


async def revoke_token(api: ServerApi, token_id: str, *, as_json: bool) -> None:
    if (found := read_id(token_id)) is None:
        raise UsageProblem(
            f"{token_id!r} is not the id of a token; chatd admin runners tokens list shows them"
        )
    await api.revoke_runner_token(found)
    if as_json:
        print_json({"revoked": token_id})
        return
    print_notice(f"revoked {token_id}")
