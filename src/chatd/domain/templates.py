"""Which templates to show a model, in which order, and which one to recommend.

Owns the ranking; who may use a template at all is decided before, and what was used by whom
comes in as `Signal`s. A listing without signals is still a listing.
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.workspace import Template, TemplateId

PAGE: Final = 10
EXCERPT: Final = 1000
_PARSED_BYTES: Final = 64 * 1024
_HALF_LIFE_S: Final = 14 * 86_400.0
# A hair less than they are said to be: sums of logarithms do not come out even.
_GAP: Final = math.log(3) - math.log(2) - 1e-9
_FLOOR: Final = math.log(3) - 1e-9
_IGNORED: Final = re.compile(r"[\s_-]+")
_FRONTMATTER: Final = re.compile(r"\A---[ \t]*\r?\n.*?\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)

NextStep = Literal["use_recommended", "ask_user", "no_match", "none"]


class Signal(Struct, frozen=True, kw_only=True):
    """What the last 60 days say of one template."""

    active: int = 0
    """The asker's workspaces of it that there are now."""
    deleted: int = 0
    """Those the asker had and has deleted."""
    last_used_at: datetime | None = None
    developers: int = 0
    """How many people use it."""


class Ranked(Struct, frozen=True, kw_only=True):
    template: Template
    signal: Signal
    tier: int
    affinity: float


class Listing(Struct, frozen=True, kw_only=True):
    templates: tuple[Ranked, ...]
    page: int
    next_page: int | None
    recommended: TemplateId | None
    next_step: NextStep


def list_templates(
    templates: Sequence[Template],
    signals: Mapping[TemplateId, Signal] | None,
    *,
    query: str = "",
    page: int = 1,
    now: datetime,
) -> Listing:
    """Ranked before it is cut into pages. `signals` is None if they could not be read."""
    wanted = _folded(query)
    ranked = sorted(
        (
            _rank(template, (signals or {}).get(template.id, Signal()), wanted, now)
            for template in templates
            if not template.deleted and not template.deprecated and template.agents_allowed
        ),
        key=lambda r: (-r.tier, -r.affinity, r.template.name, r.template.id.int),
    )
    if wanted:
        ranked = [r for r in ranked if r.tier > 0]
    recommended = _recommended(ranked, queried=bool(wanted))
    page = max(page, 1)
    shown = ranked[(page - 1) * PAGE : page * PAGE]
    return Listing(
        templates=tuple(shown),
        page=page,
        next_page=page + 1 if len(ranked) > page * PAGE else None,
        recommended=recommended,
        next_step=_next_step(ranked, recommended, queried=bool(wanted)),
    )


def _rank(template: Template, signal: Signal, wanted: str, now: datetime) -> Ranked:
    tier = _tier(template, wanted) if wanted else 0
    return Ranked(template=template, signal=signal, tier=tier, affinity=affinity(signal, now))


def _folded(text: str) -> str:
    return _IGNORED.sub("", text.casefold())


def _tier(template: Template, wanted: str) -> int:
    names = {_folded(template.name), _folded(template.display_name)} - {""}
    if wanted in names:
        return 4
    if any(name.startswith(wanted) for name in names):
        return 3
    if any(wanted in name for name in names):
        return 2
    return 1 if wanted in _folded(template.description) else 0


def affinity(signal: Signal, now: datetime) -> float:
    """The asker's own use, which fades, outweighs everybody's."""
    own = 0.0
    if signal.last_used_at is not None:
        age_s = max((now - signal.last_used_at).total_seconds(), 0.0)
        own = 10 * (signal.active + 0.5 * signal.deleted) * 0.5 ** (age_s / _HALF_LIFE_S)
    return own + math.log1p(signal.developers)


def _recommended(ranked: Sequence[Ranked], *, queried: bool) -> TemplateId | None:
    if not ranked:
        return None
    best = ranked[0]
    if len(ranked) == 1:
        return best.template.id
    second = ranked[1]
    clear = best.affinity - second.affinity >= _GAP
    if queried:
        better = best.tier > second.tier
        return best.template.id if better or clear else None
    if best.affinity < _FLOOR:
        return None
    return best.template.id if clear or second.affinity < _FLOOR else None


def _next_step(
    ranked: Sequence[Ranked], recommended: TemplateId | None, *, queried: bool
) -> NextStep:
    if recommended is not None:
        return "use_recommended"
    if ranked:
        return "ask_user"
    return "no_match" if queried else "none"


def readme_excerpt(readme: str, most: int = EXCERPT) -> str:
    """The beginning of what a readme says, without the block of settings above it."""
    text = readme.encode(errors="replace")[:_PARSED_BYTES].decode(errors="ignore")
    text = _FRONTMATTER.sub("", text).strip()
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
