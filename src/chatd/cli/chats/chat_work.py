"""The work of `chatd chats list`, `show`, `send`, `tail`, `interrupt`, `archive`, `fork`, `export`,
`import`, `share` and `rm`."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, get_args
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.cli.account.user_files import save
from chatd.cli.api_session import ExitCode, UsageProblem, exit_code_of_error
from chatd.cli.chats.chat_lines import (
    LIST_HEADINGS,
    EventLines,
    ask_lines,
    chat_lines,
    list_row,
    plan_lines,
    retry_line,
    transcript_lines,
    waits_line,
)
from chatd.cli.chats.run_follow import ChatWatch, ConnectionNotices, wait_until_loaded, watch_chat
from chatd.cli.chats.run_request import Prompt, find_project, last_chat, message_content, read_id
from chatd.cli.chats.run_turn import BUSY
from chatd.cli.options import suggest
from chatd.cli.output import print_json, print_json_line, print_notice, print_table, print_text
from chatd.client.drafts import ChatChange, Draft
from chatd.client.errors import ApiError
from chatd.client.frames import read_message
from chatd.client.resources import Chat, PublicLink
from chatd.client.server import ServerApi
from chatd.client.state import ShownChat
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.row import ChatError, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.ids import ChatId
from chatd.domain.model.protocol import Effort
from chatd.domain.tool_modes import ModeChoice
from chatd.terminal.answers.asks import asks_of, proposed_plan

LAST: Final = "last"
PAGE_SIZE: Final = 200


class ListFilter(Struct, frozen=True, kw_only=True):
    search: str | None = None
    status: str | None = None
    labels: tuple[str, ...] = ()
    archived: bool = False
    shared: bool = False
    project: str | None = None
    limit: int = 20


class _SearchState(Struct, frozen=True, kw_only=True):
    """`indexing`: older chats are missing in a search until the server has indexed them."""

    indexing: bool = False


async def find_chat(api: ServerApi, text: str) -> ChatId:
    """By its id; `last` is the user's own chat that changed last. Raises UsageProblem."""
    if text == LAST:
        return await last_chat(api)
    if (found := read_id(text)) is None:
        raise UsageProblem(f"{text!r} is no id of a chat: chatd chats list shows them, or say last")
    return ChatId(found)


async def list_chats(api: ServerApi, wanted: ListFilter, *, as_json: bool) -> None:
    search = wanted.search
    if wanted.project is not None:
        term = f"project:{(await find_project(api, wanted.project)).id}"
        search = f"{term} {search}" if search else term
    listed = api.list_chats(
        q=search,
        status=wanted.status,
        label=[text.replace("=", ":", 1) for text in wanted.labels],
        archived=True if wanted.archived else None,
        source="shared" if wanted.shared else None,
    )
    if wanted.search:
        first = await api.list_chats(q=wanted.search, limit=1).raw()
        if msgspec.json.decode(first, type=_SearchState).indexing:
            print_notice("Older chats are still being indexed after an upgrade and are missing.")
    if as_json:
        print_json(await listed.raw_items(wanted.limit))
        return
    now = datetime.now(UTC)
    print_table(LIST_HEADINGS, [list_row(chat, now) for chat in await listed.items(wanted.limit)])


async def show_chat(api: ServerApi, name: str, *, count: int, as_json: bool) -> None:
    chat_id = await find_chat(api, name)
    raw = await api.get_chat(chat_id).raw()
    items = await read_newest(api, chat_id, count)
    if as_json:
        print_json({"chat": raw, "messages": items})
        return
    models = await api.list_models(limit=PAGE_SIZE, include_disabled=True)
    names = {model.id: model.name for model in models.items}
    chat = msgspec.json.decode(raw, type=Chat)
    lines = chat_lines(chat, names, datetime.now(UTC))
    messages = [read_message(bytes(item)) for item in items]
    print_text("\n".join([*lines, "", *transcript_lines(messages)]).rstrip("\n"))


