"""The work of `chatd usage`, `chatd skills` and `chatd mcp list`, `connect` and `disconnect`."""

import asyncio
import os
import re
import sys
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from chatd.cli.api_session import ExitCode, UsageProblem, patient
from chatd.cli.chats.run_request import read_bounded
from chatd.cli.output import dollars, print_json, print_notice, print_table, print_text, short_time
from chatd.client.desktop import can_open_browser, open_browser
from chatd.client.resources import (
    CostByChat,
    CostByDay,
    CostByModel,
    CostByUser,
    CostSummary,
    ListedSkill,
    McpServer,
    Skill,
)
from chatd.client.server import ServerApi

Grouping = Literal["model", "chat", "user", "day"]
CostRow = CostByModel | CostByChat | CostByUser | CostByDay

MAX_USERS: Final = 1000
_DAYS: Final = re.compile(r"(\d{1,4})\s*(d|w|m)")
_DAY_COUNTS: Final = {"d": 1, "w": 7, "m": 30}
_TOTAL_HEADINGS: Final = ("COST", "CALLS", "INPUT", "CACHED", "OUTPUT")


async def show_usage(
    api: ServerApi, *, since: str | None, grouping: Grouping, as_json: bool
) -> None:
    """The caller's own; by user that of all users, for those who may see it."""
    start = None if since is None else str(read_since(since, datetime.now(UTC).date()))
    headings = (*_TOTAL_HEADINGS, grouping.upper())
    if grouping == "user":
        listed = api.list_user_costs(start_date=start)
        if as_json:
            print_json(await listed.raw_items(MAX_USERS))
            return
        print_table(headings, [usage_row(row) for row in await listed.items(MAX_USERS)])
        return
    summary = api.get_my_costs(start_date=start)
    if as_json:
        print_json(await summary.raw())
        return
    found = await summary
    groups = {"model": found.by_model, "chat": found.by_chat, "day": found.by_day}
    print_table(headings, [usage_row(row) for row in groups[grouping]])
    print_notice(total_line(found))


def usage_row(row: CostRow) -> tuple[str, ...]:
    match row:
        case CostByModel():
            name = f"{row.provider}/{row.model}"
        case CostByChat():
            name = f"{row.root_chat_id}  {row.chat_title or '(deleted)'}"
        case CostByUser():
            name = f"{row.username}  {row.name}".strip()
        case CostByDay():
            name = str(row.day)
    cost = dollars(row.total_cost_micros)
    return (
        f"{cost}+" if row.unpriced_call_count else cost,
        f"{row.call_count:,}",
        f"{row.total_input_tokens:,}",
        f"{row.total_cache_read_tokens:,}",
        f"{row.total_output_tokens:,}",
        name,
    )


def total_line(found: CostSummary) -> str:
    last = found.end_date - timedelta(days=1)
    line = f"{dollars(found.total_cost_micros)} from {found.start_date} to {last}"
    if found.unpriced_call_count:
        line += f"; of {found.unpriced_call_count:,} calls no price is known"
    return line


def read_since(text: str, today: date) -> date:
    """The first day: `7d`, `4w`, `3m`, or a date. Raises UsageProblem."""
    if (found := _DAYS.fullmatch(text.strip())) is not None:
        count = max(int(found[1]) * _DAY_COUNTS[found[2]], 1)
        return today - timedelta(days=count - 1)
    try:
        first = date.fromisoformat(text)
    except ValueError:
        raise UsageProblem(f"--since {text!r}: write 7d, 4w, 3m or 2026-11-01") from None
    if first > today:
        raise UsageProblem(f"--since {text!r}: this day has not come yet")
    return first


# The work of `chatd skills`: the user's own skills, as files with a heading of facts.

MAX_SKILLS: Final = 1000
MAX_FILE_BYTES: Final = 128 * 1024
_FIELD: Final = re.compile(r"(?P<name>[a-z_-]+):\s*(?P<value>.*)")


class SkillFile(Struct, frozen=True, kw_only=True):
    """As `SKILL.md` has it: `name` and `description` above, instructions below."""

    name: str
    description: str
    body: str


