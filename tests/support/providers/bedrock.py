"""A fake of Bedrock: AWS's address, signature and framing around the fake Anthropic API."""

import struct
import zlib
from base64 import b64encode
from datetime import datetime
from urllib.parse import unquote

import msgspec

from chatd.providers.anthropic.bedrock import SigningScope, signature_headers
from chatd.providers.provider_config import AwsCredentials, Secret
from tests.support.providers import anthropic
from tests.support.providers.anthropic import FakeAnthropic
from tests.support.providers.server import RecordedRequest, Reply, Step

REGION = "eu-central-1"
BEARER = "bedrock-api-key-0123456789"
CREDENTIALS = AwsCredentials(
    access_key_id="AKIDEXAMPLE",
    secret_access_key=Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
    session_token=Secret("AQoDYXdzEPT//////////wEXAMPLE"),
)


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """One message of an event stream."""
    lines = b"".join(
        bytes([len(name)])
        + name.encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in headers.items()
    )
    total = 12 + len(lines) + len(payload) + 4
    prelude = struct.pack(">II", total, len(lines))
    body = prelude + struct.pack(">I", zlib.crc32(prelude)) + lines + payload
    return body + struct.pack(">I", zlib.crc32(body))


def chunk(data: bytes) -> bytes:
    payload = {"bytes": b64encode(data).decode(), "p": "abcdefghijk"}
    headers = {
        ":event-type": "chunk",
        ":content-type": "application/json",
        ":message-type": "event",
    }
    return frame(headers, msgspec.json.encode(payload))


def exception(kind: str, message: str) -> bytes:
    headers = {":exception-type": kind, ":message-type": "exception"}
    return frame(headers, msgspec.json.encode({"message": message}))


def framed(events: bytes) -> bytes:
    """Server-sent events, as Bedrock sends them: without names, so each has a type."""
    lines = (line for line in events.splitlines() if line.startswith(b'data: {"type"'))
    return b"".join(chunk(line[6:]) for line in lines)


def stream(name: str) -> bytes:
    return framed(anthropic.stream(name))


def refusal(status: int, kind: str, message: str) -> Reply:
    return Reply(
        status=status,
        headers={"content-type": "application/json", "x-amzn-ErrorType": f"{kind}:http://aws/"},
        steps=(msgspec.json.encode({"message": message}),),
    )


class FakeBedrock(FakeAnthropic):
    content_type = "application/vnd.amazon.eventstream"

    def play(self, name: str) -> None:
        self.script(stream(name))

    def script_text(self, *steps: Step) -> None:
        super().script_text(*steps)
        made = self.scripted.pop()
        framed_steps = (framed(step) if isinstance(step, bytes) else step for step in made.steps)
        self.script(*framed_steps)

    def refuse(self, request: RecordedRequest) -> Reply | None:
        before, _, after = request.path.rpartition("/")
        if not before.startswith("/model/") or after != "invoke-with-response-stream":
            return refusal(404, "UnknownOperationException", "unknown operation")
        if not self._is_authentic(request):
            return refusal(403, "InvalidSignatureException", "the signature does not match")
        body = request.json
        if body.pop("anthropic_version", None) != "bedrock-2023-05-31":
            return refusal(400, "ValidationException", "anthropic_version: Field required")
        if {"model", "stream"} & set(body):
            return refusal(400, "ValidationException", "extraneous key is not permitted")
        betas = body.pop("anthropic_beta", [])
        model = unquote(before.removeprefix("/model/"))
        known = set(msgspec.convert(betas, list[str]))
        return self.refuse_body({**body, "model": model, "stream": True}, known)

    def _is_authentic(self, request: RecordedRequest) -> bool:
        said = request.headers.get("authorization", "")
        if said == f"Bearer {BEARER}":
            return True
        at = request.headers.get("x-amz-date")
        if at is None:
            return False
        expected = signature_headers(
            url=f"http://{request.headers['host']}{request.path}",
            headers={"content-type": request.headers["content-type"]},
            body=request.body,
            credentials=CREDENTIALS,
            scope=SigningScope(
                region=REGION, service="bedrock", at=datetime.strptime(at, "%Y%m%dT%H%M%S%z")
            ),
        )
        return said == expected["authorization"]
