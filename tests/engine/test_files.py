"""Files in prompts: loaded once within bounds, sent in the form that each API takes, and the same
bytes in every request."""

import base64
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

import msgspec
import pytest

from chatd.clock import SystemClock
from chatd.domain.chat.messages import Message, UserInput
from chatd.domain.chat.parts import FilePart, TextPart
from chatd.domain.chat.states import State
from chatd.domain.files import StoredFile
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import AcceptedFiles, FileInputKind, ModelConfig
from chatd.domain.ports import ModelChoice
from chatd.engine.model.attempt import Attempt
from chatd.engine.model.file_loader import FileLoader
from chatd.engine.model.model_call import ModelCallError, TurnContext, build_request
from chatd.providers.registry import accepted_files
from chatd.store.database.pool import Pool
from chatd.store.file_stores import DatabaseFileStore, FileStores
from tests.engine.test_event_loop import attempt_with
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.factories import CHAT, OWNER, message, text
from tests.support.providers import anthropic, bedrock, gemini, openai_chat, openai_responses
from tests.support.providers.client import (
    ClientRig,
    anthropic_rig,
    bedrock_rig,
    chat_rig,
    compatible_rig,
    gemini_rig,
    responses_rig,
)
from tests.support.providers.stream_reader import collect
from tests.support.sample_files import CSV, PDF, PNG, png
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stored_files import insert_file, part_of
from tests.support.stream_replica import env_with
from tests.support.tables import table
from tests.support.tools import GatedTool

KIB = 1024


async def link(pool: Pool, *files: StoredFile) -> None:
    await insert_seed(pool, Seed(state=State.W))
    for file in files:
        await pool.execute(
            "INSERT INTO chat_files (chat_id, file_id) VALUES ($1, $2)", CHAT, file.id
        )


def loader_on(pool: Pool, **options: int) -> FileLoader:
    stores = FileStores(current=DatabaseFileStore(pool))
    return FileLoader(pool, env_with(SystemClock()), stores, **options)


def attempt_naming(*parts: FilePart) -> Attempt:
    rows: list[Message] = [message(1, "user", *parts, text("what is this?"))]
    return attempt_with(rows)


def context_of(rig: ClientRig[Any], inputs: tuple[FileInputKind, ...] | None = None) -> TurnContext:
    config = ModelConfig(
        id=ModelConfigId(UUID(int=7)), name="m", provider="p", model=rig.model, file_inputs=inputs
    )
    choice = ModelChoice(
        config=config,
        provider=None,  # pyright: ignore[reportArgumentType]
        kind=rig.config.kind,
        files=accepted_files(config, rig.config),
    )
    return TurnContext(choice=choice, tools={}, client_tools=())


Rig = Callable[[], AbstractAsyncContextManager[ClientRig[Any]]]
PROVIDERS = {
    "anthropic": (anthropic_rig, anthropic.stream("text")),
    "bedrock": (bedrock_rig, bedrock.stream("text")),
    "google": (gemini_rig, gemini.stream("text")),
    "responses": (responses_rig, openai_responses.stream("text")),
    "chat": (chat_rig, openai_chat.stream("text")),
    "compatible": (compatible_rig, openai_chat.stream("text")),
}


async def sent_body(
    rig: ClientRig[Any],
    answer: bytes,
    loader: FileLoader,
    attempt: Attempt,
    inputs: tuple[FileInputKind, ...] | None = None,
) -> bytes:
    request = await build_request(attempt, context_of(rig, inputs), loader=loader)
    rig.fake.script(answer)
    async with rig.provider() as provider:
        await collect(provider, request)
    return bytes(rig.fake.requests[-1].body)


@table("new_rig answer", PROVIDERS)
async def test_an_image_and_a_text_reach_every_provider(
    pool: Pool, new_rig: Rig, answer: bytes
) -> None:
    image = await insert_file(pool, OWNER, PNG, "image/png", "chart.png")
    table_file = await insert_file(pool, OWNER, CSV, "text/csv", "table.csv")
    await link(pool, image, table_file)
    loader = loader_on(pool)
    async with new_rig() as rig:
        attempt = attempt_naming(part_of(image), part_of(table_file))
        body = await sent_body(rig, answer, loader, attempt)
        assert base64.b64encode(PNG) in body
        assert b"[Attached file: table.csv]" in body
        assert b"a,b\\n1,2" in body
        again = await sent_body(rig, answer, loader_on(pool), attempt)
        assert again == body, "another worker sends the same bytes"


@table("new_rig answer", PROVIDERS)
async def test_a_model_without_images_is_told_what_was_attached(
    pool: Pool, new_rig: Rig, answer: bytes
) -> None:
    image = await insert_file(pool, OWNER, PNG, "image/png", "chart.png")
    await link(pool, image)
    async with new_rig() as rig:
        attempt = attempt_naming(part_of(image))
        body = await sent_body(rig, answer, loader_on(pool), attempt, inputs=())
        assert base64.b64encode(PNG) not in body
        assert (
            f"The user attached the file chart.png (image/png, {len(PNG)} bytes)".encode() in body
        )


