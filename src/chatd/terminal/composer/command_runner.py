"""Does what a slash command says."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.drafts import ChatChange
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import ChatChanges, Directory, ModelChoice
from chatd.client.server import ServerApi
from chatd.domain.chat.person_commands import command_of
from chatd.domain.ids import ChatId, MessageId
from chatd.terminal.answers.exact_text import exact_text
from chatd.terminal.composer.choices import Choices
from chatd.terminal.composer.commands import (
    BEHAVIOURS,
    CommandCall,
    CommandName,
    find_behaviour,
    refusal_of,
)
from chatd.terminal.composer.delivery import Delivery
from chatd.terminal.composer.local_files import resolve
from chatd.terminal.composer.message_content import read_content
from chatd.terminal.composer.model_texts import EFFORT_NAMES, efforts_of, find_model, model_name
from chatd.terminal.composer.open_draft import OpenDraft
from chatd.terminal.dialogs import Question
from chatd.terminal.messages import (
    COPY_READY,
    FindChat,
    NewChat,
    OpenChat,
    OpenScreen,
    ScreenName,
    Severity,
    ShowNotice,
)
from chatd.terminal.safe_text import safe_line
from chatd.terminal.screens.git_diff import FileDiff, FileKind, parse_git_diff

_SCREENS: Final[Mapping[CommandName, ScreenName]] = {
    "connect": "connect",
    "mcp": "mcp",
    "policy": "policy",
    "memory": "memory",
    "usage": "usage",
    "help": "help",
}


MAX_FOUND_READERS: Final = 20
MAX_SHOWN_PROJECTS: Final = 200
MAX_LISTED_GROUPS: Final = 200
"""Limit for messages with versions; a longer list lacks its newest."""
MAX_EXPORT_BYTES: Final = 256 * 1024 * 1024
MAX_UNDONE_FILES: Final = 500
MAX_UNDO_LINES: Final = 10
_UNDO_WORDS: Final[Mapping[FileKind, str]] = {"added": "delete ", "copied": "delete "}
_AT_ONCE: Final[frozenset[CommandName]] = frozenset({"interrupt", "hold", "export"})


class NotDone(Exception):
    """The command cannot be done; the text says why and what to do."""


class CommandRunner:
    """Runs a command on the chat that is open now, even if another one is when its turn comes."""

    def __init__(self, opened: OpenDraft, choices: Choices, delivery: Delivery) -> None:
        self._opened = opened
        self._choices = choices
        self._delivery = delivery
        self._chat_id = opened.chat_id

    def refusal(self, call: CommandCall) -> str:
        """Why it cannot be run now; empty: it can."""
        chat = self._opened.chat
        reason = refusal_of(call.command, None if chat is None else chat.shown.status)
        return f"/{call.command.name}: {reason}." if reason else ""

    def needs_turn(self, call: CommandCall) -> bool:
        """Whether it changes something on the server, and so waits for the commands before it."""
        return call.command.name in self._on_server and call.command.name not in _AT_ONCE

    async def run(self, call: CommandCall) -> None:
        try:
            await self._run(call)
        except NotDone as error:
            self._say(str(error), "warning")
        except (ApiError, ServerUnreachable) as error:
            self._say(error.message, "error")

    async def _run(self, call: CommandCall) -> None:
        name, argument = call.command.name, call.argument
        if (screen := _SCREENS.get(name)) is not None:
            self._open_screen(screen)
        elif (choose := self._here.get(name)) is not None:
            choose(argument)
        elif (change := self._on_server.get(name)) is not None:
            await change(argument)

    @property
    def _here(self) -> Mapping[CommandName, Callable[[str], object]]:
        opened = self._opened
        return {
            "new": lambda _: opened.post_message(NewChat()),
            "resume": lambda words: opened.post_message(FindChat(words)),
            "model": self._model,
            "effort": self._effort,
            "workspace": self._choices.choose_workspace,
            "theme": self._choices.choose_theme,
            "attach": self._attach,
            "statusline": opened.choose_status,
            "copy": lambda _: self._copy(),
            "paste": lambda _: opened.start(opened.paste, "paste"),
            "busy": self._busy,
            "edit": lambda _: opened.edit_last(),
            "unsent": lambda _: self._take_unsent(),
            "retry": lambda _: self._retry_unsent(),
            "continue": lambda _: opened.start(self._delivery.continue_chat, "continue"),
            "queue": lambda _: opened.go_to_queue(),
            "diff": opened.show_changes,
            "quit": lambda _: opened.leave(),
        }

    @property
    def _on_server(self) -> Mapping[CommandName, Callable[[str], Awaitable[None]]]:
        return {
            "mode": self._mode,
            "plan": self._plan,
            "interrupt": lambda _: self._interrupt("continue"),
            "hold": lambda _: self._interrupt("hold"),
            "regenerate": self._regenerate,
            "version": self._version,
            "rate": self._rate,
            "undo": self._undo,
            "compact": self._compact,
            "fork": self._fork,
            "rename": self._rename,
            "archive": lambda _: self._update(
                ChatChange(archived=True), "Archived. /unarchive undoes it."
            ),
            "unarchive": lambda _: self._update(ChatChange(archived=False), "Out of the archive."),
            "pin": lambda _: self._update(ChatChange(pin_order=1), "Pinned."),
            "unpin": lambda _: self._update(ChatChange(pin_order=0), "Unpinned."),
            "share": self._share,
            "unshare": self._unshare,
            "project": self._project,
            "remember": self._remember,
            "export": self._export,
        }

    def _say(self, text: str, severity: Severity = "information") -> None:
        self._opened.post_message(ShowNotice(text, severity))

    @property
    def _api(self) -> ServerApi:
        return self._opened.session.api

    @property
    def _chat(self) -> ChatId:
        """Of a command that needs a chat."""
        assert self._chat_id is not None
        return self._chat_id

    async def _interrupt(self, queue: Literal["continue", "hold"]) -> None:
        await self._api.interrupt_chat(self._chat, queue=queue)

    def _open_screen(self, screen: ScreenName) -> None:
        if screen == "mcp" and self._opened.chat_id is None:
            self._choices.choose_mcp_servers()
            return
        self._opened.post_message(OpenScreen(screen))

    def _model(self, words: str) -> None:
        if not words:
            self._choices.choose_model()
            return
        model = self._find_model(words)
        self._opened.change_draft(lambda was: replace(was, model_id=model.id, effort=None))
        self._say(f"The next messages go to {model_name(model)}.")

    def _find_model(self, words: str) -> ModelChoice:
        model = find_model(self._opened.facts.models, words)
        if model is None:
            raise NotDone(f"No model fits {words!r}, or several do. /model shows them.")
        return model

    def _effort(self, word: str) -> None:
        if not word:
            self._choices.choose_effort()
            return
        wanted = word.lower()
        model = self._opened.model
        efforts = () if model is None else efforts_of(model)
        effort = next((one for one in efforts if wanted in (one, EFFORT_NAMES[one].lower())), None)
        if effort is None:
            known = ", ".join(efforts) or "none: it does not reason"
            raise NotDone(f"The efforts of this model: {known}.")
        self._opened.change_draft(lambda was: replace(was, effort=effort))

    def _attach(self, path: str) -> None:
        if not path:
            raise NotDone("Which file? /attach path, or @path in the text.")
        self._opened.attach_path(path)

    def _copy(self) -> None:
        chat = self._opened.chat
        messages = () if chat is None else chat.shown.messages
        answers = (one for one in reversed(messages) if one.role == "assistant")
        text = next((text for one in answers if (text := read_content(one.content).text)), "")
        if not text:
            raise NotDone("There is no answer to copy.")
        self._opened.copy(text)
        self._say("The last answer is copied.")

    def _busy(self, word: str) -> None:
        if word and find_behaviour(word) is None:
            known = ", ".join(one.word for one in BEHAVIOURS)
            raise NotDone(f"There is no {word!r}. Messages to a busy chat: {known}.")
        self._opened.keep_busy(word)

    async def _mode(self, word: str) -> None:
        wanted = word.lower() or ("normal" if self._opened.is_plan else "plan")
        if wanted not in ("plan", "normal"):
            raise NotDone("/mode plan, or /mode normal.")
        is_plan = wanted == "plan"
        if self._chat_id is None:
            self._opened.change_draft(lambda was: replace(was, is_plan=is_plan))
        else:
            change = ChatChange(mode="plan" if is_plan else "off")
            await self._api.amend_chat(self._chat, change)
            self._opened.facts.read_chat()
        self._say(
            "Plan mode: it plans, and changes nothing else." if is_plan else "Plan mode is off."
        )

    async def _plan(self, _: str) -> None:
        """Acts as the page does; a chat that plans already has a plan to show."""
        if self._opened.is_plan and self._chat_id is not None:
            self._open_screen("plan")
        else:
            await self._mode("plan")

    async def _regenerate(self, words: str) -> None:
        chat = self._opened.chat
        messages = () if chat is None or chat.chat_id != self._chat_id else chat.shown.messages
        last = next((one for one in reversed(messages) if one.role == "user"), None)
        if last is None:
            raise NotDone("There is no message of yours to answer again.")
        command = command_of(last)
        if command is not None:
            text = f"Run this command again in the workspace?\n\n{exact_text(command)}"
            if not await self._opened.ask(Question(text, yes="Run again")):
                return
        model_id = self._find_model(words).id if words else None
        await self._api.regenerate_turn(self._chat, last.id, model_config_id=model_id)
        doing = "Answering" if command is None else "Running"
        self._say(f"{doing} again. /version leads back to the answer before.")

    async def _version(self, word: str) -> None:
        """Of the newest message that has several."""
        groups = await self._api.list_versions(self._chat).items(MAX_LISTED_GROUPS)
        if not groups:
            raise NotDone("No message of this chat was edited or answered again.")
        group = groups[-1]
        ids = [one.message_id for one in group.versions]
        shown, count = ids.index(group.message_id) + 1, len(ids)
        if not word:
            first = safe_line(group.versions[shown - 1].text, 60)
            self._say(f"Version {shown} of {count} of «{first}». /version number shows another.")
            return
        if not word.isdecimal() or not 1 <= int(word) <= count:
            raise NotDone(f"There are the versions 1 to {count}.")
        await self._api.choose_version(self._chat, MessageId(ids[int(word) - 1]))
        self._say(f"Version {int(word)} of {count}. Files of the workspace stay as they are.")

    async def _rate(self, words: str) -> None:
        thumb, _, comment = words.partition(" ")
        if thumb not in ("up", "down", "none"):
            raise NotDone("Say /rate up, /rate down or /rate none; a comment may follow.")
        chat = self._opened.chat
        messages = () if chat is None or chat.chat_id != self._chat_id else chat.shown.messages
        last = next((one for one in reversed(messages) if one.role == "assistant"), None)
        if last is None:
            raise NotDone("There is no answer to rate.")
        if thumb == "none":
            await self._api.remove_rating(self._chat, last.id)
            self._say("The rating is taken back.")
            return
        await self._api.rate_answer(self._chat, last.id, thumb, comment.strip())
        self._say(f"Rated: thumb {thumb}. /rate none takes it back.")

    async def _undo(self, _: str) -> None:
        files = undoable(await self._api.get_diff(self._chat, "turn"))
        if not await self._opened.ask(Question(undo_text(files), yes="Put back")):
            return
        for at, (root, file) in enumerate(files):
            try:
                await self._api.revert_file(
                    self._chat, "turn", root, file.path, old_path=file.old_path or None
                )
            except (ApiError, ServerUnreachable) as error:
                name = safe_line(file.path, 60)
                raise NotDone(
                    f"{at} of {len(files)} files were put back. {name}: {error.message}"
                ) from None
        what = "1 file is" if len(files) == 1 else f"{len(files)} files are"
        self._say(f"{what} as before the turn.")

    async def _compact(self, _: str) -> None:
        await self._api.compact_chat(self._chat)
        self._say("The history is being summarized.")

    async def _fork(self, what: str) -> None:
        copy = await self._api.fork_chat(self._chat, copies_workspace=what == "workspace")
        if self._opened.chat_id != self._chat_id:
            self._say(COPY_READY)
            return
        self._opened.post_message(OpenChat(copy.id))
        self._say("This is a copy. The first chat goes on without it.")

    async def _rename(self, title: str) -> None:
        if title:
            await self._api.amend_chat(self._chat, ChatChange(title=title))
        else:
            named = await self._api.regenerate_title(self._chat)
            self._say(f"Renamed: {safe_line(named.title, 80)}")

    async def _update(self, change: ChatChange, done: str) -> None:
        await self._api.amend_chat(self._chat, change)
        self._opened.facts.read_chat()
        self._say(done)

    async def _share(self, name: str) -> None:
        if name:
            found = await self._api.search_directory(name, limit=MAX_FOUND_READERS)
            known = await self._set_role(found, name, "read")
            self._say(f"{known} can read this chat and its subagents.")
            return
        readers = await self._api.get_acl(self._chat)
        names = [one.username for one in readers.users] + [one.name for one in readers.groups]
        shown = safe_line(", ".join(names), 200) or "nobody else"
        self._say(f"Readers: {shown}. /share name adds one, /unshare name removes one.")

    async def _unshare(self, name: str) -> None:
        if not name:
            raise NotDone("From whom? /unshare name.")
        known = await self._set_role(await self._api.get_acl(self._chat), name, "")
        self._say(f"{known} can no longer read this chat.")

    async def _project(self, name: str) -> None:
        """Of this chat, or of the new one that is being written."""
        known = await self._api.list_projects().items(MAX_SHOWN_PROJECTS)
        if not name:
            shown = safe_line(", ".join(one.name for one in known), 200) or "none"
            self._say(f"Your projects: {shown}. /project name puts the chat into one.")
            return
        found = next((one for one in known if one.name.lower() == name.lower()), None)
        if found is None and name != "none":
            raise NotDone(f"There is no project {safe_line(name, 60)}. /project lists them.")
        project_id = None if found is None else found.id
        done = "In no project." if found is None else f"In {safe_line(found.name, 60)}."
        if self._chat_id is not None:
            others = found is not None and found.member_count > 1
            told = " Its members can read this chat." if others else ""
            await self._update(ChatChange(project_id=project_id), f"{done}{told}")
            return
        text = "" if project_id is None else str(project_id)
        self._opened.change_draft(lambda was: replace(was, project_id=text), self._opened.key)
        self._say(f"The new chat will be: {done}")

    async def _remember(self, text: str) -> None:
        if not text:
            self._open_screen("memory")
            return
        await self._api.create_note(text)
        self._say("Kept. The models of your chats are told it; /memory shows your notes.")

    async def _set_role(self, found: Directory, name: str, role: str) -> str:
        """Set the role of the user or group with that name among those found; returns the name."""
        reader = find_reader(found, name)
        roles = {reader.id: role}
        if reader.is_group:
            await self._api.change_acl(self._chat, group_roles=roles)
        else:
            await self._api.change_acl(self._chat, user_roles=roles)
        return safe_line(reader.shown, 60)

    async def _export(self, path: str) -> None:
        """Write a new file; never overwrites one."""
        chat = self._opened.facts.chat
        title = chat.title if chat is not None and chat.id == self._chat_id else ""
        machine = self._opened.session.machine
        target = resolve(path or export_name(title), machine.working_directory, machine.home)
        kind = "jsonl" if target.suffix == ".jsonl" else "markdown"
        try:
            file = await asyncio.to_thread(_create, target)
        except OSError as error:
            raise NotDone(f"{target} was not written: {error.strerror or error}.") from None
        try:
            with file:
                exported = self._api.export_chat(self._chat, kind)
                size = await exported.write_to(file.write, max_bytes=MAX_EXPORT_BYTES)
        except BaseException:
            os.unlink(target)
            raise
        self._say(f"Saved {safe_line(str(target), 200)} ({size:,} bytes).")

    def _take_unsent(self) -> None:
        """Put the oldest refused message back into the box."""
        for key in self._refused():
            draft = self._opened.session.outbox.dismiss(key)
            if draft is not None:
                before = self._opened.box.text.strip()
                text = read_content(draft.content).text
                self._opened.write(f"{before}\n\n{text}" if before else text)
                return
        self._say("No message was refused.")

    def _retry_unsent(self) -> None:
        keys = self._refused()
        for key in keys:
            self._opened.session.outbox.retry(key)
        if not keys:
            self._say("No message was refused.")

    def _refused(self) -> list[str]:
        """The keys of refused messages of this chat, oldest first."""
        chat_id, unsent = self._opened.chat_id, self._opened.session.outbox.unsent
        return [one.key for one in unsent if one.chat_id == chat_id and one.state == "refused"]


def undoable(changes: ChatChanges) -> list[tuple[str, FileDiff]]:
    """The files of the last turn, each with its repository. Raises NotDone."""
    omitted = [one.omitted for one in changes.repositories if one.omitted]
    files = [
        (one.repo_root, file)
        for one in changes.repositories
        for file in parse_git_diff(one.unified_diff).files
    ]
    if omitted:
        raise NotDone(f"Not all changes of the turn are known: {omitted[0]}. /diff shows them.")
    if not files:
        raise NotDone("The last turn has changed no files of a git repository.")
    if len(files) > MAX_UNDONE_FILES:
        raise NotDone(f"The turn has changed {len(files)} files: use git in the workspace.")
    return files


def undo_text(files: Sequence[tuple[str, FileDiff]]) -> str:
    """Names as many files as fit into a dialog."""
    lines = [f"  {_UNDO_WORDS.get(one.kind, 'restore')} {one.path}" for _, one in files]
    if len(lines) > MAX_UNDO_LINES:
        lines[MAX_UNDO_LINES - 1 :] = [f"  and {len(lines) - MAX_UNDO_LINES + 1} more"]
    return "\n".join(
        (
            "Put back what the last turn has changed, and what was changed since?",
            *lines,
            "Not undone: what git ignores, files elsewhere, and other effects of commands.",
        )
    )


class Reader(Struct, frozen=True):
    """A user or a group that may read a chat."""

    id: str
    shown: str
    name: str
    is_group: bool = False


def find_reader(found: Directory, name: str) -> Reader:
    """The exact name, else the only one that was found. Raises NotDone."""
    wanted = name.strip().lower()
    named = [Reader(str(one.id), one.username, one.name) for one in found.users]
    named += [Reader(str(one.id), one.name, one.name, is_group=True) for one in found.groups]
    exact = [one for one in named if wanted in (one.shown.lower(), one.name.lower())]
    fitting = [one for one in named if wanted in one.shown.lower() or wanted in one.name.lower()]
    chosen = exact or fitting
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise NotDone(f"There is no user or group {name!r}.")
    others = ", ".join(one.shown for one in chosen[:5])
    raise NotDone(f"{name!r} fits several: {others}. Write the whole name.")


def export_name(title: str) -> str:
    """A file name from a title, without anything special to a shell or a file system."""
    words = re.findall(r"[\w-]+", title.lower())
    return ("-".join(words)[:60].strip("-") or "chat") + ".md"


def _create(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
