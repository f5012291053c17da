"""The work of `chatd config check`: everything that is wrong with the settings, without a start."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from chatd.app.process import check_settings
from chatd.cli.output import print_json, print_text
from chatd.cli.process import read_settings
from chatd.clock import SystemClock
from chatd.domain.errors import ChatdError
from chatd.services.models.configuration import build_registry, settings_gaps
from chatd.services.operation.secret_keys import key_source
from chatd.settings.config_file import read_config
from chatd.settings.loader import ConfigFile, list_problems
from chatd.settings.schema import Settings


class SettingsReport(Struct, frozen=True, kw_only=True):
    """`file` is the settings file that counts; `problems` keep a server from starting, `gaps` only
    make a provider unusable."""

    file: str | None
    problems: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


def check_command(flags: dict[str, str | None], config: Path | None, *, as_json: bool) -> int:
    """Returns the exit code."""
    report, _ = examine_settings(flags, config)
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 2 if report.problems else 0


def examine_settings(
    flags: dict[str, str | None], config: Path | None
) -> tuple[SettingsReport, Settings | None]:
    """The settings are None if they cannot be read."""
    file: ConfigFile | None = None
    try:
        file = read_config(config, os.environ, Path.cwd())
        found = list_problems(file, os.environ)
        settings = None if found else read_settings(flags, config)
    except ChatdError as error:
        named = None if file is None else str(file.path)
        return SettingsReport(file=named, problems=(error.message,)), None
    named = None if file is None else str(file.path)
    if settings is None:
        return SettingsReport(file=named, problems=tuple(found)), None
    problems = (*_refusals(settings, os.environ), *_unreadable_files(settings))
    gaps = tuple(settings_gaps(settings, os.environ)) if not problems else ()
    return SettingsReport(file=named, problems=problems, gaps=gaps), settings


def _refusals(settings: Settings, env: Mapping[str, str]) -> Iterator[str]:
    """What each part of the server would refuse at its start."""
    for check in (
        lambda: check_settings(settings, env),
        lambda: key_source(settings.data_dir, env),
        lambda: build_registry(settings, env, SystemClock()),
    ):
        try:
            check()
        except ChatdError as error:
            yield error.message


def _unreadable_files(settings: Settings) -> Iterator[str]:
    for entry in settings.providers:
        for field in ("ca_file", "client_cert", "client_key"):
            path = getattr(entry, field)
            if path is not None and (reason := _why_unreadable(Path(path))):
                yield f"providers {entry.name}: {field}: {path}: {reason}"
    for root in settings.workspaces.roots:
        if not root.is_dir():
            yield f"workspaces.roots: {root}: there is no such directory"


def _why_unreadable(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _print(report: SettingsReport) -> None:
    print_text(f"settings file: {report.file or 'none, only the environment and flags count'}")
    for problem in report.problems:
        print_text(f"wrong: {problem}")
    for gap in report.gaps:
        print_text(f"incomplete: {gap}")
    if not report.problems:
        print_text("a server would start with these settings")
