"""Responses over HTTP: the pipe between `encode` and `Decoder`."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.providers.openai_link import Link
from chatd.providers.openai_responses.decode import Decoder
from chatd.providers.openai_responses.encode import encode, tool_names
from chatd.providers.options_openai import OpenAIOptions


class ResponsesClient:
    def __init__(self, link: Link) -> None:
        self._link = link

    def stream(
        self, request: ModelRequest, options: OpenAIOptions
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        names = tool_names(request, options)
        origin = self._link.origin
        body = encode(request, options, names, origin)
        return self._link.stream("/responses", request, body, Decoder(origin, names))
