"""A chat whose model was removed: the error that says so, and the notice that another model
answers."""

from collections.abc import Sequence

from msgspec import Struct

from chatd.domain.chat.messages import Draft, Message
from chatd.domain.chat.notices import notice_draft
from chatd.domain.chat.parts import NoticePart
from chatd.domain.chat.row import ChatError
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.failures import ClassifiedFailure, ModelError
from chatd.domain.model.protocol import ModelConfig

MODEL_REPLACED = "model_replaced"


class RemovedModel(Struct, frozen=True, kw_only=True):
    """A model that was deleted, or that no server declares any more."""

    id: ModelConfigId
    name: str


class ModelRemoved(ModelError):
    """The default model may answer instead."""

    def __init__(self, removed: RemovedModel, message: str) -> None:
        error = ChatError(message=message, kind="model_removed")
        super().__init__(ClassifiedFailure(kind="model_removed", error=error))
        self.removed = removed


def replacement_notice(
    history: Sequence[Message], removed: RemovedModel | None, now: ModelConfig
) -> Draft | None:
    """Tells that another model answers than the chat's own. Once for each change: None if it was
    told since the removed model last answered."""
    if removed is None:
        return None
    pair = {"removed_model_config_id": str(removed.id), "model_config_id": str(now.id)}
    for row in reversed(history):
        if row.deleted:
            continue
        if row.role == "assistant" and row.model_config_id == removed.id:
            break
        told = (part for part in row.content if isinstance(part, NoticePart))
        if any(part.code == MODEL_REPLACED and part.detail == pair for part in told):
            return None
    return notice_draft(
        MODEL_REPLACED, f"{removed.name} was removed; {now.name} answers now.", pair
    )