async def list_skills(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_skills()
    if as_json:
        print_json(await listed.raw_items(MAX_SKILLS))
        return
    now, skills = datetime.now(UTC), await listed.items(MAX_SKILLS)
    rows = [(one.name, short_time(one.updated_at, now), one.description) for one in skills]
    print_table(("NAME", "CHANGED", "FOR"), rows)


async def show_skill(api: ServerApi, name: str, *, as_json: bool) -> None:
    """In the form in which `put` takes it."""
    found = api.get_skill((await _find_skill(api, name)).id)
    if as_json:
        print_json(await found.raw())
        return
    print_text(format_skill(await found), is_data=True)


async def put_skill(
    api: ServerApi, text: str, *, name: str | None, description: str | None, as_json: bool
) -> None:
    """Creates the skill, or replaces the one with its name."""
    skill = read_skill(text, name, description)
    known = await api.list_skills().items(MAX_SKILLS)
    found = next((one for one in known if one.name == skill.name), None)
    if found is None:
        put = api.create_skill(name=skill.name, description=skill.description, body=skill.body)
    else:
        put = api.change_skill(found.id, description=skill.description, body=skill.body)
    raw = await put.raw()
    if as_json:
        print_json(raw)
        return
    print_notice(f"{'created' if found is None else 'replaced'} {skill.name}")


async def remove_skill(api: ServerApi, name: str, *, as_json: bool) -> None:
    skill = await _find_skill(api, name)
    await api.delete_skill(skill.id)
    if as_json:
        print_json({"deleted": skill.name})
        return
    print_notice(f"deleted {skill.name}")


def read_skill(text: str, name: str | None, description: str | None) -> SkillFile:
    """The options count before what the file says. Raises UsageProblem."""
    fields, body = split_skill(text)
    found_name = name or fields.get("name", "")
    found_text = description or fields.get("description", "")
    if not found_name or not found_text:
        missing = "a name (--name)" if not found_name else "a description (--description)"
        raise UsageProblem(
            f"the skill needs {missing}, or a heading in the file:\n"
            "---\nname: release-notes\ndescription: Writes release notes.\n---"
        )
    return SkillFile(name=found_name, description=found_text, body=body)


def split_skill(text: str) -> tuple[dict[str, str], str]:
    """The fields between two lines of `---`, and the text below them."""
    lines = text.replace("\r\n", "\n").split("\n")
    if not lines or lines[0].strip() != "---" or "---" not in lines[1:]:
        return {}, text.strip()
    end = lines.index("---", 1)
    matches = [_FIELD.fullmatch(line.strip()) for line in lines[1:end]]
    fields = {one["name"]: one["value"].strip("\"' ") for one in matches if one is not None}
    return fields, "\n".join(lines[end + 1 :]).strip()


def format_skill(skill: Skill) -> str:
    return f"---\nname: {skill.name}\ndescription: {skill.description}\n---\n\n{skill.body}"


def read_text_file(path: Path) -> str:
    """`-` is standard input. Raises UsageProblem."""
    try:
        with open(0, "rb", closefd=False) if str(path) == "-" else path.open("rb") as file:
            content = read_bounded(file, str(path), MAX_FILE_BYTES)
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {error.strerror or error}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageProblem(f"{path} is not UTF-8 text") from None


async def _find_skill(api: ServerApi, name: str) -> ListedSkill:
    """Raises UsageProblem."""
    known = await api.list_skills().items(MAX_SKILLS)
    for skill in known:
        if skill.name == name:
            return skill
    there = ", ".join(skill.name for skill in known) or "none"
    raise UsageProblem(f"there is no skill {name!r}; there are: {there}")


# The work of `chatd mcp list`, `connect` and `disconnect`: the user's MCP servers.
#
# A connection begins in the browser that comes back from the authorization server: so `connect`
# opens the page of the server where the user connects, and waits until it is done.

CONNECTIONS_PAGE: Final = "/settings/connections"
MAX_SERVERS: Final = 500
POLL_INTERVAL_S: Final = 2.0
CONNECTED: Final = frozenset({"ready", "connected"})
_HEADINGS: Final = ("SLUG", "NAME", "CHATS USE IT", "CONNECTION", "")
_AVAILABILITY: Final = {
    "force_on": "always",
    "default_on": "by default",
    "default_off": "if chosen",
}
_STATES: Final = {
    "ready": "not needed",
    "connected": "connected",
    "needs_connect": "not connected",
    "failed": "failed",
}


async def list_servers(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_mcp_servers()
    if as_json:
        print_json(await listed.raw_items(MAX_SERVERS))
        return
    print_table(_HEADINGS, [server_row(server) for server in await listed.items(MAX_SERVERS)])


def server_row(server: McpServer) -> tuple[str, ...]:
    return (
        server.slug,
        server.display_name,
        _AVAILABILITY.get(server.availability, server.availability),
        _STATES.get(server.connection.state, server.connection.state),
        server.connection.reason or server.description,
    )


async def connect(
    api: ServerApi, slug: str, *, timeout_s: float, may_open: bool, as_json: bool
) -> ExitCode:
    server = await _find_server(api, slug)
    if server.connection.state not in CONNECTED:
        _show_page(api, server, may_open=may_open)
        found = await _wait_until_connected(api, slug, timeout_s)
        if found is None:
            print_notice("chatd: the time is over, and it is not connected yet")
            return ExitCode.TIME_OUT
        server = found
    if as_json:
        print_json(server)
    else:
        print_notice(f"{server.slug}: {_STATES[server.connection.state]}")
    return ExitCode.DONE


async def disconnect(api: ServerApi, slug: str, *, as_json: bool) -> None:
    server = await _find_server(api, slug)
    ended = await api.disconnect_mcp_server(server.id)
    if as_json:
        print_json(ended)
        return
    print_notice(f"{slug}: disconnected; the tokens are deleted here")
    if ended.failure:
        print_notice(f"  They were not revoked there: {ended.failure}")


def _show_page(api: ServerApi, server: McpServer, *, may_open: bool) -> None:
    page = f"{api.server.url}{CONNECTIONS_PAGE}"
    name = server.display_name or server.slug
    print_notice(f"Sign in there and choose Connect at {name}:\n  {page}")
    if server.connection.state == "failed" and server.connection.reason:
        print_notice(f"  ({server.connection.reason})")
    is_desktop = can_open_browser(
        os.environ,
        platform=sys.platform,
        is_terminal=sys.stderr.isatty(),
        is_wanted=may_open,
    )
    if is_desktop:
        open_browser(page, os.environ)


async def _wait_until_connected(api: ServerApi, slug: str, timeout_s: float) -> McpServer | None:
    """None if the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                await asyncio.sleep(POLL_INTERVAL_S)
                server = await _find_server(patient(api), slug)
                if server.connection.state in CONNECTED:
                    return server
    return None


async def _find_server(api: ServerApi, slug: str) -> McpServer:
    """Raises UsageProblem."""
    servers = await api.list_mcp_servers().items(MAX_SERVERS)
    for server in servers:
        if server.slug == slug:
            return server
    there = ", ".join(sorted(server.slug for server in servers)) or "none"
    raise UsageProblem(f"there is no MCP server {slug!r}; there are: {there}")
