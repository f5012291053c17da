"""The work of `chatd projects`: the projects to which the user belongs."""

import mimetypes
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal
from uuid import UUID

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_request import MAX_PROJECTS, find_project
from chatd.cli.output import print_json, print_notice, print_table, print_text, short_time
from chatd.client.drafts import ChatChange
from chatd.client.resources import Project, ProjectMember
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId, ModelConfigId, UserId

MAX_MEMBERS: Final = 200
MAX_FILES: Final = 200
NONE: Final = "none"
"""The name for no project, no model and no template."""


async def list_projects(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_projects()
    if as_json:
        print_json(await listed.raw_items(MAX_PROJECTS))
        return
    now = datetime.now(UTC)
    rows = [
        (
            *(one.name, one.role, one.owner_username, str(one.chat_count)),
            *(str(one.file_count), str(one.member_count), short_time(one.updated_at, now)),
        )
        for one in await listed.items(MAX_PROJECTS)
    ]
    headings = ("NAME", "YOU", "OWNER", "CHATS", "FILES", "MEMBERS", "CHANGED")
    print_table(headings, rows)


async def show_project(api: ServerApi, name: str, *, as_json: bool) -> None:
    found = api.get_project((await find_project(api, name)).id)
    if as_json:
        print_json(await found.raw())
        return
    project = await found
    members = await api.list_project_members(project.id).items(MAX_MEMBERS)
    files = await api.list_project_files(project.id).items(MAX_FILES)
    model, template = await _names_of(api, project)
    lines = [
        f"{project.name}  ({project.id})",
        f"Chats:     {project.chat_count}",
        f"Model:     {model}",
        f"Template:  {template}",
        f"Members:   {', '.join(f'{one.username} ({one.role})' for one in members)}",
        f"Files:     {', '.join(one.name for one in files) or NONE}",
    ]
    print_text("\n".join([*lines, "", project.instructions or "(no instructions)"]))


async def create_project(
    api: ServerApi,
    name: str,
    *,
    instructions: str | None,
    model: str | None,
    template: str | None,
    as_json: bool,
) -> None:
    body: dict[str, object] = {"name": name, "instructions": instructions or ""}
    body |= await _choices(api, model, template)
    made = api.create_project(body)
    if as_json:
        print_json(await made.raw())
        return
    print_notice(f"created {(await made).name}")


async def change_project(
    api: ServerApi,
    name: str,
    *,
    new_name: str | None,
    instructions: str | None,
    model: str | None,
    template: str | None,
    as_json: bool,
) -> None:
    given = {"name": new_name, "instructions": instructions}
    body: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    body |= await _choices(api, model, template)
    if not body:
        raise UsageProblem("say what to change: --name, --instructions, --model or --template")
    changed = api.change_project((await find_project(api, name)).id, body)
    if as_json:
        print_json(await changed.raw())
        return
    print_notice(f"changed {(await changed).name}")


async def delete_project(api: ServerApi, name: str, *, as_json: bool) -> None:
    project = await find_project(api, name)
    await api.delete_project(project.id)
    _say(f"deleted {project.name}; its chats stay", {"deleted": str(project.id)}, as_json=as_json)


async def set_member(
    api: ServerApi, name: str, user: str, role: Literal["reader", "writer"], *, as_json: bool
) -> None:
    project = await find_project(api, name)
    found = await api.search_directory(user, limit=50)
    named = next((one for one in found.users if one.username.lower() == user.lower()), None)
    if named is None:
        raise UsageProblem(f"there is no active user {user!r}")
    made = api.set_project_member(project.id, UserId(named.id), role)
    if as_json:
        print_json(await made.raw())
        return
    print_notice(f"{(await made).username} is a {role} of {project.name}")


async def remove_member(api: ServerApi, name: str, user: str, *, as_json: bool) -> None:
    project = await find_project(api, name)
    member = await _find_member(api, project, user)
    await api.remove_project_member(project.id, member.id)
    text = f"{member.username} no longer belongs to {project.name}"
    _say(text, {"removed": member.username}, as_json=as_json)


async def add_files(api: ServerApi, name: str, paths: Sequence[Path], *, as_json: bool) -> None:
    project = await find_project(api, name)
    added: list[object] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
                stored = await api.upload_file(path.name, kind, file)
        except OSError as error:
            raise UsageProblem(f"cannot read {path}: {error.strerror or error}") from None
        raw = await api.add_project_file(project.id, stored.id, path.name).raw()
        added.append(raw)
        if not as_json:
            print_notice(f"added {path.name}")
    if as_json:
        print_json(added)


async def remove_file(api: ServerApi, name: str, file: str, *, as_json: bool) -> None:
    project = await find_project(api, name)
    known = await api.list_project_files(project.id).items(MAX_FILES)
    found = next((one for one in known if one.name == file), None)
    if found is None:
        there = ", ".join(one.name for one in known) or NONE
        raise UsageProblem(f"{project.name} has no file {file!r}; it has: {there}")
    await api.remove_project_file(project.id, found.id)
    _say(f"removed {file}", {"removed": file}, as_json=as_json)


async def move_chat(api: ServerApi, chat_id: ChatId, name: str, *, as_json: bool) -> None:
    """Into the project, or out of its project for `none`."""
    project = None if name == NONE else await find_project(api, name)
    change = ChatChange(project_id=None if project is None else project.id)
    moved = api.amend_chat(chat_id, change)
    if as_json:
        print_json(await moved.raw())
        return
    await moved
    print_notice("in no project" if project is None else f"in {project.name}")


def _say(text: str, found: object, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_notice(text)


async def _find_member(api: ServerApi, project: Project, user: str) -> ProjectMember:
    members = await api.list_project_members(project.id).items(MAX_MEMBERS)
    found = next((one for one in members if one.username.lower() == user.lower()), None)
    if found is None:
        there = ", ".join(one.username for one in members)
        raise UsageProblem(f"{user!r} does not belong to {project.name}; its members: {there}")
    return found


async def _choices(api: ServerApi, model: str | None, template: str | None) -> dict[str, object]:
    """The fields of a body for what is given. Raises UsageProblem."""
    chosen: dict[str, object] = {}
    if model is not None:
        chosen["model_config_id"] = None if model == NONE else await _model_id(api, model)
    if template is not None:
        chosen["template_id"] = None if template == NONE else await _template_id(api, template)
    return chosen


async def _model_id(api: ServerApi, name: str) -> ModelConfigId:
    known = await api.list_models().items(MAX_PROJECTS)
    found = next((one for one in known if one.name == name), None)
    if found is None:
        there = ", ".join(one.name for one in known)
        raise UsageProblem(f"there is no model {name!r}; there are: {there}")
    return found.id


async def _template_id(api: ServerApi, name: str) -> UUID:
    known = await api.list_templates().items(MAX_PROJECTS)
    found = next((one for one in known if one.name == name), None)
    if found is None or found.id is None:
        there = ", ".join(one.name for one in known)
        raise UsageProblem(f"there is no template {name!r}; there are: {there}")
    return found.id


async def _names_of(api: ServerApi, project: Project) -> tuple[str, str]:
    model, template = "the default of the server", "chosen by the model"
    if project.model_config_id is not None:
        known = await api.list_models().items(MAX_PROJECTS)
        named = (one.name for one in known if one.id == project.model_config_id)
        model = next(named, str(project.model_config_id))
    if project.template_id is not None:
        templates = await api.list_templates().items(MAX_PROJECTS)
        names = (one.name for one in templates if one.id == project.template_id)
        template = next(names, str(project.template_id))
    return model, template
