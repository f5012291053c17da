"""The Gemini provider over a real socket."""

from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from chatd.domain.chat.parts import TextPart
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import ProviderError
from chatd.providers.provider_config import Secret
from tests.support.providers.client import ClientRig, gemini_rig
from tests.support.providers.gemini import KEY, FakeGemini, error, stream
from tests.support.providers.prompts import call, message, request
from tests.support.providers.server import Cut
from tests.support.providers.stream_reader import answer_of, collect

MODEL = "gemini-2.5-flash"
Gemini = ClientRig[FakeGemini]


@pytest.fixture
async def gemini() -> AsyncGenerator[Gemini]:
    async with gemini_rig() as rig:
        yield rig


async def test_an_answer_is_read_over_a_socket(gemini: Gemini) -> None:
    gemini.fake.script(stream("text"))
    answer = answer_of(await gemini.ask())
    assert answer.content == (
        TextPart(
            text="The sky looks blue because air scatters short waves"
            " more than long ones. 日本語 👩‍🚀"
        ),
    )


async def test_the_key_is_only_in_its_header(gemini: Gemini) -> None:
    gemini.fake.script(stream("text"))
    sent = request(model=MODEL)
    async with gemini.provider() as provider:
        await collect(provider, sent)
    [seen] = gemini.fake.requests
    assert seen.path == f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse"
    assert seen.headers["x-goog-api-key"] == KEY
    assert seen.headers["user-agent"].startswith("chatd/")
    assert KEY.encode() not in seen.body
    assert KEY not in repr(provider.__dict__.get("_http")) + repr(provider)


@pytest.mark.parametrize(
    ("base", "model", "path"),
    [
        ("", "gemini-2.5-flash", "/v1beta/models/gemini-2.5-flash"),
        ("/v1beta/", "gemini-2.5-flash", "/v1beta/models/gemini-2.5-flash"),
        ("/gate", "tunedModels/mine", "/gate/v1beta/tunedModels/mine"),
        (
            "/v1/projects/p/locations/global/publishers/google",
            "gemini-4-argon",
            "/v1/projects/p/locations/global/publishers/google/models/gemini-4-argon",
        ),
        ("", "odd name?", "/v1beta/models/odd%20name%3F"),
    ],
)
async def test_addresses_are_joined(gemini: Gemini, base: str, model: str, path: str) -> None:
    gemini.fake.script(stream("text"))
    # The fake answers 404 at other addresses.
    with suppress(ProviderError):
        await gemini.ask(request(model=model), base_url=f"{gemini.fake.url}{base}")
    assert gemini.fake.requests[0].path == f"{path}:streamGenerateContent?alt=sse"


async def test_a_configured_header_replaces_the_key(gemini: Gemini) -> None:
    gemini.fake.script(stream("text"))
    assert await gemini.ask(api_key=None, headers={"X-Goog-Api-Key": Secret(KEY)})


@pytest.mark.covers("providers-16")
async def test_a_missing_key_names_its_variable(gemini: Gemini) -> None:
    with pytest.raises(ProviderError, match="GEMINI_API_KEY"):
        await gemini.ask(api_key=None)


async def test_an_invalid_key_is_classified_and_not_shown(gemini: Gemini) -> None:
    failed = await gemini.failure(api_key=Secret("wrong-key-123456"))
    assert classify_fault(failed.fault).kind == "auth"
    assert "wrong-key" not in repr(failed) + repr(failed.fault) + repr(failed.args)
    assert failed.__context__ is None or "wrong-key" not in repr(failed.__context__)


async def test_a_rejection_quotes_the_api(gemini: Gemini) -> None:
    sent = request(message("user", "Hi"), message("assistant", call("a")), model=MODEL)
    failed = await gemini.failure(sent)
    classified = classify_fault(failed.fault)
    expected = ("generic", False, 400)
    assert (classified.kind, classified.retryable, classified.error.status_code) == expected
    assert "number of function response parts" in (classified.error.detail or "")
    assert classified.error.provider == "google"


async def test_the_retry_delay_is_read_from_the_body_even_in_an_array(gemini: Gemini) -> None:
    wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12s"}
    gemini.fake.reply(429, [error(429, "RESOURCE_EXHAUSTED", "Quota exceeded.", wait)])
    failed = await gemini.failure()
    assert failed.fault.retry_after_s == 12
    assert failed.fault.type == "RESOURCE_EXHAUSTED"
    assert classify_fault(failed.fault).kind == "rate_limit"


async def test_a_prompt_that_is_too_long_is_a_context_overflow(gemini: Gemini) -> None:
    said = "The input token count (1048999) exceeds the maximum number of tokens allowed (1048576)."
    gemini.fake.reply(400, error(400, "INVALID_ARGUMENT", said))
    assert classify_fault((await gemini.failure()).fault).kind == "context_overflow"


async def test_a_cut_after_the_complete_answer_is_ignored(gemini: Gemini) -> None:
    gemini.fake.script(stream("text"), Cut())
    assert answer_of(await gemini.ask()).finished is not None


async def test_equal_requests_give_equal_call_ids(gemini: Gemini) -> None:
    gemini.fake.script(stream("calls_without_ids"))
    gemini.fake.script(stream("calls_without_ids"))
    gemini.fake.script(stream("calls_without_ids"))
    same = [await gemini.ask(), await gemini.ask()]
    assert same[0] == same[1]
    other = await gemini.ask(request(message("user", "Other"), model=MODEL))
    assert other != same[0]
