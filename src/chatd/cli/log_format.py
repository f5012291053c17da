"""The log format: one line per event, as text or as JSON."""

import json
import logging
import sys
import time
from datetime import UTC, datetime

from chatd.domain.text import utc_text
from chatd.log_event import LogEvent
from chatd.settings.schema import LogSettings


class TextFormatter(logging.Formatter):
    """Times are in UTC, marked with Z, so that logs of several hosts can be compared."""

    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": utc_text(datetime.fromtimestamp(record.created, UTC), timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if isinstance(record.msg, LogEvent):
            line["event"] = record.msg.event
            if record.msg.explanation is not None:
                line["message"] = record.msg.explanation
            line |= record.msg.fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def is_worth_logging(record: logging.LogRecord) -> bool:
    """uvicorn logs an error for a WebSocket that chatd refuses with a reply of its own. Clients
    without a token could fill the log with it."""
    return not record.getMessage().startswith("ASGI callable returned without completing handshake")


def configure_logging(log: LogSettings) -> None:
    """Log to standard error: standard output is for the output of commands."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log.format == "json" else TextFormatter())
    handler.addFilter(is_worth_logging)
    logging.basicConfig(level=log.level.upper(), handlers=[handler], force=True)
