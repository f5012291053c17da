"""The work of `chatd skills`: the user's own skills, as files with a heading of facts."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_request import read_bounded
from chatd.cli.output import print_json, print_notice, print_table, print_text, short_time
from chatd.client.resources import ListedSkill, Skill
from chatd.client.server import ServerApi

MAX_SKILLS: Final = 1000
MAX_FILE_BYTES: Final = 128 * 1024
_FIELD: Final = re.compile(r"(?P<name>[a-z_-]+):\s*(?P<value>.*)")


class SkillFile(Struct, frozen=True, kw_only=True):
    """As `SKILL.md` has it: `name` and `description` above, instructions below."""

    name: str
    description: str
    body: str


async def list_skills(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_skills()
    if as_json:
        print_json(await listed.raw_items(MAX_SKILLS))
        return
    now, skills = datetime.now(UTC), await listed.items(MAX_SKILLS)
    rows = [(one.name, short_time(one.updated_at, now), one.description) for one in skills]
    print_table(("NAME", "CHANGED", "FOR"), rows)


async def show_skill(api: ServerApi, name: str, *, as_json: bool) -> None:
    """In the form in which `put` takes it."""
    found = api.get_skill((await _find(api, name)).id)
    if as_json:
        print_json(await found.raw())
        return
    print_text(format_skill(await found), is_data=True)


async def put_skill(
    api: ServerApi, text: str, *, name: str | None, description: str | None, as_json: bool
) -> None:
    """Creates the skill, or replaces the one with its name."""
    skill = read_skill(text, name, description)
    known = await api.list_skills().items(MAX_SKILLS)
    found = next((one for one in known if one.name == skill.name), None)
    if found is None:
        put = api.create_skill(name=skill.name, description=skill.description, body=skill.body)
    else:
        put = api.change_skill(found.id, description=skill.description, body=skill.body)
    raw = await put.raw()
    if as_json:
        print_json(raw)
        return
    print_notice(f"{'created' if found is None else 'replaced'} {skill.name}")


async def remove_skill(api: ServerApi, name: str, *, as_json: bool) -> None:
    skill = await _find(api, name)
    await api.delete_skill(skill.id)
    if as_json:
        print_json({"deleted": skill.name})
        return
    print_notice(f"deleted {skill.name}")


def read_skill(text: str, name: str | None, description: str | None) -> SkillFile:
    """The options count before what the file says. Raises UsageProblem."""
    fields, body = split_skill(text)
    found_name = name or fields.get("name", "")
    found_text = description or fields.get("description", "")
    if not found_name or not found_text:
        missing = "a name (--name)" if not found_name else "a description (--description)"
        raise UsageProblem(
            f"the skill needs {missing}, or a heading in the file:\n"
            "---\nname: release-notes\ndescription: Writes release notes.\n---"
        )
    return SkillFile(name=found_name, description=found_text, body=body)


def split_skill(text: str) -> tuple[dict[str, str], str]:
    """The fields between two lines of `---`, and the text below them."""
    lines = text.replace("\r\n", "\n").split("\n")
    if not lines or lines[0].strip() != "---" or "---" not in lines[1:]:
        return {}, text.strip()
    end = lines.index("---", 1)
    matches = [_FIELD.fullmatch(line.strip()) for line in lines[1:end]]
    fields = {one["name"]: one["value"].strip("\"' ") for one in matches if one is not None}
    return fields, "\n".join(lines[end + 1 :]).strip()


def format_skill(skill: Skill) -> str:
    return f"---\nname: {skill.name}\ndescription: {skill.description}\n---\n\n{skill.body}"


def read_text_file(path: Path) -> str:
    """`-` is standard input. Raises UsageProblem."""
    try:
        with open(0, "rb", closefd=False) if str(path) == "-" else path.open("rb") as file:
            content = read_bounded(file, str(path), MAX_FILE_BYTES)
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {error.strerror or error}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageProblem(f"{path} is not UTF-8 text") from None


async def _find(api: ServerApi, name: str) -> ListedSkill:
    """Raises UsageProblem."""
    known = await api.list_skills().items(MAX_SKILLS)
    for skill in known:
        if skill.name == name:
            return skill
    there = ", ".join(skill.name for skill in known) or "none"
    raise UsageProblem(f"there is no skill {name!r}; there are: {there}")
