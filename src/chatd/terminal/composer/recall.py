"""The arrows through earlier prompts, which are read from the server when they are first asked
for."""

from functools import partial
from typing import Final

from chatd.client.choice_resources import Prompt
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import Page
from chatd.terminal.composer.host import ComposerHost
from chatd.terminal.composer.prompt_history import PromptHistory, make_history
from chatd.terminal.safe_text import safe_text

MAX_PROMPTS: Final = 50


class Recall:
    """Of one draft at a time; `forget` when another is shown or a message was sent."""

    def __init__(self, host: ComposerHost) -> None:
        self._host = host
        self._history: PromptHistory | None = None

    def forget(self) -> None:
        self._history = None

    def is_shown(self, text: str) -> bool:
        return self._history is not None and self._history.is_shown(text)

    def back(self, text: str) -> None:
        if self._history is None:
            self._host.start(partial(self._read, text), "prompts")
            return
        self._history = self._history.back(text)
        if self._history.text != text:
            self._host.write(self._history.text)

    def forward(self, text: str) -> bool:
        """False: the text is no prompt of the history."""
        if self._history is None or not self._history.is_shown(text):
            return False
        self._history = self._history.forward(text)
        self._host.write(self._history.text)
        return True

    async def _read(self, text: str) -> None:
        key, chat_id = self._host.key, self._host.chat_id
        path = "/prompts" if chat_id is None else f"/chats/{chat_id}/prompts"
        try:
            page = await self._host.session.api.get(path, Page[Prompt], limit=MAX_PROMPTS)
        except (ApiError, ServerUnreachable) as error:
            self._host.say(f"The earlier prompts were not read. {error.message}", "warning")
            return
        if key == self._host.key and text == self._host.draft.text:
            self._history = make_history([safe_text(one.text) for one in page.items])
            self.back(text)