async def read_newest(api: ServerApi, chat_id: ChatId, count: int) -> list[Raw]:
    """The newest messages, oldest first."""
    found: list[Raw] = []
    cursor: str | None = None
    while len(found) < count:
        size = min(count - len(found), PAGE_SIZE)
        page = await api.list_messages(chat_id, limit=size, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return found[::-1]


async def interrupt(
    api: ServerApi,
    name: str,
    *,
    hold: bool,
    subagents: Literal["continue", "stop"] | None,
    as_json: bool,
) -> None:
    chat_id = await find_chat(api, name)
    stopped = api.interrupt_chat(chat_id, queue="hold" if hold else "continue", subagents=subagents)
    _print_chat(await stopped.raw(), "interrupted", as_json=as_json)


async def archive(api: ServerApi, name: str, *, undo: bool, as_json: bool) -> None:
    chat_id = await find_chat(api, name)
    await api.amend_chat(chat_id, ChatChange(archived=not undo))
    raw = await api.get_chat(chat_id).raw()
    _print_chat(raw, "taken out of the archive" if undo else "archived", as_json=as_json)


async def fork(
    api: ServerApi, name: str, *, message_id: int | None, copies_workspace: bool, as_json: bool
) -> None:
    """The id of the new chat is the output."""
    chat_id = await find_chat(api, name)
    forked = api.fork_chat(chat_id, message_id, copies_workspace=copies_workspace)
    if as_json:
        print_json(await forked.raw())
        return
    print_text(str((await forked).id))


async def export(api: ServerApi, name: str, *, form: str, target: Path | None) -> None:
    """Into a file, which appears when it is complete, or to standard output as it comes."""
    exported = api.export_chat(await find_chat(api, name), form)
    if target is None:
        if sys.stdout.isatty():
            print_text((await exported.read()).decode(errors="replace"), is_data=True)
            return
        await exported.write_to(sys.stdout.buffer.write)
        sys.stdout.buffer.flush()
        return
    await save(exported, target)
    print_notice(f"written to {target}")


async def import_files(api: ServerApi, paths: Sequence[Path], *, as_json: bool) -> None:
    """The ids of the new chats are the output, one line each, in the order of the files. A file
    that cannot be imported is named, and the others are imported; then `UsageProblem` is raised."""
    made: list[str] = []
    failed: list[str] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                chat = await api.import_chat(file)
        except OSError as error:
            print_notice(f"  {path}: cannot be read: {error.strerror or error}")
            failed.append(str(path))
            continue
        except ApiError as error:
            print_notice(f"  {path}: {error.message}")
            failed.append(str(path))
            continue
        made.append(str(chat.id))
        if not as_json:
            print_text(str(chat.id))
            print_notice(f"  {path.name}: {chat.title}")
    if as_json:
        print_json({"imported": made, "failed": failed})
    if failed:
        raise UsageProblem(
            f"{len(failed)} of {len(paths)} files were not imported. Import these again, and not"
            f" the others, which would make second copies: {' '.join(map(shlex.quote, failed))}"
        )


async def remove(api: ServerApi, names: Sequence[str], *, as_json: bool) -> None:
    removed: list[str] = []
    for name in names:
        chat_id = await find_chat(api, name)
        await api.delete_chat(chat_id)
        removed.append(str(chat_id))
        print_notice(f"deleted {chat_id}")
    if as_json:
        print_json({"deleted": removed})


# Sharing


async def share(
    api: ServerApi,
    name: str,
    *,
    users: Sequence[str],
    groups: Sequence[str],
    remove: bool,
    as_json: bool,
) -> None:
    """Without users and groups: only list the readers."""
    chat_id = await find_chat(api, name)
    if users or groups:
        role = "" if remove else "read"
        readers = api.change_acl(
            chat_id,
            user_roles={str(await _find_user(api, one)): role for one in users},
            group_roles={str(await _find_group(api, one)): role for one in groups},
        )
    else:
        readers = api.get_acl(chat_id)
    if as_json:
        print_json(await readers.raw())
        return
    found = await readers
    rows = [("user", one.username, one.name) for one in found.users]
    rows += [("group", one.name, "") for one in found.groups]
    print_table(("KIND", "NAME", "FULL NAME"), rows)


MAX_LISTED_LINKS: Final = 1000


async def make_link(
    api: ServerApi, name: str, *, days: int, with_tools: bool, with_files: bool, as_json: bool
) -> None:
    """Prints the address, which the server tells only now."""
    chat_id = await find_chat(api, name)
    made = api.create_public_link(chat_id, days=days, with_tools=with_tools, with_files=with_files)
    if as_json:
        print_json(await made.raw())
        return
    link = await made
    print(f"{api.server.url.rstrip('/')}{link.path}")
    print_notice(f"ends {_end_of(link)} UTC; chatd chats unlink {link.id} ends it")


async def list_links(api: ServerApi, name: str | None, *, everyone: bool, as_json: bool) -> None:
    if name is None:
        listed = api.list_public_links(everyone=everyone)
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_LINKS))
            return
        links = await listed.items(MAX_LISTED_LINKS)
    else:
        of_chat = api.list_links_of_chat(await find_chat(api, name))
        if as_json:
            print_json(await of_chat.raw())
            return
        links = list((await of_chat).items)
    print_table(("ID", "ENDS", "SHOWS", "OWNER", "CHAT"), [_link_row(link) for link in links])


