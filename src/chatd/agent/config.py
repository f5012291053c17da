"""The agent's configuration, read from a descriptor or a private file.

Never from arguments or environment variables, which other processes can read.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from chatd.agent.errors import AgentError
from chatd.agent.server.http_messages import read_fields

MAX_CONFIG_BYTES = 256 * 1024
KEY_BYTES = 32


class AgentConfigError(Exception):
    """The agent cannot start with this configuration. The message contains no values of it."""


@dataclass(frozen=True)
class AgentConfig:
    """The agent listens on `socket` or, if that is empty, on `host` and `port`.

    Commands run in `directory` with the variables `env`. The agent's own files are in `run_dir`,
    except the journal of calls if `journal_fd` is the first of two descriptors for it.
    """

    agent_id: str
    dial_key: bytes = field(repr=False)
    run_dir: str
    home: str
    directory: str
    env: dict[str, str] = field(repr=False)
    journal_fd: int = 0
    socket: str = ""
    host: str = ""
    port: int = 0


def load_config(argv: Sequence[str]) -> AgentConfig:
    parser = argparse.ArgumentParser(prog="chatd-agent", description="chatd's workspace agent")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", help="file with mode 0600; deleted after it is read")
    source.add_argument("--config-fd", type=int, help="descriptor; read to its end and closed")
    options = parser.parse_args(argv)
    path: str | None = options.config
    fd: int | None = options.config_fd
    try:
        raw = _read_fd(fd) if fd is not None else _read_and_delete(path or "")
    except OSError as error:
        raise AgentConfigError(f"cannot read the configuration: {error.strerror}") from None
    return parse_config(raw)


def _read_fd(fd: int) -> bytes:
    with open(fd, "rb") as source:
        return source.read(MAX_CONFIG_BYTES + 1)


def _read_and_delete(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_mode & 0o077:
        os.close(fd)
        raise AgentConfigError("the configuration must be a file that only its owner can read")
    raw = _read_fd(fd)
    os.unlink(path)
    return raw


def parse_config(raw: bytes) -> AgentConfig:
    if len(raw) > MAX_CONFIG_BYTES:
        raise AgentConfigError(f"the configuration is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        return _build(json.loads(raw))
    except (ValueError, RecursionError):
        raise AgentConfigError("the configuration is not JSON, or dial_key is not hex") from None
    except AgentError as error:
        raise AgentConfigError(f"the configuration is invalid: {error.message}") from None


def _build(value: object) -> AgentConfig:
    fields = read_fields(value, "the configuration")
    home = fields.text("home")
    config = AgentConfig(
        agent_id=fields.text("agent_id"),
        dial_key=bytes.fromhex(fields.text("dial_key")),
        run_dir=fields.text("run_dir"),
        home=home,
        directory=os.path.join(home, fields.text("directory", "")).rstrip("/") or "/",
        env=fields.text_map("env"),
        journal_fd=fields.count("journal_fd"),
        socket=fields.text("socket", ""),
        host=fields.text("host", ""),
        port=fields.count("port"),
    )
    fields.reject_unknown()
    if len(config.dial_key) != KEY_BYTES:
        raise AgentError(400, f"dial_key must have {KEY_BYTES} bytes")
    if bool(config.socket) == bool(config.host):
        raise AgentError(400, "exactly one of socket and host is required")
    for path in (config.run_dir, config.home, config.socket or "/"):
        if not os.path.isabs(path):
            raise AgentError(400, "run_dir, home and socket must be absolute paths")
    return config
