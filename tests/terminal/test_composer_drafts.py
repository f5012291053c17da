"""Drafts, prompt history and pasted text."""

import stat
from pathlib import Path
from uuid import UUID

from chatd.domain.ids import ChatId
from chatd.terminal.composer.drafts import (
    MAX_STORED_DRAFTS,
    Attachment,
    DraftStore,
    WrittenDraft,
    draft_key,
    state_directory,
)
from chatd.terminal.composer.open_draft import make_history
from chatd.terminal.composer.text_box import (
    MAX_INLINE_LINES,
    MAX_PASTED_CHARS,
    next_number,
    read_paste,
    write_block,
)

CHAT = draft_key(ChatId(UUID(int=7)))


def _write(text: str) -> WrittenDraft:
    return WrittenDraft(text=text)


def test_a_draft_is_there_again_after_a_restart(tmp_path: Path) -> None:
    directory = state_directory(tmp_path, "http://one")
    store = DraftStore(directory)
    done = Attachment(word="@a", name="a", state="done", file_id="f")
    lost = Attachment(word="@b", name="b", state="uploading")
    store.change(CHAT, lambda _: WrittenDraft(text="half a", attachments=(done, lost)))
    store.save()
    again = DraftStore(directory).read(CHAT)
    assert (again.text, again.attachments) == ("half a", (done,))
    assert DraftStore(state_directory(tmp_path, "http://two")).read(CHAT) == WrittenDraft()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {0o600}


def test_two_terminals_do_not_overwrite_each_others_drafts(tmp_path: Path) -> None:
    first, second = DraftStore(tmp_path), DraftStore(tmp_path)
    first.change("a", lambda _: _write("first"))
    second.change("b", lambda _: _write("second"))
    first.save()
    second.save()
    third = DraftStore(tmp_path)
    assert (third.read("a").text, third.read("b").text) == ("first", "second")


def test_a_sent_draft_leaves_no_file(tmp_path: Path) -> None:
    store = DraftStore(tmp_path)
    store.change(CHAT, lambda _: _write("secret"))
    store.save()
    store.clear(CHAT)
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_stored_drafts_is_bounded(tmp_path: Path) -> None:
    store = DraftStore(tmp_path)
    for number in range(MAX_STORED_DRAFTS + 5):
        store.change(str(number), lambda _: _write("text"))
        store.save()
    assert len(list(tmp_path.iterdir())) == MAX_STORED_DRAFTS


def test_a_broken_file_and_a_disk_that_refuses_lose_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": 7')
    assert DraftStore(tmp_path).read("a") == WrittenDraft()
    (tmp_path / "file").write_text("")
    store = DraftStore(tmp_path / "file" / "below")
    store.change("a", lambda _: _write("kept in memory"))
    store.save()
    assert store.read("a").text == "kept in memory"


def test_arrows_walk_through_the_prompts_and_come_back_to_the_draft() -> None:
    history = make_history(["third", "second", "second", " ", "first"])
    shown: list[str] = []
    text = "my draft"
    for _ in range(4):
        history = history.back(text)
        text = history.text
        shown.append(text)
    assert shown == ["third", "second", "first", "first"]
    for _ in range(3):
        history = history.forward(text)
        text = history.text
    assert text == "my draft"
    assert history.forward(text).text == "my draft"


def test_a_prompt_that_was_changed_is_a_draft_of_its_own() -> None:
    history = make_history(["second", "first"]).back("")
    changed = "second, and more"
    assert not history.is_shown(changed)
    assert history.forward(changed) == history
    again = history.back(changed)
    assert (again.text, again.forward("second").text) == ("second", changed)


def test_no_prompts_change_nothing() -> None:
    assert make_history([]).back("text").text == "text"
    assert make_history(["same"]).back("same").text == "same"


def test_a_paste_keeps_its_lines_and_loses_what_acts_on_a_terminal() -> None:
    assert read_paste("a\r\nb\rc\n").text == "a\nb\nc\n"
    assert read_paste("\x1b[31mred\x1b[0m\x07 \u202egnp.exe").text == "red gnp.exe"


def test_a_long_paste_becomes_a_file_and_a_huge_one_is_cut() -> None:
    assert not read_paste("x\n" * (MAX_INLINE_LINES - 1)).is_long
    assert read_paste("x\n" * MAX_INLINE_LINES).is_long
    huge = read_paste("x" * (MAX_PASTED_CHARS + 1))
    assert (huge.is_long, huge.is_cut, len(huge.text)) == (True, True, MAX_PASTED_CHARS)


def test_a_word_stands_for_the_pasted_file() -> None:
    block = write_block(1, "a\nb\n")
    assert block == "[Pasted text 1, 2 lines]"
    second = write_block(2, "x")
    assert second == "[Pasted text 2, 1 line]"
    text = f"see {block} and {second}"
    assert (next_number(text), next_number("")) == (3, 1)
