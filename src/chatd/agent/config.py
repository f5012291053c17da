"""What the agent is told when it is started, and how it is told: by a descriptor or a file that
only it can read, never by its arguments or environment, which others can see."""

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


class ConfigError(Exception):
    """The agent cannot start like this. The message names no values."""


@dataclass(frozen=True)
class AgentConfig:
    """Listens on `socket`, or on `host` and `port` if that is empty. `directory` is where commands
    run, `run_dir` what the agent keeps for itself, `env` what commands see beside the basics."""

    agent_id: str
    dial_key: bytes = field(repr=False)
    run_dir: str
    home: str
    directory: str
    env: dict[str, str] = field(repr=False)
    socket: str = ""
    host: str = ""
    port: int = 0


def load_config(argv: Sequence[str]) -> AgentConfig:
    parser = argparse.ArgumentParser(prog="chatd-agent", description="chatd's workspace agent")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", help="a file with mode 0600; deleted when read")
    source.add_argument("--config-fd", type=int, help="a descriptor; read to its end and closed")
    chosen = parser.parse_args(argv)
    path: str | None = chosen.config
    fd: int | None = chosen.config_fd
    try:
        raw = _from_fd(fd) if fd is not None else _from_file(path or "")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration: {error.strerror}") from None
    return parse_config(raw)


def _from_fd(fd: int) -> bytes:
    with open(fd, "rb") as source:
        return source.read(MAX_CONFIG_BYTES + 1)


def _from_file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_mode & 0o077:
        os.close(fd)
        raise ConfigError("the configuration must be a file that only its owner can read")
    raw = _from_fd(fd)
    os.unlink(path)
    return raw


def parse_config(raw: bytes) -> AgentConfig:
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError("the configuration is too large")
    try:
        return _config(json.loads(raw))
    except (ValueError, RecursionError):
        raise ConfigError("the configuration is not JSON, or its key not hex") from None
    except AgentError as error:
        raise ConfigError(f"the configuration is wrong: {error.message}") from None


def _config(value: object) -> AgentConfig:
    fields = read_fields(value, "it")
    home = fields.text("home")
    config = AgentConfig(
        agent_id=fields.text("agent_id"),
        dial_key=bytes.fromhex(fields.text("dial_key")),
        run_dir=fields.text("run_dir"),
        home=home,
        directory=os.path.join(home, fields.text("directory", "")).rstrip("/") or "/",
        env=fields.text_map("env"),
        socket=fields.text("socket", ""),
        host=fields.text("host", ""),
        port=fields.count("port"),
    )
    fields.reject_unknown()
    if len(config.dial_key) != KEY_BYTES:
        raise AgentError(400, f"dial_key must have {KEY_BYTES} bytes")
    if bool(config.socket) == bool(config.host):
        raise AgentError(400, "one of socket and host is required, and only one")
    for path in (config.run_dir, config.home, config.socket or "/"):
        if not os.path.isabs(path):
            raise AgentError(400, "run_dir, home and socket must be absolute paths")
    return config