def _end_of(link: PublicLink) -> str:
    return "?" if link.expires_at is None else f"{link.expires_at:%Y-%m-%d %H:%M}"


def _link_row(link: PublicLink) -> tuple[str, ...]:
    chosen = (("tools", link.with_tools), ("files", link.with_files))
    shows = ", ".join(["texts", *(word for word, is_chosen in chosen if is_chosen)])
    ends = _end_of(link)
    return str(link.id), ends, shows, link.owner_username, link.chat_title


async def update_links(api: ServerApi, links: Sequence[UUID]) -> None:
    for link_id in links:
        await api.update_public_link(link_id)
        print_notice(f"updated {link_id}")


async def revoke_links(api: ServerApi, links: Sequence[UUID]) -> None:
    for link_id in links:
        await api.revoke_public_link(link_id)
        print_notice(f"revoked {link_id}")


async def _find_user(api: ServerApi, name: str) -> UUID:
    found = await api.search_directory(name, limit=50)
    return _pick("user", name, {one.username: one.id for one in found.users})


async def _find_group(api: ServerApi, name: str) -> UUID:
    found = await api.search_directory(name, limit=50)
    return _pick("group", name, {one.name: one.id for one in found.groups})


def _pick(kind: str, name: str, found: Mapping[str, UUID]) -> UUID:
    by_name = {key.casefold(): value for key, value in found.items()}
    if name.casefold() in by_name:
        return by_name[name.casefold()]
    similar = f"; similar: {', '.join(sorted(found))}" if found else ""
    raise UsageProblem(f"there is no {kind} {name!r}{similar}")


