"""A fake of Gemini's API, as strict as the real one."""

import re
from pathlib import Path

import msgspec

from tests.support.providers.gemini_request import GeminiRefusal, Request, check
from tests.support.providers.server import FakeServer, RecordedRequest, Reply

KEY = "AIzaSyTestTestTestTestTestTestTestTest0"
STREAMS = Path(__file__).parents[2] / "data" / "streams" / "gemini"
NAMES = sorted(path.stem for path in STREAMS.glob("*.sse"))

_PATH = re.compile(r"/v1beta/models/([^/:?]+):streamGenerateContent\?alt=sse")


def stream(name: str) -> bytes:
    """A recorded stream, with the line ends that Google sends."""
    return (STREAMS / f"{name}.sse").read_bytes().replace(b"\n", b"\r\n")


def event(chunk: object) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\r\n\r\n"


def error(code: int, status: str, message: str, *details: object) -> dict[str, object]:
    body: dict[str, object] = {"code": code, "message": message, "status": status}
    if details:
        body["details"] = list(details)
    return {"error": body}


class FakeGemini(FakeServer):
    """`accepted` are the requests that the real API would accept."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[Request] = []

    def refuse(self, request: RecordedRequest) -> Reply | None:
        match = _PATH.fullmatch(request.path)
        if request.method != "POST" or match is None:
            return _refusal(404, "NOT_FOUND", f"Requested entity was not found: {request.path}")
        key = request.headers.get("x-goog-api-key")
        if key is None:
            return _refusal(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers.")
        if key != KEY:
            return _refusal(
                400,
                "INVALID_ARGUMENT",
                f"API key not valid. Please pass a valid API key. ({key})",
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"},
            )
        try:
            self.accepted.append(check(match[1], request.body))
        except GeminiRefusal as refused:
            return _refusal(400, "INVALID_ARGUMENT", str(refused))
        return None


def _refusal(code: int, status: str, message: str, *details: object) -> Reply:
    body = msgspec.json.encode(error(code, status, message, *details))
    return Reply(status=code, headers={"content-type": "application/json"}, steps=(body,))
