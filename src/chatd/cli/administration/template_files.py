"""The work of `chatd admin templates`: templates as TOML files, in the shape of `[[templates]]`."""

import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import msgspec

from chatd.cli.api_session import UsageProblem
from chatd.cli.output import print_json, print_notice, print_table, print_text
from chatd.client.resources import ConfiguredTemplate, ListedTemplate, TemplateVersionLine
from chatd.client.server import ServerApi
from chatd.domain.workspace.template_definition import TemplateDefinition

MAX_LISTED_TEMPLATES: Final = 5000
MAX_LISTED_VERSIONS: Final = 2000
MAX_TEMPLATE_FILE_BYTES: Final = 1024 * 1024
_HEADINGS: Final = ("NAME", "BACKEND", "POOL", "VERSION", "WORKSPACES", "HAS", "ORIGIN", "")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")

Table = dict[str, object]


async def list_templates(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_template_configs()
    if as_json:
        print_json(await listed.raw_items(MAX_LISTED_TEMPLATES))
        return
    found = await listed.items(MAX_LISTED_TEMPLATES)
    print_table(_HEADINGS, [_row(one) for one in found])
    for one in found:
        _tell_missing(one)


def _row(one: ListedTemplate) -> tuple[str, ...]:
    return (
        one.name,
        one.backend,
        one.pool,
        str(one.version_number),
        str(one.workspace_count),
        " ".join(_parts(one)),
        {"user": "here", "settings": "chatd.toml", "builtin": "built in"}.get(
            one.origin, one.origin
        ),
        "no longer in chatd.toml" if one.deprecated else one.description,
    )


def _parts(one: ListedTemplate) -> list[str]:
    return [*(["desktop"] if one.desktop else []), *(["browser"] if one.browser else [])]


def _tell_missing(one: ListedTemplate) -> None:
    if one.missing_packages and (parts := _parts(one)):
        packages = " ".join(one.missing_packages)
        have = f"{one.name} has a {' and a '.join(parts)}"
        print_notice(f"{have}, but the server lacks what they need: apt install {packages}")


async def show_template(api: ServerApi, name: str, *, as_json: bool) -> None:
    asked = api.get_template_config((await _find(api, name)).id)
    if as_json:
        print_json(await asked.raw())
        return
    print_text(template_toml(_definition(await asked)), is_data=True)


async def create_templates(api: ServerApi, file: Path) -> None:
    for table in read_templates(file):
        made = await api.create_template(table)
        print_text(made.name)


async def edit_templates(
    api: ServerApi,
    name: str | None,
    file: Path | None,
    parts: Mapping[str, bool],
    *,
    activate: bool,
) -> None:
    """Without a file the template stays as it is but for `parts`: desktop and browser."""
    if file is None:
        if name is None or not parts:
            raise UsageProblem("name a file, or a template and what changes, such as --desktop")
        kept = _definition(await api.get_template_config((await _find(api, name)).id))
        tables = [kept]
    else:
        tables = read_templates(file)
    for table in tables if parts else ():
        table["spec"] = {**cast("Table", table.get("spec") or {}), **parts}
    if name is not None and len(tables) > 1:
        raise UsageProblem(f"{file} has {len(tables)} templates: leave the name out to change all")
    for table in tables:
        found = await _find(api, name or str(table.get("name")))
        changed = await api.replace_template(found.id, table, activate=activate)
        print_notice(_change_text(found, changed))
        _tell_missing(changed)


def _change_text(before: ListedTemplate, after: ConfiguredTemplate) -> str:
    if after.version_count == before.version_count:
        return f"{after.name}: changed; version {after.version_number} stays active"
    if after.version_number == after.version_count:
        return f"{after.name}: version {after.version_number} is active"
    return (
        f"{after.name}: version {after.version_count} is stored; version {after.version_number}"
        " stays active"
    )


async def duplicate_template(api: ServerApi, name: str, new_name: str) -> None:
    made = await api.duplicate_template((await _find(api, name)).id, new_name)
    print_text(made.name)


async def list_versions(api: ServerApi, name: str, *, as_json: bool) -> None:
    listed = api.list_template_versions((await _find(api, name)).id)
    if as_json:
        print_json(await listed.raw_items(MAX_LISTED_VERSIONS))
        return
    rows = [
        (
            str(one.number),
            f"{one.created_at:%Y-%m-%d %H:%M} UTC",
            str(one.workspace_count),
            "active" if one.is_active else "",
        )
        for one in await listed.items(MAX_LISTED_VERSIONS)
    ]
    print_table(("VERSION", "MADE", "WORKSPACES", ""), rows)


async def activate_version(api: ServerApi, name: str, number: int) -> None:
    found = await _find(api, name)
    versions = await api.list_template_versions(found.id).items(MAX_LISTED_VERSIONS)
    wanted = next((one for one in versions if one.number == number), None)
    if wanted is None:
        raise UsageProblem(f"{found.name} has no version {number}; {_range_text(versions)}")
    changed = await api.activate_template_version(found.id, wanted.id)
    print_notice(f"{changed.name}: version {changed.version_number} is active")


def _range_text(versions: Sequence[TemplateVersionLine]) -> str:
    return f"there are 1 to {max((one.number for one in versions), default=0)}"


async def delete_template(api: ServerApi, name: str) -> None:
    found = await _find(api, name)
    await api.delete_template(found.id)
    print_notice(f"deleted {found.name}; its workspaces go on")


async def _find(api: ServerApi, name: str) -> ListedTemplate:
    found = await api.list_template_configs().items(MAX_LISTED_TEMPLATES)
    named = next((one for one in found if one.name.casefold() == name.casefold()), None)
    if named is None:
        known = ", ".join(one.name for one in found)
        raise UsageProblem(f"there is no template {name}; there are {known}")
    return named


# Files


def read_templates(file: Path) -> list[Table]:
    """The `[[templates]]` tables of a file, `-` for standard input. Raises UsageProblem."""
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as stream:
            content = stream.read(MAX_TEMPLATE_FILE_BYTES + 1)
    except OSError as error:
        raise UsageProblem(f"{file} cannot be read: {error.strerror}") from None
    if len(content) > MAX_TEMPLATE_FILE_BYTES:
        raise UsageProblem(f"{file} has more than {MAX_TEMPLATE_FILE_BYTES} bytes")
    try:
        parsed = tomllib.loads(content.decode())
        tables = msgspec.convert(parsed.get("templates"), list[Table])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{file} is not TOML: {error}") from None
    except msgspec.ValidationError:
        tables = []
    if not tables:
        raise UsageProblem(f"{file} has no [[templates]] table")
    return tables


def _definition(template: ConfiguredTemplate) -> Table:
    """The template in the fields of its file, without those that have their default."""
    given = {name: getattr(template, name) for name in TemplateDefinition.__struct_fields__}
    tables = msgspec.json.encode((given, TemplateDefinition(name="")))
    found, defaults = msgspec.json.decode(tables, type=tuple[Table, Table])
    return _without_defaults(found, defaults)


def _without_defaults(given: Table, defaults: Mapping[str, object]) -> Table:
    """The backend is always there: it says what the file is for."""
    kept: Table = {}
    for name, value in given.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict) and name in ("spec", "limits"):
            inner = _without_defaults(cast("Table", value), cast("Table", default))
            if inner:
                kept[name] = inner
        elif name == "backend" or (value != default and value is not None):
            kept[name] = value
    return kept


def template_toml(definition: Mapping[str, object]) -> str:
    """A `[[templates]]` table that `read_templates` reads again."""
    top = {name: value for name, value in definition.items() if name not in ("spec", "parameters")}
    spec = cast("Table", definition.get("spec") or {})
    lines = ["[[templates]]", *_lines(top)]
    for name, table in (("spec", spec), ("spec.limits", cast("Table", spec.get("limits") or {}))):
        shown = {key: value for key, value in table.items() if key != "limits"}
        if shown:
            lines += ["", f"[templates.{name}]", *_lines(shown)]
    for parameter in cast("Sequence[Table]", definition.get("parameters") or ()):
        lines += ["", "[[templates.parameters]]", *_lines(parameter)]
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in table.items() if value is not None]


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _value(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case dict():
            inner = ", ".join(_lines(cast("Table", value)))
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            return f"[{', '.join(map(_value, cast('Sequence[object]', value)))}]"
        case str() if "\n" in value and "\r" not in value:
            return '"""\n' + "\n".join(_text(line)[1:-1] for line in value.split("\n")) + '"""'
        case _:
            return _text(str(value))


def _text(text: str) -> str:
    """JSON's escapes are TOML's, except that TOML also escapes DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
