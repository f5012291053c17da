"""Chat Completions over HTTP: the pipe between `encode` and `Decoder`."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from chatd.domain.model.protocol import ModelEvent, ModelRequest, PromptCall
from chatd.providers.openai_chat.answer import Answer
from chatd.providers.openai_chat.decode import Decoder
from chatd.providers.openai_chat.dialect import dialect_of
from chatd.providers.openai_chat.encode import encode
from chatd.providers.openai_chat.params import ChatOptions
from chatd.providers.openai_link import Link
from chatd.providers.openai_tools import names_of
from chatd.providers.settings import misconfigured


class ChatClient:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._dialect = dialect_of(link.settings.kind, link.base)

    def stream(
        self, request: ModelRequest, options: ChatOptions
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        if request.computer is not None:
            raise misconfigured(
                self._link.settings,
                f"{request.model} cannot use a computer here: that needs the Responses API",
            )
        names = names_of(request)
        origin = self._link.origin
        body = encode(request, options, names, self._dialect, origin)
        answer = Answer(
            origin,
            names,
            taken=_call_ids(request),
            # The same whenever the same is asked again, and another in every other step.
            salt=hashlib.blake2b(body, digest_size=6).hexdigest(),
            thoughts=self._dialect.gemini,
        )
        return self._link.stream("/chat/completions", request, body, Decoder(answer))


def _call_ids(request: ModelRequest) -> set[str]:
    return {
        part.id
        for message in request.messages
        for part in message.parts
        if isinstance(part, PromptCall)
    }
