"""Earlier prompts for the arrow keys. Pure: the composer reads the prompts from the server."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace


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
