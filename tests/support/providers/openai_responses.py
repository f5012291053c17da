"""A fake of the Responses API, as strict as the real one."""

from pathlib import Path

import msgspec
from msgspec import Struct

from chatd.providers.sse import SseParser
from tests.support.providers.openai_responses_rules import Body, Item, check
from tests.support.providers.openai_schema import OpenAiRefusal
from tests.support.providers.server import FakeServer, RecordedRequest, Reply, Step

KEY = "sk-proj-TestTestTestTestTestTestTest"
STREAMS = Path(__file__).parents[2] / "data" / "streams" / "openai_responses"
NAMES = sorted(path.stem for path in STREAMS.glob("*.sse"))


def stream(name: str) -> bytes:
    return (STREAMS / f"{name}.sse").read_bytes()


def event(kind: str, **fields: object) -> bytes:
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def refusal(status: int, message: str, code: str | None = None) -> Reply:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return Reply(
        status=status,
        headers={"content-type": "application/json"},
        steps=(msgspec.json.encode({"error": error}),),
    )


def check_key(request: RecordedRequest) -> Reply | None:
    given = request.headers.get("authorization") or request.headers.get("api-key")
    if given is None:
        return refusal(401, "You didn't provide an API key.")
    if given.removeprefix("Bearer ") != KEY:
        return refusal(401, f"Incorrect API key provided: {given}.", "invalid_api_key")
    return None


class _Done(Struct):
    item: Item


class FakeResponses(FakeServer):
    """`accepted` are the requests that the real API would accept. It remembers which reasoning
    came before each item it has sent."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[Body] = []
        self._needs: dict[str, str] = {}

    def script(self, *steps: Step) -> None:
        super().script(*steps)
        sent = b"".join(step for step in steps if isinstance(step, bytes))
        last: str | None = None
        for name, data in SseParser().feed(sent):
            if name != b"response.output_item.done":
                continue
            item = msgspec.json.decode(data, type=_Done).item
            if item.type == "reasoning":
                last = item.id
            elif last is not None and item.id is not None:
                self._needs[item.id] = last

    def refuse(self, request: RecordedRequest) -> Reply | None:
        if request.method != "POST" or request.path != "/v1/responses":
            return refusal(404, f"Invalid URL ({request.method} {request.path})")
        if (wrong := check_key(request)) is not None:
            return wrong
        try:
            self.accepted.append(check(request.body, self._needs))
        except OpenAiRefusal as refused:
            body = msgspec.json.encode(refused.body)
            return Reply(status=400, headers={"content-type": "application/json"}, steps=(body,))
        return None
