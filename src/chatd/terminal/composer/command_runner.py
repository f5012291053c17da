"""Does what a slash command says."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Literal

from msgspec.structs import replace

from chatd.client.drafts import ChatChange
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId
from chatd.terminal.composer.chat_requests import ChatRequests, NotDone, export_name
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
from chatd.terminal.composer.message_content import read_content, refused_sends
from chatd.terminal.composer.model_texts import EFFORT_NAMES, efforts_of, find_model, model_name
from chatd.terminal.composer.open_draft import OpenDraft
from chatd.terminal.messages import (
    COPY_READY,
    NewChat,
    OpenChat,
    OpenScreen,
    ScreenName,
    Severity,
    ShowNotice,
)
from chatd.terminal.safe_text import safe_line

_SCREENS: Final[Mapping[CommandName, ScreenName]] = {
    "mcp": "mcp",
    "policy": "policy",
    "usage": "usage",
    "help": "help",
}


_AT_ONCE: Final[frozenset[CommandName]] = frozenset({"interrupt", "hold", "export"})


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
        """Whether it changes something on the server, after what the commands before it changed."""
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
            "model": self._model,
            "effort": self._effort,
            "workspace": self._choices.choose_workspace,
            "attach": self._attach,
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

    @property
    def _requests(self) -> ChatRequests:
        return ChatRequests(self._api, self._chat)

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
        model = find_model(self._opened.facts.models, words)
        if model is None:
            raise NotDone(f"No model fits {words!r}, or several do. /model shows them.")
        self._opened.change_draft(lambda was: replace(was, model_id=model.id, effort=None))
        self._say(f"The next messages go to {model_name(model)}.")

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
        """As on the page; a chat that plans already has a plan to show."""
        if self._opened.is_plan and self._chat_id is not None:
            self._open_screen("plan")
        else:
            await self._mode("plan")

    async def _compact(self, _: str) -> None:
        await self._api.compact_chat(self._chat)
        self._say("The history is being summarized.")

    def _fork(self, _: str) -> Awaitable[None]:
        """Of the chat that is open now, not when the request is sent."""
        return self._send_fork(self._chat)

    async def _send_fork(self, chat_id: ChatId) -> None:
        copy = await self._api.fork_chat(chat_id)
        if self._opened.chat_id != chat_id:
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
            known = safe_line(await self._requests.share(name), 60)
            self._say(f"{known} can read this chat and its subagents.")
            return
        readers = await self._api.get_acl(self._chat)
        names = [one.username for one in readers.users] + [one.name for one in readers.groups]
        shown = safe_line(", ".join(names), 200) or "nobody else"
        self._say(f"Readers: {shown}. /share name adds one, /unshare name removes one.")

    async def _unshare(self, name: str) -> None:
        if not name:
            raise NotDone("From whom? /unshare name.")
        known = safe_line(await self._requests.unshare(name), 60)
        self._say(f"{known} can no longer read this chat.")

    async def _export(self, path: str) -> None:
        chat = self._opened.facts.chat
        if chat is not None and chat.id != self._chat_id:
            chat = None
        machine = self._opened.session.machine
        wanted = path or export_name("" if chat is None else chat.title)
        target: Path = resolve(wanted, machine.working_directory, machine.home)
        size = await self._requests.export(target)
        self._say(f"Saved {safe_line(str(target), 200)} ({size:,} bytes).")

    def _take_unsent(self) -> None:
        """The oldest refused message comes back into the box."""
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
        chat_id = self._opened.chat_id
        return [] if chat_id is None else refused_sends(self._opened.session.outbox, chat_id)
