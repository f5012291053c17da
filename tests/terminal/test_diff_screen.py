"""The screen of changes: in a real workspace, without one, and on diffs that are hard to show."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from textual.app import App, ComposeResult

from chatd.client.resources import ChatChanges, RepositoryChange, VersionGroup
from chatd.domain.ids import ChatId
from chatd.settings.schema import Settings, WorkspaceSettings
from chatd.terminal.composer.command_runner import (
    MAX_UNDONE_FILES,
    NotDone,
    undo_text,
    undoable,
)
from chatd.terminal.screens.changes_screen import (
    MAX_CHANGED_FILES,
    MAX_FILE_LINES,
    MAX_LINE_CHARS,
    DiffBody,
    next_scope,
    read_changes,
    read_scope,
    rows_of,
)
from tests.support.terminal import (
    SMALL,
    TerminalServer,
    run_terminal,
    screen_text,
    serve_terminal,
    until,
    until_shown,
)
from tests.support.terminal_chats import until_status


def _diff(path: str, lines: int = 1, hunks: int = 1) -> str:
    text = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    for at in range(hunks):
        text += f"@@ -{at * 100 + 1},0 +{at * 100 + 1},{lines} @@\n" + "+new\n" * lines
    return text


def _changes(*diffs: str, omitted: str = "") -> ChatChanges:
    changed = RepositoryChange(repo_root="/r", unified_diff="".join(diffs), omitted=omitted)
    return ChatChanges(scope="chat", repositories=(changed,))


def _with_workspaces(settings: Settings) -> Settings:
    """And with a demo model that does not wait between words."""
    models = tuple(
        replace(one, options={"tokens_per_second": 10_000}) if one.name == "demo" else one
        for one in settings.models
    )
    return replace(settings, models=models, workspaces=WorkspaceSettings(enabled=True))


async def test_the_changes_of_a_turn_the_chat_and_the_working_tree_are_shown(
    dsn: str, tmp_path: Path
) -> None:
    """Takes some seconds: the demo model works in a real workspace."""
    async with serve_terminal(dsn, tmp_path, _with_workspaces) as server:
        chat_id = await server.create_chat("fix the failing test")
        await until_status(server, chat_id, "waiting")
        async with run_terminal(server, chat_id, size=SMALL) as pilot:
            await until_shown(pilot, "Write a message")
            await pilot.press(*"/diff", "enter")
            shown = await until_shown(pilot, "basket.py")
            assert "+1 -1" in shown
            assert "-     return amount - discount_percent" in shown
            assert "+     return amount * (100 - discount_percent) / 100" in shown
            await pilot.press("n", "p", "j", "tab")
            await until_shown(pilot, "basket.py")
            await pilot.press("escape")
            await until_shown(pilot, "Write a message")
            await pilot.press(*"/undo", "enter")
            await until_shown(pilot, "restore basket.py")
            await pilot.press("1", *"/undo", "enter")
            await until_shown(pilot, "restore basket.py")
            assert await changed_files(server, chat_id) > 0
            await pilot.press("2")
            await until_shown(pilot, "as before the turn.")
            assert await changed_files(server, chat_id) == 0
            await pilot.press(*"/undo", "enter")
            await until_shown(pilot, "The last turn has changed no")
            await pilot.press(*"!echo $((6 * 7)) @apples")
            await until_shown(pilot, "Enter runs it in the workspace")
            await pilot.press("enter")
            shown = await until_shown(pilot, "42 @apples")
            assert "! echo $((6 * 7)) @apples" in shown
            await until_status(server, chat_id, "waiting")
            await pilot.press(*"/regenerate", "enter")
            shown = await until_shown(pilot, "Run this command again in the workspace?")
            assert "echo $((6 * 7)) @apples" in shown
            await pilot.press("1")
            await until(pilot, lambda: "Run this command again" not in screen_text(pilot))
            assert await versions_of(server, chat_id) == 0
            await pilot.press(*"/regenerate", "enter")
            await until_shown(pilot, "Run this command again in the workspace?")
            await pilot.press("2")
            await until_shown(pilot, "Running again.")
            await until_status(server, chat_id, "waiting")
            assert await versions_of(server, chat_id) == 2


async def versions_of(server: TerminalServer, chat_id: ChatId) -> int:
    found = await server.call("GET", f"/chats/{chat_id}/versions")
    groups = msgspec.convert(found["items"], list[VersionGroup])
    return sum(len(group.versions) for group in groups)


async def changed_files(server: TerminalServer, chat_id: ChatId) -> int:
    diff = await server.call("GET", f"/chats/{chat_id}/diff?scope=turn")
    return sum(one.changed_files for one in msgspec.convert(diff, ChatChanges).repositories)


def test_an_undo_names_its_files_and_what_it_cannot_undo() -> None:
    files = undoable(_changes(*(_diff(f"f{at}.py") for at in range(12))))
    text = undo_text(files)
    assert [line.strip() for line in text.splitlines()][1:3] == ["restore f0.py", "restore f1.py"]
    assert "  and 3 more\n" in text
    assert "Not undone: what git ignores" in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (ChatChanges(scope="turn"), "changed no files"),
        (_changes(_diff("a"), omitted="it is too large"), "it is too large"),
        (_changes(*(_diff(f"{at}") for at in range(MAX_UNDONE_FILES + 1))), "use git"),
    ],
)
def test_what_cannot_be_undone_says_why(changes: ChatChanges, reason: str) -> None:
    with pytest.raises(NotDone, match=reason):
        undoable(changes)


async def test_a_chat_without_a_workspace_says_so(server: TerminalServer) -> None:
    chat_id = await server.create_chat("answer fast")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until_shown(pilot, "a message")
        await pilot.press(*"/diff git", "enter")
        await until_shown(pilot, "This chat has no workspace, so it has changed no files.")
        await pilot.press("escape")
        await until_shown(pilot, "a message")


def test_hostile_names_and_lines_are_plain_text() -> None:
    text = _diff("a").replace("new", "\x1b[2J[red]x[/red]\u202e\tend")
    (changed,) = read_changes(_changes(text)).files
    assert [row.text for row in rows_of(changed.file)][1] == "[red]x[/red]    end"
    renamed = "diff --git a/x b/y\nsimilarity index 100%\nrename from \x1b]0;t\x07x\nrename to y\n"
    (changed,) = read_changes(_changes(renamed)).files
    assert [row.text for row in rows_of(changed.file)] == [
        "Renamed from x",
        "Its content is the same.",
    ]


def test_a_large_diff_is_bounded_and_says_so() -> None:
    many = read_changes(_changes(*(_diff(f"f{at}") for at in range(MAX_CHANGED_FILES + 3))))
    assert (len(many.files), many.added) == (MAX_CHANGED_FILES, MAX_CHANGED_FILES + 3)
    assert many.notes == ("3 more files are not listed.",)
    (long,) = read_changes(_changes(_diff("a", MAX_FILE_LINES * 2))).files
    rows = rows_of(long.file)
    assert len(rows) == MAX_FILE_LINES + 1
    assert (
        rows[-1].text == f"The file has {MAX_FILE_LINES * 2:,} lines of changes; the rest is cut."
    )
    (wide,) = read_changes(_changes(_diff("a").replace("new", "x" * 100_000))).files
    assert len(rows_of(wide.file)[1].text) == MAX_LINE_CHARS + 1


def test_a_reason_in_place_of_a_diff_is_said() -> None:
    assert read_changes(_changes(omitted="It is too large.")).notes == ("It is too large.",)
    assert read_changes(_changes("The diff is not shown.\n")).notes == ("The diff is not shown.",)


def test_several_repositories_are_named() -> None:
    first, second = (
        RepositoryChange(repo_root=root, unified_diff=_diff("a")) for root in ("/one", "/two")
    )
    changes = read_changes(ChatChanges(repositories=(first, second)))
    assert [one.root for one in changes.files] == ["/one", "/two"]


def test_scopes_follow_each_other() -> None:
    assert [read_scope(word) for word in ("chat", "GIT", "", "all")] == [
        "chat",
        "git",
        "turn",
        "turn",
    ]
    assert [next_scope(scope) for scope in ("turn", "chat", "git")] == ["chat", "git", "turn"]


class _BodyApp(App[None]):
    def compose(self) -> ComposeResult:
        yield DiffBody()


async def test_keys_go_from_change_to_change() -> None:
    app = _BodyApp()
    async with app.run_test(size=(80, 10)) as pilot:
        body = app.query_one(DiffBody)
        (changed,) = read_changes(_changes(_diff("a", lines=30, hunks=3))).files
        body.show_rows(rows_of(changed.file))
        await pilot.pause()
        places: list[int] = []
        for step in (1, 1, 1, -1, -1, -1):
            body.step_hunk(step)
            await pilot.pause()
            places.append(round(body.scroll_y))
        assert places == [31, 62, 62, 31, 0, 0]
