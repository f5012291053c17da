"""What the demo model's scripts are made of."""

from collections.abc import Mapping

from msgspec import Struct

from chatd.domain.model import ProviderFault


class Say(Struct, frozen=True, kw_only=True):
    text: str


class Think(Struct, frozen=True, kw_only=True):
    text: str


class Use(Struct, frozen=True, kw_only=True):
    """A call of a real tool."""

    name: str
    args: Mapping[str, object]


class Cite(Struct, frozen=True, kw_only=True):
    url: str
    title: str


class Break(Struct, frozen=True, kw_only=True):
    """The stream fails here. At the very beginning, it is never opened."""

    fault: ProviderFault


class Refuse(Struct, frozen=True, kw_only=True):
    """The answer ends here, filtered."""

    why: str


Beat = Say | Think | Use | Cite | Break | Refuse


class Scene(Struct, frozen=True, kw_only=True):
    """One answer. `pace` is how fast, as a share of the usual; 0 is without any pause."""

    beats: tuple[Beat, ...]
    pace: float = 1.0


def say(*texts: str) -> Scene:
    return Scene(beats=tuple(Say(text=text) for text in texts))
