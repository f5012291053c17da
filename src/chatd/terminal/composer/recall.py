"""Earlier prompts for the arrow keys, read from the server when they are first asked for."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.errors import ApiError, ServerUnreachable

# What the composer knows of its chat beside the messages: mode, model, cost; and the models.
from chatd.terminal.composer.open_draft import OpenDraft
from chatd.terminal.safe_text import safe_text

MAX_PROMPTS: Final = 50


class PromptHistory(Struct, frozen=True, kw_only=True):
    """`prompts` are newest first. `place` is -1 outside the history; `draft` is the text that was
    being written, which comes back below the newest prompt."""

    prompts: tuple[str, ...] = ()
    place: int = -1
    draft: str = ""

    @property
    def text(self) -> str:
        return self.draft if self.place < 0 else self.prompts[self.place]

    def is_shown(self, text: str) -> bool:
        """Whether the box still has the prompt as it was: the arrows go on through the history."""
        return self.place >= 0 and text == self.text

    def back(self, written: str) -> "PromptHistory":
        """One prompt older; the oldest stays. A prompt that equals what is written is passed."""
        if not self.is_shown(written):
            return self._enter(written)
        return replace(self, place=min(self.place + 1, len(self.prompts) - 1))

    def forward(self, written: str) -> "PromptHistory":
        if not self.is_shown(written):
            return self
        return replace(self, place=self.place - 1)

    def _enter(self, written: str) -> "PromptHistory":
        is_same = bool(self.prompts) and self.prompts[0] == written
        first = 1 if is_same else 0
        if first >= len(self.prompts):
            return replace(self, place=-1, draft=written)
        return replace(self, place=first, draft=written)


def make_history(prompts: Sequence[str]) -> PromptHistory:
    return PromptHistory(prompts=tuple(dict.fromkeys(one for one in prompts if one.strip())))


class Recall:
    """Of one draft at a time; `forget` when another is shown or a message was sent."""

    def __init__(self, opened: OpenDraft) -> None:
        self._opened = opened
        self._history: PromptHistory | None = None

    def forget(self) -> None:
        self._history = None

    def back(self, text: str) -> None:
        if self._history is None:
            self._opened.start(partial(self._read, text), "prompts")
            return
        self._history = self._history.back(text)
        if self._history.text != text:
            self._opened.write(self._history.text)

    def forward(self, text: str) -> bool:
        """False: the text is no prompt of the history."""
        if self._history is None or not self._history.is_shown(text):
            return False
        self._history = self._history.forward(text)
        self._opened.write(self._history.text)
        return True

    async def _read(self, text: str) -> None:
        key, chat_id = self._opened.key, self._opened.chat_id
        api = self._opened.session.api
        listed = (
            api.list_prompts(limit=MAX_PROMPTS)
            if chat_id is None
            else api.list_chat_prompts(chat_id, limit=MAX_PROMPTS)
        )
        try:
            page = await listed
        except (ApiError, ServerUnreachable) as error:
            self._opened.say(f"The earlier prompts were not read. {error.message}", "warning")
            return
        if key == self._opened.key and text == self._opened.draft.text:
            self._history = make_history([safe_text(one.text) for one in page.items])
            self.back(text)
