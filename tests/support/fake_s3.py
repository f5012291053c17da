"""A server that behaves as S3 does for objects: it verifies every signature with its own code, and
stores what it is sent."""

import hashlib
import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from aiohttp import web

from chatd.store.file_stores import S3Config, S3Credentials

CREDENTIALS = S3Credentials(
    region="eu-central-1", access_key_id="AKIDEXAMPLE", secret_access_key="a/secret+key"
)
BUCKET = "files"
MAX_SKEW = timedelta(minutes=15)


class FakeS3:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, int]] = []
        """Method, path and size of each body."""
        self.failures: list[int] = []
        """Statuses of the next replies."""
        self.port = 0

    def config(self, **changes: str) -> S3Config:
        return S3Config(
            endpoint=f"http://127.0.0.1:{self.port}",
            bucket=BUCKET,
            credentials=CREDENTIALS,
            prefix=changes.get("prefix", "a b/"),
        )

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append((request.method, request.raw_path, len(body)))
        if (reason := refuse_signature(request, body)) is not None:
            return web.Response(status=403, text=f"<Error><Code>{reason}</Code></Error>")
        if self.failures:
            return web.Response(status=self.failures.pop(0), text="<Error/>")
        bucket, _, key = request.path.lstrip("/").partition("/")
        if bucket != BUCKET:
            return web.Response(status=404, text="<Error><Code>NoSuchBucket</Code></Error>")
        return self._act(request, key, body)

    def _act(self, request: web.Request, key: str, body: bytes) -> web.Response:
        match request.method:
            case "PUT":
                self.objects[key] = body
                return web.Response()
            case "DELETE":
                self.objects.pop(key, None)
                return web.Response(status=204)
            case _:
                if key not in self.objects:
                    return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
                first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
                return web.Response(status=206, body=self.objects[key][int(first) : int(last) + 1])


def refuse_signature(request: web.Request, body: bytes) -> str | None:
    """Why S3 would refuse the request."""
    scheme, _, rest = request.headers["authorization"].partition(" ")
    fields = dict(field.strip().split("=", 1) for field in rest.split(","))
    at = datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if abs(datetime.now(UTC) - at) > MAX_SKEW:
        return "RequestTimeTooSkewed"
    if request.headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
        return "XAmzContentSHA256Mismatch"
    names = fields["SignedHeaders"].split(";")
    if scheme != "AWS4-HMAC-SHA256" or not {"host", "x-amz-date"} <= set(names):
        return "AuthorizationHeaderMalformed"
    key_id, day, region, service, _ = fields["Credential"].split("/")
    if key_id != CREDENTIALS.access_key_id:
        return "InvalidAccessKeyId"
    canonical = [request.method, request.raw_path, ""]
    canonical += [f"{name}:{request.headers[name]}" for name in names]
    canonical += ["", ";".join(names), request.headers["x-amz-content-sha256"]]
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join((scheme, request.headers["x-amz-date"], scope, digest))
    key = f"AWS4{CREDENTIALS.secret_access_key}".encode()
    for part in (day, CREDENTIALS.region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return None if fields["Signature"] == expected else "SignatureDoesNotMatch"


@asynccontextmanager
async def running_s3() -> AsyncGenerator[FakeS3]:
    fake = FakeS3()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", fake.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.port = runner.addresses[0][1]
    try:
        yield fake
    finally:
        await runner.cleanup()
