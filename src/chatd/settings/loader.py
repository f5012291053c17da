"""Builds `Settings` from the config file, the environment and flags, or reports what is wrong.

Precedence: file, then environment, then flags. Pure: `config_file` reads the file.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from chatd.domain.decode_errors import (
    describe_entry_error,
    describe_type,
    show_value,
    suggest_name,
)
from chatd.settings.keys import ENV_PREFIX, SettingKey, fields, is_section, setting_keys
from chatd.settings.schema import ADDRESSES_WITH_PASSWORDS, Settings, SettingsError

# Read directly, not through `Settings`.
RESERVED_VARIABLES: Final = frozenset(
    {
        "CHATD_CONFIG",
        "CHATD_ADMIN_TOKEN",
        "CHATD_SECRET",
        "CHATD_SECRET_KEY",
        "CHATD_SECRET_KEYS",
        # Of commands that talk to a server.
        "CHATD_PROFILE",
        "CHATD_TOKEN",
        "CHATD_TOKEN_FILE",
        "CHATD_URL",
    }
)
# Kubernetes sets these in every container if there is a service named "chatd".
SERVICE_LINK: Final = re.compile(
    r"CHATD(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)"
)


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    text: str


def load_settings(
    file: ConfigFile | None,
    env: Mapping[str, str],
    flags: Mapping[str, str | None],
    *,
    data_dir: Path | None,
) -> Settings:
    """Later sources win. `flags` has values by dotted key, None for a flag that was not given.
    `data_dir` is the default."""
    values: dict[str, object] = {} if data_dir is None else {"data_dir": data_dir}
    if file is not None:
        values |= _from_file(file, env, _refuse)
    values |= _from_environment(env, _refuse)
    values |= _from_flags(flags)
    if "data_dir" not in values:
        raise SettingsError("no data directory: HOME is not set; use --data-dir")
    return msgspec.convert(_nest(values, Settings, ()), Settings, dec_hook=_to_path)


def list_problems(file: ConfigFile | None, env: Mapping[str, str]) -> list[str]:
    """Everything that `load_settings` would refuse; that one raises only the first."""
    found: list[str] = []

    def keep(error: SettingsError) -> None:
        found.append(error.message)

    if file is not None:
        _from_file(file, env, keep)
    _from_environment(env, keep)
    return found


_OnProblem = Callable[[SettingsError], None]


def _refuse(error: SettingsError) -> None:
    raise error


def _from_file(
    file: ConfigFile, env: Mapping[str, str], on_problem: _OnProblem
) -> dict[str, object]:
    try:
        table = tomllib.loads(file.text)
    except tomllib.TOMLDecodeError as error:
        on_problem(SettingsError(f"{file.path}: not valid TOML: {error}"))
        return {}
    values: dict[str, object] = {}
    for name, value in _walk(file, table, Settings, (), on_problem):
        key = setting_keys()[name]
        try:
            converted = _convert(key, value, f"{file.path}: {name}", strict=True)
        except SettingsError as error:
            on_problem(error)
            continue
        if isinstance(converted, Path):
            # A path in a file is relative to that file, not to the working directory.
            converted = file.path.parent / _at_home(converted, env)
        values[name] = converted
    return values


def _walk(
    file: ConfigFile,
    table: Mapping[str, object],
    section: type[msgspec.Struct],
    at: tuple[str, ...],
    on_problem: _OnProblem,
) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        path = (*at, key)
        name = ".".join(path)
        field = fields(section).get(key)
        if field is None:
            hint = _suggest(name, setting_keys()) or _those_of(section, at)
            on_problem(SettingsError(f"{file.path}: unknown key {name}{hint}"))
        elif not is_section(field):
            yield name, value
        elif isinstance(value, dict):
            inner = msgspec.convert(value, dict[str, object])
            yield from _walk(file, inner, field, path, on_problem)
        else:
            # A text may be the database's address with its password.
            given = "a text" if isinstance(value, str) else show_value(value)
            text = f"{file.path}: {name}: expected a table, [{name}], got {given}"
            on_problem(SettingsError(text))


def _from_environment(env: Mapping[str, str], on_problem: _OnProblem) -> dict[str, object]:
    variables = {key.variable: key for key in setting_keys().values()}
    values: dict[str, object] = {}
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX) or variable in RESERVED_VARIABLES:
            continue
        key = variables.get(variable)
        if key is None:
            if SERVICE_LINK.fullmatch(variable):
                continue
            hint = _suggest(variable, variables) or "; unset it, or see docs/settings.md"
            on_problem(SettingsError(f"unknown environment variable {variable}{hint}"))
            continue
        # Compose files and shells write "not set" as an empty value.
        if not env[variable]:
            continue
        try:
            given = _listed(env[variable], variable) if key.is_list else env[variable]
            value = _convert(key, given, variable, strict=False)
        except SettingsError as error:
            on_problem(error)
            continue
        values[key.name] = _at_home(value, env) if isinstance(value, Path) else value
    return values


def _listed(text: str, variable: str) -> object:
    """Parse a list of tables, which a variable has as a JSON array."""
    try:
        return msgspec.json.decode(text, type=list[object])
    except msgspec.MsgspecError:
        raise SettingsError(f"{variable}: expected a list as JSON, in square brackets") from None


def _from_flags(flags: Mapping[str, str | None]) -> dict[str, object]:
    given = {name: value for name, value in flags.items() if value is not None}
    known = setting_keys()
    return {
        name: _convert(known[name], value, known[name].flag, strict=False)
        for name, value in given.items()
    }


def _convert(key: SettingKey, value: object, where: str, *, strict: bool) -> object:
    try:
        return msgspec.convert(value, key.type, strict=strict, dec_hook=_to_path)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where}{_refused(key, value, error)}") from None


def _refused(key: SettingKey, value: object, error: msgspec.ValidationError) -> str:
    if key.is_list:
        return describe_entry_error(key.type, value, error)
    # An address may contain a password.
    given = "" if key.name in ADDRESSES_WITH_PASSWORDS else f", got {show_value(value)}"
    return f": expected {describe_type(key.type)}{given}{_unquote(key, value)}"


def _unquote(key: SettingKey, value: object) -> str:
    """Advice for the most common mistake in a file: a number or a flag in quotes."""
    try:
        taken = msgspec.convert(value, key.type, strict=False, dec_hook=_to_path)
    except msgspec.ValidationError:
        return ""
    return "; leave out the quotes" if isinstance(value, str) and taken != value else ""


def _suggest(unknown: str, known: Mapping[str, object]) -> str:
    if hint := suggest_name(unknown, known):
        return hint
    last = unknown.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == last]
    return f"; did you mean {same[0]}?" if same else ""


def _those_of(section: type[msgspec.Struct], at: tuple[str, ...]) -> str:
    names = ", ".join(fields(section))
    return f"; [{'.'.join(at)}] has {names}" if at else f"; there are {names}"


def _nest(
    values: Mapping[str, object], section: type[msgspec.Struct], at: tuple[str, ...]
) -> dict[str, object]:
    tree: dict[str, object] = {}
    for name, field in fields(section).items():
        path = (*at, name)
        if is_section(field):
            tree[name] = _nest(values, field, path)
        elif ".".join(path) in values:
            tree[name] = values[".".join(path)]
    return tree


def _at_home(path: Path, env: Mapping[str, str]) -> Path:
    home = env.get("HOME")
    return Path(home, *path.parts[1:]) if home and path.parts[:1] == ("~",) else path


def _to_path(wanted: type, value: object) -> Path:
    if wanted is Path and isinstance(value, str | Path) and str(value):
        return Path(value)
    raise ValueError("Expected a path")
