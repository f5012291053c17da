"""What OpenAI's model families can do, told by their names.

A name is looked at only to choose between forms of a request; it goes out as it
is. A name that says nothing (a deployment's, a gateway's) is left alone.
"""

import re
from collections.abc import Collection
from typing import Final, Literal

from chatd.domain.model.protocol import Effort
from chatd.providers.effort import SCALE, lowered, raised

Transport = Literal["responses", "chat"]

_GPT: Final = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?=$|[^0-9.])(.*)")
_O_SERIES: Final = re.compile(r"o\d")
_OTHER_REASONING: Final = ("gpt-oss", "codex-", "computer-use-preview")

_WORDS: Final[Collection[Effort]] = ("low", "medium", "high")


def transport_of(model: str, *, use_responses_api: bool | None) -> Transport:
    """As configured, else Responses for the models that are known to be served there."""
    if use_responses_api is not None:
        return "responses" if use_responses_api else "chat"
    name = family(model)
    version = _version(name)
    known = (
        (version is not None and version >= (4, 0))
        or _O_SERIES.match(name) is not None
        or name.startswith(("codex-", "computer-use-preview"))
    )
    # These search the web by themselves, and only there.
    return "responses" if known and "-search-" not in name else "chat"


def family(model: str) -> str:
    """Without the gateway's and the fine-tuner's prefixes: `openai/gpt-5`, `ft:gpt-4o:us::1`."""
    return model.lower().rsplit("/", 1)[-1].removeprefix("ft:")


def reasons(model: str) -> bool | None:
    """Takes an effort, and no temperature. None if the name does not tell."""
    name = family(model)
    if _O_SERIES.match(name) or name.startswith(_OTHER_REASONING):
        return True
    if name.startswith(("chatgpt-", "gpt-5-chat")):
        return False
    version = _version(name)
    return None if version is None else version >= (5, 0)


def fitted_effort(effort: Effort, model: str) -> Effort:
    """The nearest effort this model takes. Little thinking is never turned into none."""
    allowed = _efforts(family(model))
    fitted = lowered(effort, allowed)
    return raised(effort, allowed) if fitted == "none" != effort else fitted


def _version(name: str) -> tuple[int, int] | None:
    match = _GPT.match(name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def _efforts(name: str) -> Collection[Effort]:
    if _O_SERIES.match(name) or name.startswith(_OTHER_REASONING):
        return _WORDS
    version = _version(name)
    if version is None or version < (5, 0):
        return SCALE
    if "-chat" in name:
        return ("medium",)
    if name.startswith("gpt-5-pro"):
        return ("high",)
    if version == (5, 0):
        return _WORDS if "codex" in name else ("minimal", *_WORDS)
    if version == (5, 1) and "codex-max" not in name:
        return ("none", *_WORDS)
    if version < (5, 6):
        return ("none", *_WORDS, "xhigh")
    return ("none", *_WORDS, "xhigh", "max")
