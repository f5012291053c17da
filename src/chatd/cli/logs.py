"""What the standard library's loggers print: one line per event, as text or as JSON."""

import json
import logging
import sys
import time
from datetime import UTC, datetime

from chatd.settings.tree import Log
from chatd.telemetry import LogEvent


class TextFormatter(logging.Formatter):
    """In UTC, and it says so: whoever lays the logs of two hosts side by side need not guess."""

    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if isinstance(record.msg, LogEvent):
            line["event"] = record.msg.event
            if record.msg.words is not None:
                line["message"] = record.msg.words
            line |= record.msg.fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def is_news(record: logging.LogRecord) -> bool:
    """uvicorn takes a socket that we refuse with an answer of our own for one without an answer,
    and calls that an error. Anybody without a token could fill the log with it."""
    return not record.getMessage().startswith("ASGI callable returned without completing handshake")


def configure(log: Log) -> None:
    """To standard error: standard output is for what a command was asked to say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log.format == "json" else TextFormatter())
    handler.addFilter(is_news)
    logging.basicConfig(level=log.level.upper(), handlers=[handler], force=True)
