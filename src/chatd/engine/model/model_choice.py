"""Which model answers a step: the chat's own, the default in place of one that was removed, or a
fallback. `domain.model.fallback` decides.
"""

from contextlib import suppress
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.row import NO_SETBACKS, Chat
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.failures import ModelError, ModelRemoved
from chatd.domain.model.fallback import (
    PromptNeeds,
    fallback_objection,
    fallback_reason,
    fits_reason,
    is_fallback_due,
)
from chatd.domain.model.protocol import FallbackReason, ModelConfig
from chatd.domain.ports import Env, ModelChoice, ModelSource
from chatd.domain.prompt.compaction import measure_fill
from chatd.engine.model.attempt import Attempt
from chatd.engine.model.circuits import Circuits


async def choose_model(models: ModelSource, chat: Chat) -> ModelChoice:
    """The chat's model; if it was removed, the default, unless the chat requires its own. Raises
    ModelError."""
    try:
        return await models.choose(chat.model_config_id, chat.owner_id)
    except ModelRemoved as gone:
        if chat.model_required:
            text = f"{gone.message} The chat is set to require its model, so no other one answers."
            raise ModelRemoved(gone.removed, text) from None
        choice = await models.choose(None, chat.owner_id)
        return replace(choice, replaces=gone.removed)


async def choose_answering_model(
    models: ModelSource, attempt: Attempt, now: datetime
) -> ModelChoice:
    """The chat's model, or the fallback that the row names. Raises ModelError."""
    chat = attempt.chat
    try:
        choice = await choose_model(models, chat)
    except ModelError:
        own = await models.configured(chat.model_config_id)
        fallback = None if own is None else await _find_chosen(models, attempt, own, now)
        if fallback is None:
            raise
        return fallback
    return await _find_chosen(models, attempt, choice.config, now) or choice


async def _find_chosen(
    models: ModelSource, attempt: Attempt, own: ModelConfig, now: datetime
) -> ModelChoice | None:
    """The fallback of the row, if it answers this step in place of the chat's `own` model."""
    chat = attempt.chat
    chosen, setbacks = chat.fallback, chat.setbacks
    if chosen is None or setbacks is None or chat.model_required:
        return None
    tokens = measure_fill(attempt.history, None).tokens
    if not is_fallback_due(chosen, setbacks, own, tokens, now):
        return None
    try:
        choice = await models.choose(chosen.model_config_id, chat.owner_id)
    except ModelError:
        return None
    if choice.config.name not in {fallback.model for fallback in own.fallbacks}:
        return None
    return replace(choice, stands_in_for=own)


async def choose_usable_model(models: ModelSource, chat: Chat) -> ModelChoice:
    """The chat's model, or the first of its fallbacks that can be called if that cannot. For words
    about a chat, which are not part of it. Raises ModelError."""
    try:
        return await choose_model(models, chat)
    except ModelError as error:
        own = await models.configured(chat.model_config_id)
        reason = fallback_reason(error.classified)
        if own is None or reason is None or chat.model_required:
            raise
        for fallback in own.fallbacks:
            if reason in fallback.on:
                with suppress(ModelError):
                    choice = await models.choose_named(fallback.model, chat.owner_id)
                    return replace(choice, stands_in_for=own)
        raise


class FallbackSearch(Struct, frozen=True, kw_only=True):
    """What a fallback of the chat's `own` model must be good for. `failed_models` are those that
    have failed at this step."""

    own: ModelConfig
    reason: FallbackReason
    needs: PromptNeeds
    failed_models: tuple[ModelConfigId, ...]


async def find_fallback(
    models: ModelSource, circuits: Circuits, env: Env, chat: Chat, wanted: FallbackSearch
) -> ModelChoice | None:
    """The first that can answer this prompt, has not failed at this step, and whose provider does
    not fail for all chats."""
    setbacks = chat.setbacks or NO_SETBACKS
    for fallback in wanted.own.fallbacks:
        if not fits_reason(fallback, wanted.reason, setbacks):
            continue
        try:
            choice = await models.choose_named(fallback.model, chat.owner_id)
        except ModelError as error:
            objection = error.classified.kind
        else:
            if choice.config.id in wanted.failed_models:
                continue
            if circuits.is_open(choice.config.provider):
                objection = "its provider fails"
            else:
                objection = fallback_objection(
                    choice.config, choice.files, wanted.needs, wanted.reason, wanted.own
                )
            if objection is None:
                return choice
        env.emit("fallback_skipped", chat_id=chat.id, model=fallback.model, reason=objection)
    return None
