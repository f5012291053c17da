"""Chooses the model of the next messages, and how much it thinks."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from chatd.client.choice_resources import ModelChoice
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import Effort
from chatd.terminal.pickers.model_texts import (
    EFFORT_NAMES,
    context_limit_of,
    effort_for,
    efforts_of,
    model_name,
    price_text,
    refusal_of_model,
    size_text,
)
from chatd.terminal.pickers.picker import Pick, Picker
from chatd.terminal.safe_text import safe_line


def model_picks(
    models: Sequence[ModelChoice], current: ModelConfigId | None
) -> list[Pick[ModelChoice]]:
    """By provider, those that can be used first. Deleted ones are left out."""
    known = [one for one in models if not one.deleted]
    known.sort(key=lambda one: (bool(refusal_of_model(one)), one.provider, one.display_name))
    return [
        Pick(
            value=one,
            label=model_name(one),
            note=_note(one),
            refusal=refusal_of_model(one),
            words=f"{one.name} {one.model}",
            is_current=one.id == current,
        )
        for one in known
    ]


def _note(model: ModelChoice) -> str:
    limit = context_limit_of(model)
    size = "" if limit is None else f"{size_text(limit)} context"
    return " · ".join(text for text in (model.provider, size, price_text(model)) if text)


class ModelPicker(Picker[ModelChoice]):
    """Returns the model; `chosen_effort` is the one that was chosen with it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "change_effort(-1)", "Less effort", show=False, priority=True),
        Binding("right", "change_effort(1)", "More effort", show=False, priority=True),
    ]

    def __init__(
        self,
        models: Sequence[ModelChoice],
        current: ModelConfigId | None,
        effort: Effort | None,
    ) -> None:
        super().__init__("Model of the next messages", model_picks(models, current))
        self._wanted: Effort | None = effort
        self.chosen_effort: Effort | None = effort

    def _choose(self) -> None:
        self.chosen_effort = self.effort
        super()._choose()

    @property
    def effort(self) -> Effort | None:
        model = None if self.pick is None else self.pick.value
        return effort_for(model, self._wanted)

    def action_change_effort(self, by: int) -> None:
        model = None if self.pick is None else self.pick.value
        efforts = () if model is None else efforts_of(model)
        effort = self.effort
        if effort is None:
            return
        at = efforts.index(effort) + by
        self._wanted = efforts[max(0, min(at, len(efforts) - 1))]
        self._show_foot()

    def _foot_text(self) -> Text:
        if not self.is_mounted or self.pick is None:
            return super()._foot_text()
        model = self.pick.value
        foot = Text(safe_line(f"{model.provider}/{model.model}", 70), "dim")
        foot.append("\nEffort  ")
        efforts = efforts_of(model)
        for one in efforts:
            is_chosen = one == self.effort
            foot.append(f" {EFFORT_NAMES[one]} ", "reverse" if is_chosen else "dim")
        foot.append("  ← → change it" if efforts else "this model does not reason", "dim")
        foot.append("\nEnter chooses · Esc closes", "dim")
        return foot
