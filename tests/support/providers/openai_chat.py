"""Fakes of Chat Completions: OpenAI's own, and a stricter compatible server."""

from pathlib import Path

import msgspec

from tests.support.providers.openai_chat_rules import Body, check, check_reasoning
from tests.support.providers.openai_responses import check_key, refusal
from tests.support.providers.openai_schema import OpenAiRefusal
from tests.support.providers.server import FakeServer, RecordedRequest, Reply

STREAMS = Path(__file__).parents[2] / "data" / "streams" / "openai_chat"
NAMES = sorted(path.stem for path in STREAMS.glob("*.sse"))


def stream(name: str) -> bytes:
    return (STREAMS / f"{name}.sse").read_bytes()


def chunk(finish: str | None = None, **delta: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    data = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"


class FakeChat(FakeServer):
    """`accepted` are the requests that the real API would accept."""

    openai = True

    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[Body] = []
        self.unknown_path_body: object = None

    def refuse(self, request: RecordedRequest) -> Reply | None:
        if request.method != "POST" or request.path != "/v1/chat/completions":
            if self.unknown_path_body is not None:
                body = self.unknown_path_body
                data = body if isinstance(body, bytes) else msgspec.json.encode(body)
                return Reply(status=404, headers={"content-type": "text/plain"}, steps=(data,))
            return refusal(404, f"Invalid URL ({request.method} {request.path})")
        if self.openai and (wrong := check_key(request)) is not None:
            return wrong
        try:
            body = check(request.body, openai=self.openai)
            self.check_vendor(body)
            self.accepted.append(body)
        except OpenAiRefusal as refused:
            text = msgspec.json.encode(refused.body)
            return Reply(status=400, headers={"content-type": "application/json"}, steps=(text,))
        return None

    def check_vendor(self, body: Body) -> None:
        """Raises what only this vendor refuses. For subclasses."""


class FakeCompatible(FakeChat):
    """Needs no key, accepts any argument, and checks the order of roles."""

    openai = False


class FakeDeepSeek(FakeCompatible):
    """Refuses a tool turn without its reasoning, in all later requests too."""

    def check_vendor(self, body: Body) -> None:
        check_reasoning(body.messages, may_be_empty=True)


class FakeKimi(FakeCompatible):
    """As DeepSeek, and empty reasoning counts as missing."""

    def check_vendor(self, body: Body) -> None:
        check_reasoning(body.messages, may_be_empty=False)
