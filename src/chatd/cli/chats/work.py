"""The work of `chatd chats list`, `show`, `send`, `interrupt`, `archive`, `fork`, `export`, `share`
and `rm`."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.views import LIST_HEADINGS, chat_lines, list_row, transcript_lines
from chatd.cli.downloads import save
from chatd.cli.output import print_json, print_notice, print_table, print_text
from chatd.cli.run.request import last_chat, read_id
from chatd.client.frames import read_message
from chatd.client.resources import Chat, ListedChat, ListedModel, MessagePage, Page
from chatd.client.server import ServerApi, new_key
from chatd.domain.ids import ChatId

LAST: Final = "last"
PAGE_SIZE: Final = 200


class ListFilter(Struct, frozen=True, kw_only=True):
    search: str | None = None
    status: str | None = None
    labels: tuple[str, ...] = ()
    archived: bool = False
    shared: bool = False
    limit: int = 20


async def find_chat(api: ServerApi, text: str) -> ChatId:
    """By its id; `last` is the user's own chat that changed last. Raises UsageProblem."""
    if text == LAST:
        return await last_chat(api)
    if (found := read_id(text)) is None:
        raise UsageProblem(f"{text!r} is no id of a chat: chatd chats list shows them, or say last")
    return ChatId(found)


async def read_items(
    api: ServerApi, path: str, limit: int, **query: str | int | bool | Sequence[str] | None
) -> list[Raw]:
    """Up to `limit` items of a list, over its pages."""
    items: list[Raw] = []
    cursor: str | None = None
    while len(items) < limit:
        size = min(limit - len(items), PAGE_SIZE)
        page = await api.get(path, Page[Raw], limit=size, cursor=cursor, **query)
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return items


async def list_chats(api: ServerApi, wanted: ListFilter, *, as_json: bool) -> None:
    items = await read_items(
        api,
        "/chats",
        wanted.limit,
        q=wanted.search,
        status=wanted.status,
        label=[text.replace("=", ":", 1) for text in wanted.labels],
        archived=True if wanted.archived else None,
        source="shared" if wanted.shared else None,
    )
    if as_json:
        print_json(items)
        return
    chats = [msgspec.json.decode(item, type=ListedChat) for item in items]
    now = datetime.now(UTC)
    print_table(LIST_HEADINGS, [list_row(chat, now) for chat in chats])


async def show_chat(api: ServerApi, name: str, *, count: int, as_json: bool) -> None:
    chat_id = await find_chat(api, name)
    raw = await api.get(f"/chats/{chat_id}", Raw)
    items = await read_newest(api, chat_id, count)
    if as_json:
        print_json({"chat": raw, "messages": items})
        return
    models = await api.get("/models", Page[ListedModel], limit=PAGE_SIZE, include_disabled=True)
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
        page = await api.get(f"/chats/{chat_id}/messages", MessagePage, limit=size, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return found[::-1]


async def interrupt(
    api: ServerApi, name: str, *, hold: bool, subagents: str | None, as_json: bool
) -> None:
    body: dict[str, object] = {"queue": "hold" if hold else "continue", "subagents": subagents}
    raw = await api.post(f"/chats/{await find_chat(api, name)}/interrupt", body, Raw)
    _print_chat(raw, "interrupted", as_json=as_json)


async def archive(api: ServerApi, name: str, *, undo: bool, as_json: bool) -> None:
    path = f"/chats/{await find_chat(api, name)}"
    await api.patch(path, {"archived": not undo}, NoneType)
    raw = await api.get(path, Raw)
    _print_chat(raw, "taken out of the archive" if undo else "archived", as_json=as_json)


async def fork(api: ServerApi, name: str, *, message_id: int | None, as_json: bool) -> None:
    """The id of the new chat is the output."""
    path = f"/chats/{await find_chat(api, name)}/fork"
    raw = await api.post(path, {"message_id": message_id}, Raw, key=new_key())
    if as_json:
        print_json(raw)
        return
    print_text(str(msgspec.json.decode(raw, type=Chat).id))


async def export(api: ServerApi, name: str, *, form: str, target: Path | None) -> None:
    """Into a file, which appears when it is complete, or to standard output as it comes."""
    path = f"/chats/{await find_chat(api, name)}/export?format={form}"
    if target is None:
        if sys.stdout.isatty():
            print_text((await api.download(path)).decode(errors="replace"), is_data=True)
            return
        await api.download_to(path, sys.stdout.buffer.write)
        sys.stdout.buffer.flush()
        return
    await save(api, path, target)
    print_notice(f"written to {target}")


async def remove(api: ServerApi, names: Sequence[str], *, as_json: bool) -> None:
    removed: list[str] = []
    for name in names:
        chat_id = await find_chat(api, name)
        await api.delete(f"/chats/{chat_id}")
        removed.append(str(chat_id))
        print_notice(f"deleted {chat_id}")
    if as_json:
        print_json({"deleted": removed})


# Sharing


class _Named(Struct):
    id: UUID
    username: str = ""
    name: str = ""


class _Readers(Struct):
    users: tuple[_Named, ...] = ()
    groups: tuple[_Named, ...] = ()


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
    path = f"/chats/{await find_chat(api, name)}/acl"
    if users or groups:
        role = "" if remove else "read"
        body = {
            "user_roles": {str(await _find_user(api, one)): role for one in users},
            "group_roles": {str(await _find_group(api, one)): role for one in groups},
        }
        raw = await api.patch(path, body, Raw)
    else:
        raw = await api.get(path, Raw)
    if as_json:
        print_json(raw)
        return
    found = msgspec.json.decode(raw, type=_Readers)
    rows = [("user", one.username, one.name) for one in found.users]
    rows += [("group", one.name, "") for one in found.groups]
    print_table(("KIND", "NAME", "FULL NAME"), rows)


async def _find_user(api: ServerApi, name: str) -> UUID:
    found = await api.get("/directory", _Readers, q=name, limit=50)
    return _pick("user", name, {one.username: one.id for one in found.users})


async def _find_group(api: ServerApi, name: str) -> UUID:
    found = await api.get("/directory", _Readers, q=name, limit=50)
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
