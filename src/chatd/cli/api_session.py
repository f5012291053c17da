"""Runs a user's command against the API of a server, and reports its errors as exit codes."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final, NoReturn, TypeVar

import typer

from chatd.cli import process
from chatd.cli.output import print_notice
from chatd.client.errors import ApiError
from chatd.client.exchange import ServerAddress
from chatd.client.server import ServerApi, open_api
from chatd.domain.chat.row import ChatError
from chatd.domain.errors import ChatdError, InvalidInput
from chatd.settings.schema import SettingsError


class ExitCode(IntEnum):
    """Of the user's commands."""

    DONE = 0
    FAILURE = 1
    USAGE = 2
    SIGN_IN = 3
    MODEL_ERROR = 4
    LIMIT = 5
    NEEDS_ACTION = 6
    NOT_FITTING = 7
    TIME_OUT = 124
    INTERRUPTED = 130


_SERVER_KINDS: Final = frozenset({"internal", "crashed", "queue_held", "archived"})
"""Kinds of errors of a chat that no model caused."""

_SIGN_IN_CODES: Final = frozenset({"unauthorized", "missing_scope", "signed_out"})


def exit_code_of_error(error: ChatError | None) -> ExitCode:
    """Of a chat that stopped with this error."""
    if error is None or error.kind in _SERVER_KINDS:
        return ExitCode.FAILURE
    return ExitCode.LIMIT if error.kind == "usage_limit" else ExitCode.MODEL_ERROR


def exit_code_of_refusal(status: int, code: str) -> ExitCode:
    """Of a request that the server refused."""
    if status == 401 or code in _SIGN_IN_CODES:
        return ExitCode.SIGN_IN
    if code == "usage_limit_exceeded":
        return ExitCode.LIMIT
    return ExitCode.USAGE if status == 400 else ExitCode.FAILURE


T = TypeVar("T")

START_PATIENCE_S: Final = 4.0
"""Bridges a short restart; a wrong address is reported without a long wait."""
RESTART_PATIENCE_S: Final = 60.0
"""A server that answered once and is restarted answers again within this time."""
EXIT_BROKEN_PIPE: Final = 128 + signal.SIGPIPE


class UsageProblem(ChatdError):
    """The command line asks for something that cannot be done."""

    code = "usage"


def run_command(
    server: Callable[[], ServerAddress], work: Callable[[ServerApi], Awaitable[T]]
) -> T:
    """Find the server, connect, and do the work."""
    with report_errors():
        address = server()

        async def connected() -> T:
            async with open_api(address, patience_s=START_PATIENCE_S) as api:
                return await work(api)

        return process.run_to_completion(connected())


def patient(api: ServerApi) -> ServerApi:
    """For requests after the first one."""
    return ServerApi(api.server, api.http, patience_s=RESTART_PATIENCE_S)


@contextmanager
def report_errors() -> Generator[None]:
    """An expected error is one line on standard error; a closed pipe is none."""
    # A text with a lone surrogate is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        yield
    except ApiError as error:
        _fail(describe_refusal(error), exit_code_of_refusal(error.status, error.code))
    except (UsageProblem, SettingsError, InvalidInput) as error:
        _fail(error.message, ExitCode.USAGE)
    except ChatdError as error:
        _fail(error.message, ExitCode.FAILURE)
    except BrokenPipeError:
        # Python would report it once more when it flushes the output at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_BROKEN_PIPE) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def confirm(question: str, *, yes: bool) -> None:
    """Asks a person at a terminal; a program must say `--yes`. Raises UsageProblem."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageProblem("this cannot be undone: say --yes, there is no terminal to ask at")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageProblem("nothing was changed")


def describe_refusal(error: ApiError) -> str:
    """The server's words, with the fields that it names and what to do about a sign-in."""
    told = (f"{one.field}: {one.detail}" for one in error.validations)
    fields = "".join(f"\n  {text}" for text in told if text not in error.message)
    detail = f"\n  {error.detail}" if error.detail else ""
    hint = ""
    if error.is_signed_out and error.code not in ("invalid_login", "invalid_link"):
        hint = "\n  Sign in with chatd login, or give a token with --token-file or CHATD_TOKEN."
    return f"{error.message}{fields}{detail}{hint}"


def _fail(text: str, code: ExitCode) -> NoReturn:
    print_notice(f"chatd: {text}")
    raise typer.Exit(code) from None