@table("new_rig answer", PROVIDERS)
async def test_a_pdf_is_sent_as_a_document_or_described(
    pool: Pool, new_rig: Rig, answer: bytes
) -> None:
    pages = await insert_file(pool, OWNER, PDF, "application/pdf", "paper.pdf")
    await link(pool, pages)
    async with new_rig() as rig:
        body = await sent_body(rig, answer, loader_on(pool), attempt_naming(part_of(pages)))
        takes_pdf = new_rig is not compatible_rig
        assert (base64.b64encode(PDF) in body) is takes_pdf
        assert (b"The user attached the file paper.pdf" in body) is not takes_pdf


async def test_an_image_above_the_provider_limit_is_described_and_not_loaded(pool: Pool) -> None:
    large = await insert_file(pool, OWNER, png(padding=5 * KIB * KIB), "image/png", "big.png")
    await link(pool, large)
    loader = loader_on(pool)
    async with anthropic_rig() as rig:
        attempt = attempt_naming(part_of(large))
        body = await sent_body(rig, anthropic.stream("text"), loader, attempt)
        assert b"It is not shown: it is not smaller than 5 MiB." in body
    assert loader.cached_bytes == 0


async def test_a_file_that_is_gone_is_said_to_have_expired(pool: Pool) -> None:
    await link(pool)
    gone = FilePart(media_type="image/png", file_id=str(UUID(int=404)), name="old.png")
    async with anthropic_rig() as rig:
        body = await sent_body(rig, anthropic.stream("text"), loader_on(pool), attempt_naming(gone))
        assert b"[The attachment old.png of type image/png has expired" in body


ALL = AcceptedFiles(images=frozenset({"image/*"}))


async def test_the_cache_is_bounded_and_drops_the_oldest_file(pool: Pool) -> None:
    made = [
        await insert_file(pool, OWNER, png(padding=size), "image/png")
        for size in (4000, 4001, 4002)
    ]
    await link(pool, *made)
    loader = loader_on(pool, max_cached_bytes=9000)
    first, second, third = [str(file.id) for file in made]
    found = await loader.load(CHAT, [first, second, third], ALL)
    assert [len(found[name].data) for name in (first, second, third)] == [
        file.size_bytes for file in made
    ]
    assert loader.cached_bytes == made[1].size_bytes + made[2].size_bytes
    await pool.execute("DELETE FROM file_chunks")
    assert (await loader.load(CHAT, [second, third], ALL)).keys() == {second, third}
    assert (await loader.load(CHAT, [first], ALL)) == {}, "it was dropped, and its bytes are lost"


async def test_a_large_text_is_read_only_as_far_as_it_is_shown(pool: Pool) -> None:
    data = b"line\n" * (200 * KIB)
    file = await insert_file(pool, OWNER, data, "text/plain", "log.txt")
    await link(pool, file)
    found = await loader_on(pool).load(CHAT, [str(file.id)], ALL)
    resolved = found[str(file.id)]
    assert (len(resolved.data), resolved.size) == (256 * KIB, len(data))


async def test_a_store_that_is_not_configured_fails_the_call_and_not_the_runner(
    pool: Pool,
) -> None:
    file = await insert_file(pool, OWNER, PNG, "image/png")
    await link(pool, file)
    await pool.execute("UPDATE files SET store = 'elsewhere'")
    async with anthropic_rig() as rig:
        with pytest.raises(ModelCallError) as failed:
            await build_request(
                attempt_naming(part_of(file)), context_of(rig), loader=loader_on(pool)
            )
    assert failed.value.classified.retryable
    assert failed.value.classified.error.detail == "file_store_missing"


async def create_with_file(rig: EngineRig) -> Any:
    file = await insert_file(rig.pool, rig.owner, PNG, "image/png", "chart.png")
    prompt = UserInput(content=(part_of(file), TextPart(text="look")), created_by=rig.owner)
    return await rig.create("look", prompt=prompt)


async def test_every_request_of_a_turn_contains_the_same_bytes_of_the_file(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        rig.answer("A chart.")
        chat_id = await create_with_file(rig)
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        first, second = (request.json for request in rig.api.requests)
        one, two = (msgspec.convert(body["messages"], list[Any]) for body in (first, second))
        assert base64.b64encode(PNG) in msgspec.json.encode(one)
        assert two[: len(one)] == one


async def test_a_new_replica_sends_the_file_of_an_old_message(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        rig.answer("A chart.")
        chat_id = await create_with_file(rig)
        await rig.wait_chat_task_left(chat_id)
    async with engine_rig(dsn) as rig:
        rig.answer("Blue.")
        await rig.send(chat_id, "which colour?")
        await rig.wait_chat_task_left(chat_id)
        assert base64.b64encode(PNG) in rig.api.requests[0].body
