"""How hard a model is asked to think: what was wished for, within what is configured."""

from typing import Final, get_args

from chatd.domain.model import Effort, EffortRange

SCALE: Final[tuple[Effort, ...]] = get_args(Effort)


def resolve_effort(requested: str | None, configured: EffortRange | None) -> Effort | None:
    """The wish if it is one of the scale, else the default; never above the maximum. A model
    without a configured range is not asked at all."""
    if configured is None:
        return None
    wishes: list[Effort] = [effort for effort in SCALE if effort == requested]
    wished = wishes[0] if wishes else configured.default
    if wished is None or configured.max is None:
        return wished
    return SCALE[min(SCALE.index(wished), SCALE.index(configured.max))]
