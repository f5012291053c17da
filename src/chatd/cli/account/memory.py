"""The work of `chatd memory`: notes that the user keeps, and those that models have proposed."""

from collections.abc import Sequence
from typing import Final

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_request import find_project, read_id
from chatd.cli.output import print_json, print_notice, print_table
from chatd.client.calls import Call
from chatd.client.resources import Note
from chatd.client.server import ServerApi
from chatd.domain.ids import ProjectId
from chatd.terminal.answers.exact_text import exact_line

MAX_LISTED: Final = 200


async def list_notes(api: ServerApi, *, proposed: bool, project: str | None, as_json: bool) -> None:
    """What cannot be seen of a text is shown as an escape."""
    project_id = await _project_id(api, project)
    listed = api.list_notes(state="proposed" if proposed else "kept", project_id=project_id)
    if as_json:
        print_json(await listed.raw_items(MAX_LISTED))
        return
    rows = [
        (str(number), "" if proposed else ("on" if one.enabled else "off"), exact_line(one.text))
        for number, one in enumerate(await listed.items(MAX_LISTED), 1)
    ]
    print_table(("NO", "", "NOTE"), rows)
    settings = await api.get_my_settings()
    if not settings.memory_allowed or settings.memory == "off":
        print_notice("models are told none of them: memory is off")


async def add_note(api: ServerApi, text: str, *, project: str | None, as_json: bool) -> None:
    made = api.create_note(text, project_id=await _project_id(api, project))
    await _print(made, "kept", as_json=as_json)


async def edit_note(
    api: ServerApi,
    name: str,
    *,
    text: str | None,
    place: int | None,
    project: str | None,
    as_json: bool,
) -> None:
    if text is None and place is None:
        raise UsageProblem("say what to change: the new text, or --place")
    given = {"text": text, "place": place}
    changes = {key: value for key, value in given.items() if value is not None}
    note = await _find(api, name, await _notes(api, project))
    await _print(api.change_note(note.id, changes), "changed", as_json=as_json)


async def switch(
    api: ServerApi, name: str, *, enabled: bool, project: str | None, as_json: bool
) -> None:
    note = await _find(api, name, await _notes(api, project))
    word = "on" if enabled else "off"
    await _print(api.change_note(note.id, {"enabled": enabled}), word, as_json=as_json)


async def remove_note(api: ServerApi, name: str, *, project: str | None, as_json: bool) -> None:
    note = await _find(api, name, await _notes(api, project))
    await api.delete_note(note.id)
    if as_json:
        print_json({"deleted": str(note.id)})
        return
    print_notice(f"deleted: {exact_line(note.text)}")


async def accept_note(
    api: ServerApi, name: str, *, text: str | None, project: str | None, as_json: bool
) -> None:
    project_id = await _project_id(api, project)
    note = await _find(api, name, await _proposed(api))
    kept = api.accept_note(note.id, text=text, project_id=project_id)
    await _print(kept, "kept", as_json=as_json)


async def dismiss_note(api: ServerApi, name: str, *, as_json: bool) -> None:
    note = await _find(api, name, await _proposed(api))
    await _print(api.dismiss_note(note.id), "dismissed", as_json=as_json)


async def choose(api: ServerApi, choice: str, *, as_json: bool) -> None:
    chosen = api.change_my_settings({"memory": choice})
    if as_json:
        print_json({"memory": (await chosen).memory})
        return
    print_notice(f"memory: {(await chosen).memory}")


async def _print(call: Call[Note], word: str, *, as_json: bool) -> None:
    if as_json:
        print_json(await call.raw())
        return
    print_notice(f"{word}: {exact_line((await call).text)}")


async def _project_id(api: ServerApi, name: str | None) -> ProjectId | None:
    return None if name is None else (await find_project(api, name)).id


async def _notes(api: ServerApi, project: str | None) -> Sequence[Note]:
    project_id = await _project_id(api, project)
    return await api.list_notes(project_id=project_id).items(MAX_LISTED)


async def _proposed(api: ServerApi) -> Sequence[Note]:
    return await api.list_notes(state="proposed").items(MAX_LISTED)


async def _find(api: ServerApi, name: str, known: Sequence[Note]) -> Note:
    """By its number, or by its id wherever it is. Raises UsageProblem."""
    note_id = read_id(name)
    if note_id is not None:
        return await api.get_note(note_id)
    if name.isascii() and name.isdecimal() and 1 <= int(name) <= len(known):
        return known[int(name) - 1]
    there = f"1 to {len(known)}" if known else "none"
    raise UsageProblem(f"there is no note {name!r}; there are: {there}")
