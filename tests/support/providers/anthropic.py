"""A fake of Anthropic's Messages API: plays recorded streams, refuses what the real one refuses."""

from pathlib import Path

import msgspec

from tests.support.providers.anthropic_rules import RULES
from tests.support.providers.server import FakeServer, RecordedRequest, Reply, Step

STREAMS = Path(__file__).parents[2] / "data" / "streams" / "anthropic"
NAMES = sorted(path.stem for path in STREAMS.glob("*.sse"))
VERSIONS = ("2023-06-01", "2026-10-21")
KEY = "sk-ant-api03-not-a-real-key-0123456789"


def stream(name: str) -> bytes:
    return (STREAMS / f"{name}.sse").read_bytes()


def event(kind: str, **fields: object) -> bytes:
    """One event as the API frames it."""
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def refusal(status: int, kind: str, message: str, **headers: str) -> Reply:
    body = {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy",
    }
    return Reply(
        status=status,
        headers={"content-type": "application/json", **headers},
        steps=(msgspec.json.encode(body),),
    )


class FakeAnthropic(FakeServer):
    def play(self, name: str) -> None:
        self.script(stream(name))

    def script_text(self, *steps: Step) -> None:
        """An answer of one text block. Strings become pieces of it, other steps stay."""
        start = event(
            "message_start",
            message={"id": "msg_1", "model": "m", "usage": {"input_tokens": 3, "output_tokens": 1}},
        )
        begin = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        pieces = (
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": step})
            if isinstance(step, str)
            else step
            for step in steps
        )
        stop = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
        end = event("content_block_stop", index=0) + stop + event("message_stop")
        self.script(start + begin, *pieces, end)

    def refuse(self, request: RecordedRequest) -> Reply | None:
        if (request.method, request.path) != ("POST", "/v1/messages"):
            return refusal(404, "not_found_error", "Not Found")
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.headers.get("x-api-key", bearer) != KEY:
            return refusal(401, "authentication_error", "invalid x-api-key")
        if request.headers.get("anthropic-version") not in VERSIONS:
            return refusal(400, "invalid_request_error", "anthropic-version: header is required")
        return self.refuse_body(request.json, betas_of(request))

    def refuse_body(self, body: dict[str, object], betas: set[str]) -> Reply | None:
        for rule in RULES:
            if (message := rule(body, betas)) is not None:
                return refusal(400, "invalid_request_error", message)
        return None


def betas_of(request: RecordedRequest) -> set[str]:
    return set(filter(None, request.headers.get("anthropic-beta", "").split(",")))