def _print_chat(raw: Raw, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(raw)
        return
    chat = msgspec.json.decode(raw, type=Chat)
    print_notice(f"{done}: {chat.id}, now {chat.status}")


# A message to a chat, without waiting for the answer

BUSY_BEHAVIORS: Final[tuple[WhenBusy, ...]] = get_args(WhenBusy)


class NewMessage(Struct, frozen=True, kw_only=True):
    prompt: Prompt
    files: tuple[Path, ...] = ()
    busy: WhenBusy = "queue"
    model: str | None = None
    effort: Effort | None = None
    mode: ModeChoice | None = None


async def send(api: ServerApi, name: str, message: NewMessage, *, as_json: bool) -> None:
    chat_id = await find_chat(api, name)
    draft = Draft(
        content=await message_content(api, message.prompt, message.files),
        busy_behavior=message.busy,
        model=message.model,
        reasoning_effort=message.effort,
        mode=message.mode,
    )
    sending = api.send_message(chat_id, draft)
    if as_json:
        print_json(await sending.raw())
        return
    sent = await sending
    print_notice("The chat is busy: the message is in its queue." if sent.queued else "Sent.")
    print_notice(f"To wait for the answer: {suggest('chats tail', f'{chat_id} --until-idle')}")


def read_busy(text: str) -> WhenBusy:
    """Raises UsageProblem."""
    for known in BUSY_BEHAVIORS:
        if text == known:
            return known
    raise UsageProblem(f"--busy {text!r}: choose {', '.join(BUSY_BEHAVIORS)}")


# A chat, printed as it goes on


async def tail(
    api: ServerApi, name: str, *, count: int, as_json: bool, until_idle: bool
) -> ExitCode:
    """Until Ctrl-C; with `until_idle` until the chat waits, with the exit code of `chatd run`."""
    chat_id = await find_chat(api, name)
    printer: TextTail | JsonTail = JsonTail(count) if as_json else TextTail(count)
    notices = ConnectionNotices(print_notice)
    async with watch_chat(api, chat_id) as watch:
        shown = await wait_until_loaded(watch, notices)
        while True:
            printer.show(shown)
            if until_idle and shown.status not in BUSY:
                return exit_code_of(shown)
            shown = await _next(watch, notices)


async def _next(watch: ChatWatch, notices: ConnectionNotices) -> ShownChat:
    while True:
        await watch.changed.wait()
        watch.changed.clear()
        notices.tell(watch.connection)
        if (shown := watch.shown) is not None and shown.is_loaded:
            return shown


def exit_code_of(shown: ShownChat) -> ExitCode:
    """Of a chat that is not busy."""
    if shown.status == "requires_action":
        return ExitCode.NEEDS_ACTION
    return exit_code_of_error(shown.error) if shown.status == "error" else ExitCode.DONE


def _first_id(shown: ShownChat, count: int) -> int:
    """The messages above this id are the newest `count`."""
    known = [message.id for message in shown.messages]
    return known[-count - 1] if len(known) > count else 0


class JsonTail:
    def __init__(self, count: int) -> None:
        self._count = count
        self._events: EventLines | None = None

    def show(self, shown: ShownChat) -> None:
        if self._events is None:
            self._events = EventLines(after=_first_id(shown, self._count))
        for line in self._events.lines(shown):
            print_json_line(line)


class TextTail:
    """Messages on standard output, what else happens on standard error; each once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._told_up_to: int | None = None
        self._status: PublicStatus | None = None
        self._retry: RetryState | None = None
        self._waits_for = ""
        self._error: ChatError | None = None
        self._calls: tuple[RequestedCall, ...] = ()

    def show(self, shown: ShownChat) -> None:
        if self._told_up_to is None:
            self._told_up_to = _first_id(shown, self._count)
        new = [message for message in shown.messages if message.id > self._told_up_to]
        if new:
            self._told_up_to = new[-1].id
            if lines := transcript_lines(new):
                print_text("\n".join(lines) + "\n\n")
        for line in self._notices(shown):
            print_notice(line)

    def _notices(self, shown: ShownChat) -> list[str]:
        lines: list[str] = []
        if shown.retry is not None and shown.retry != self._retry:
            lines.append(retry_line(shown.retry))
        if shown.waits_for and shown.waits_for != self._waits_for:
            lines.append(waits_line(shown.waits_for))
        if shown.error is not None and shown.error != self._error:
            lines.append(f"The chat stopped: {shown.error.message}")
        if shown.requested_calls and shown.requested_calls != self._calls:
            lines += ask_lines(asks_of(shown))
        if shown.status != self._status and shown.status == "waiting":
            plan = proposed_plan(shown)
            lines += [] if plan is None else plan_lines(str(shown.chat_id), plan.call_id)
        self._status, self._retry = shown.status, shown.retry
        self._waits_for = shown.waits_for
        self._error, self._calls = shown.error, shown.requested_calls
        return lines
