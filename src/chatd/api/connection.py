"""One connection of the server: uvicorn's, with what it leaves unbounded or forgets made good.

Owns how large the head of a request may be, and who is told when a client goes.
"""

import asyncio
from collections import deque
from typing import Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

MAX_HEAD: Final = 64 * 1024

_TOO_LARGE: Final = b'{"code":"too_large","message":"The head of the request is too large."}'
_HEAD_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_TOO_LARGE), _TOO_LARGE)
)


class Connection(HttpToolsProtocol):
    """Bounds what uvicorn keeps without a bound: the head of a request, and what may follow its
    body. All that was heard since the last piece of a body counts, to about a read's length. And
    when the client goes, uvicorn tells the last request that came; here all are told."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._heard = 0
        self._asked: deque[RequestResponseCycle] = deque()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in self._asked:
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._heard += len(data)
        super().data_received(data)
        if self._heard <= MAX_HEAD or self.transport.is_closing():
            return
        if not self.cycle or self.cycle.response_complete:
            self.transport.write(_HEAD_TOO_LARGE)
        self.transport.close()

    def on_headers_complete(self) -> None:
        self._heard = 0
        super().on_headers_complete()
        while self._asked and self._asked[0].response_complete:
            self._asked.popleft()
        if self.cycle:
            self._asked.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._heard = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._heard = 0
        super().on_message_complete()
