"""A git host over HTTPS: `git http-backend` behind a password, and a page that repeats requests."""

import asyncio
import subprocess
from base64 import b64encode
from pathlib import Path

import h11

GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.com")


class GitHost:
    """Serves the repositories below `root` to requests with this user and token."""

    def __init__(self, root: Path, username: str, token: str) -> None:
        self.refused = 0
        self._root = root
        encoded = b64encode(f"{username}:{token}".encode())
        self._wanted = b"Basic " + encoded

    def create(self, name: str) -> Path:
        """A repository with one commit, which takes pushes."""
        path, work = self._root / name, self._root / "work"
        for words in (
            ["git", "init", "-q", "--bare", "-b", "main", str(path)],
            ["git", "-C", str(path), "config", "http.receivepack", "true"],
            ["git", "clone", "-q", str(path), str(work)],
            [*GIT, "-C", str(work), "commit", "-q", "--allow-empty", "-m", "the first"],
            ["git", "-C", str(work), "push", "-q", "origin", "HEAD:main"],
        ):
            subprocess.run(words, check=True, capture_output=True)
        return path

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = h11.Connection(h11.SERVER)
        try:
            while True:
                request, body = await _read(wire, reader)
                for event in await self._reply(request, body):
                    writer.write(wire.send(event) or b"")
                await writer.drain()
                wire.start_next_cycle()
        except (h11.ProtocolError, OSError, EOFError):
            writer.close()

    async def _reply(self, request: h11.Request, body: bytes) -> list[h11.Event]:
        headers = dict(request.headers)
        if headers.get(b"authorization") != self._wanted:
            self.refused += 1
            return _response(401, [(b"WWW-Authenticate", b"Basic")], b"a password is needed")
        path, _, query = request.target.decode().partition("?")
        if path == "/echo":
            return _response(200, [], b"\n".join(b": ".join(each) for each in request.headers))
        env = {
            "GIT_PROJECT_ROOT": str(self._root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": request.method.decode(),
            "REMOTE_USER": "ada",
            "CONTENT_TYPE": headers.get(b"content-type", b"").decode(),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": headers.get(b"content-encoding", b"").decode(),
            "GIT_PROTOCOL": headers.get(b"git-protocol", b"").decode(),
            "PATH": "/usr/bin:/bin",
        }
        program = await asyncio.create_subprocess_exec(
            *("git", "-c", "safe.directory=*", "http-backend"),
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await program.communicate(body)
        head, _, content = output.partition(b"\r\n\r\n")
        found = [tuple(line.split(b": ", 1)) for line in head.split(b"\r\n")]
        status = next((int(value[:3]) for name, value in found if name == b"Status"), 200)
        return _response(status, [each for each in found if each[0] != b"Status"], content)


def _response(status: int, headers: list[tuple[bytes, ...]], content: bytes) -> list[h11.Event]:
    sized = [*headers, (b"Content-Length", str(len(content)).encode())]
    response = h11.Response(status_code=status, headers=[(name, value) for name, value in sized])
    return [response, h11.Data(data=content), h11.EndOfMessage()]


async def _read(wire: h11.Connection, reader: asyncio.StreamReader) -> tuple[h11.Request, bytes]:
    request: h11.Request | None = None
    body = b""
    while True:
        event = wire.next_event()
        match event:
            case h11.Request():
                request = event
            case h11.Data():
                body += event.data
            case h11.EndOfMessage():
                assert request is not None
                return request, body
            case h11.NEED_DATA:
                wire.receive_data(await reader.read(65_536))
            case _:
                raise EOFError
