"""Which files of a chat a request contains, and what the model is told about the others."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from chatd.domain.chat.parts import FilePart
from chatd.domain.files import StoredFile
from chatd.domain.ids import FileId, UserId
from chatd.domain.model.protocol import AcceptedFiles, PromptFile, PromptText
from chatd.domain.prompt.prompt_files import (
    MAX_TEXT_FILE_BYTES,
    FilePlan,
    ResolvedFile,
    convert_file,
    plan_files,
)

MIB = 1024 * 1024
ACCEPTS = AcceptedFiles(
    images=frozenset({"image/png"}),
    documents=frozenset({"application/pdf"}),
    max_image_bytes=5 * MIB,
    max_document_bytes=9 * MIB,
    max_total_bytes=10 * MIB,
)


def stored(number: int, size: int, media_type: str = "image/png") -> StoredFile:
    return StoredFile(
        id=FileId(UUID(int=number)),
        owner_id=UserId(UUID(int=1)),
        name=f"{number}.x",
        media_type=media_type,
        size_bytes=size,
        sha256="",
        store="database",
        chunk_bytes=10,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def plan(*files: StoredFile, accepts: AcceptedFiles = ACCEPTS) -> FilePlan:
    by_id = {str(file.id): file for file in files}
    return plan_files(list(by_id), by_id, accepts)


def loaded(planned: FilePlan) -> list[tuple[int, int]]:
    return [(one.file.id.int, one.load_bytes) for one in planned.load]


def reasons(planned: FilePlan) -> dict[int, str]:
    return {UUID(name).int: file.missing or "" for name, file in planned.notes.items()}


def test_files_that_the_model_takes_are_loaded_whole_in_the_order_of_the_prompt() -> None:
    planned = plan(stored(1, 3 * MIB), stored(2, 4 * MIB, "application/pdf"), stored(3, 10))
    assert loaded(planned) == [(1, 3 * MIB), (2, 4 * MIB), (3, 10)]
    assert planned.notes == {}


def test_text_is_loaded_up_to_its_limit() -> None:
    planned = plan(stored(1, 9 * MIB, "text/csv"), stored(2, 7, "application/json"))
    assert loaded(planned) == [(1, MAX_TEXT_FILE_BYTES), (2, 7)]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (stored(1, 10, "image/gif"), "this model does not take files of this type"),
        (stored(1, 5 * MIB), "it is not smaller than 5 MiB"),
        (stored(1, 9 * MIB, "application/pdf"), "it is not smaller than 9 MiB"),
    ],
)
def test_a_file_that_the_model_does_not_take_is_described(file: StoredFile, reason: str) -> None:
    planned = plan(file)
    assert loaded(planned) == []
    assert reasons(planned) == {1: reason}


def test_the_oldest_files_are_left_out_if_all_are_too_much() -> None:
    files = [stored(number, 4 * MIB) for number in range(1, 5)]
    planned = plan(*files)
    assert loaded(planned) == [(3, 4 * MIB), (4, 4 * MIB)]
    assert reasons(planned).keys() == {1, 2}
    assert "exceed 10 MiB together" in reasons(planned)[1]


def test_a_small_file_before_one_that_was_left_out_is_left_out_too() -> None:
    """Otherwise the next file would move it in and out of the prompt."""
    planned = plan(stored(1, 1), stored(2, 4 * MIB), stored(3, 4 * MIB), stored(4, 4 * MIB))
    assert [number for number, _ in loaded(planned)] == [3, 4]


def test_a_file_that_is_gone_is_neither_loaded_nor_described() -> None:
    assert plan_files(["a"], {}, ACCEPTS) == FilePlan(load=(), notes={})


def test_a_model_takes_what_its_configuration_says() -> None:
    image, pages = stored(1, 10), stored(2, 10, "application/pdf")
    assert loaded(plan(image, pages, accepts=ACCEPTS.limited_to(("image",)))) == [(1, 10)]
    assert loaded(plan(image, pages, accepts=ACCEPTS.limited_to(("pdf",)))) == [(2, 10)]
    assert loaded(plan(image, pages, accepts=ACCEPTS.limited_to(()))) == []
    assert ACCEPTS.limited_to(None) is ACCEPTS


def convert(file: ResolvedFile) -> PromptFile | PromptText | None:
    part = FilePart(media_type="x/y", file_id="f")
    return convert_file(part, {"f": file}, ACCEPTS.takes)


def test_the_model_reads_which_file_it_does_not_get() -> None:
    (note,) = plan(stored(1, 6 * MIB)).notes.values()
    assert convert(note) == PromptText(
        text="[The user attached the file 1.x (image/png, 6291456 bytes). It is not shown: it is"
        " not smaller than 5 MiB.]"
    )


def test_a_text_that_was_cut_says_so_and_ends_with_a_whole_character() -> None:
    data = "aä".encode()[:-1]
    made = convert(ResolvedFile(media_type="text/plain", data=data, name="n.txt", size=900))
    assert made == PromptText(
        text="[Attached file: n.txt]\na\n[Cut here: the file has 900 bytes; 2 are shown.]"
    )
