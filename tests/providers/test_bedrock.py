"""Claude on Bedrock: signatures, framing, and requests over a socket."""

import sys
import zlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import ProviderError, StreamFailed
from chatd.providers.anthropic.anthropic_decoder import AnthropicDecoder
from chatd.providers.anthropic.bedrock import (
    EventStream,
    SigningScope,
    default_url,
    find_region,
    signature_headers,
)
from chatd.providers.provider_config import AwsCredentials, ProviderConfig, Secret
from chatd.providers.registry import build_provider
from chatd.providers.sse import EventTooLong, FramingError
from chatd.providers.sse import FramedDecoder as AnyDecoder
from tests.support.clock import FakeClock
from tests.support.providers import anthropic
from tests.support.providers.anthropic_requests import TOOLS, tool_round
from tests.support.providers.bedrock import (
    BEARER,
    CREDENTIALS,
    REGION,
    FakeBedrock,
    chunk,
    exception,
    frame,
    refusal,
    stream,
)
from tests.support.providers.client import ClientRig, bedrock_rig
from tests.support.providers.prompts import request
from tests.support.providers.stream_reader import (
    answer_of,
    collect_failure,
    read_at_all_cuts,
    read_bytewise,
    read_whole,
)

MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
Bedrock = ClientRig[FakeBedrock]


def new_decoder() -> AnyDecoder:
    return AnthropicDecoder(framing=EventStream())


# Signatures: the vectors that AWS publishes

VECTOR_KEYS = AwsCredentials(
    access_key_id="AKIDEXAMPLE",
    secret_access_key=Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
)
VECTOR_TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPf"
    "IeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7W"
    "Z0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8F"
    "DrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
)
VECTOR_SCOPE = SigningScope(
    region="us-east-1", service="service", at=datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
)
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.covers("providers-6")
@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "signature"),
    [
        (
            *("GET", "/", {}, b""),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            *("POST", "/", {}, b""),
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            *("POST", "/", FORM, b"Param1=value1"),
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
        (
            *("GET", "/?Param2=value2&Param1=value1", {}, b""),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            *("GET", "/\u1234", {}, b""),
            "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
        ),
    ],
)
def test_signatures_match_the_vectors_of_aws(
    method: str, path: str, headers: dict[str, str], body: bytes, signature: str
) -> None:
    made = signature_headers(
        method=method,
        url=f"https://example.amazonaws.com{path}",
        headers=headers,
        body=body,
        credentials=VECTOR_KEYS,
        scope=VECTOR_SCOPE,
    )
    assert made["x-amz-date"] == "20150830T123600Z"
    assert made["authorization"].endswith(f"Signature={signature}")


def test_a_session_token_is_signed() -> None:
    made = signature_headers(
        url="https://example.amazonaws.com/",
        headers={"user-agent": "not signed"},
        body=b"",
        credentials=msgspec.structs.replace(VECTOR_KEYS, session_token=Secret(VECTOR_TOKEN)),
        scope=VECTOR_SCOPE,
    )
    assert made["x-amz-security-token"] == VECTOR_TOKEN
    assert made["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request,"
        " SignedHeaders=host;x-amz-date;x-amz-security-token,"
        " Signature=85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"
    )


# Framing


@pytest.mark.parametrize("name", anthropic.NAMES)
def test_a_stream_decodes_as_at_anthropic(name: str) -> None:
    assert read_whole(new_decoder, stream(name)) == read_whole(
        AnthropicDecoder, anthropic.stream(name)
    )


@pytest.mark.parametrize("name", ["thinking_and_tools", "error_midway"])
def test_a_stream_decodes_the_same_wherever_it_is_cut(name: str) -> None:
    data = stream(name)
    whole = read_whole(new_decoder, data)
    assert read_bytewise(new_decoder, data) == whole
    for found in read_at_all_cuts(new_decoder, data):
        assert found == whole


def test_headers_that_are_not_text_are_skipped() -> None:
    others = b"".join(
        b"\x01" + bytes([97 + kind, kind]) + value
        for kind, value in (
            *((0, b""), (1, b""), (2, b"1"), (3, b"12"), (4, b"1234"), (5, b"12345678")),
            *((6, b"\x00\x03\xff\xfe\xfd"), (8, b"12345678"), (9, b"1234567890123456")),
        )
    )
    plain = chunk(b'{"type":"ping"}')
    size = int.from_bytes(plain[4:8]) + len(others)
    message = reframed(others + plain[12:-4], size)
    assert EventStream().feed(message) == [(b"", b'{"type":"ping"}')]


def reframed(rest: bytes, headers: int) -> bytes:
    """A message with the given headers."""
    whole = frame({}, rest)
    prelude = whole[:4] + headers.to_bytes(4)
    body = prelude + zlib.crc32(prelude).to_bytes(4) + rest
    return body + zlib.crc32(body).to_bytes(4)


def test_events_of_other_types_are_skipped() -> None:
    other = frame({":message-type": "event", ":event-type": "initial-response"}, b"{}")
    strange = frame({":message-type": "novelty"}, b"\xff")
    assert EventStream().feed(other + strange + chunk(b"x")) == [(b"", b"x")]


@pytest.mark.covers("providers-6")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("throttlingException", "rate_limit"),
        ("modelStreamErrorException", "generic"),
        ("internalServerException", "generic"),
        ("serviceUnavailableException", "timeout"),
        ("modelTimeoutException", "timeout"),
    ],
)
def test_an_aws_exception_keeps_its_name(name: str, kind: str) -> None:
    (failed,) = read_whole(new_decoder, exception(name, "Too many tokens"))
    assert isinstance(failed, StreamFailed)
    assert (failed.fault.type, failed.fault.message) == (name, "Too many tokens")
    assert classify_fault(failed.fault).kind == kind
    assert classify_fault(failed.fault).retryable


def test_an_unmodelled_error_is_reported() -> None:
    headers = {
        ":message-type": "error",
        ":error-code": "InternalFailure",
        ":error-message": "Sorry",
    }
    (failed,) = read_whole(new_decoder, frame(headers, b""))
    assert isinstance(failed, StreamFailed)
    assert (failed.fault.type, failed.fault.message) == ("InternalFailure", "Sorry")
    assert classify_fault(failed.fault).retryable


def test_an_exception_without_a_message_is_described_by_its_name() -> None:
    headers = {":message-type": "exception", ":exception-type": "throttlingException"}
    (failed,) = read_whole(new_decoder, frame(headers, b""))
    assert isinstance(failed, StreamFailed)
    expected = ("throttlingException", "rate_limit")
    assert (failed.fault.type, classify_fault(failed.fault).kind) == expected


@pytest.mark.covers("providers-6")
def test_every_damaged_bit_is_detected() -> None:
    message = chunk(b'{"type":"ping"}')
    for bit in range(0, len(message) * 8, 3):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FramingError):
            EventStream().feed(bytes(damaged))


@pytest.mark.parametrize(
    "message",
    [
        frame({":message-type": "event", ":event-type": "chunk"}, b"nonsense"),
        frame({":message-type": "event", ":event-type": "chunk"}, b'{"bytes":"%%%"}'),
        frame({":message-type": "exception"}, b"nonsense"),
        reframed(b"", 100),
        reframed(b"\x05ab", 3),
        reframed(b"\x01a\x63", 3),
        reframed(b"\x01a\x07\x00\xffab", 7),
        reframed(b"\x01\xff\x07\x00\x00", 5),
    ],
)
def test_an_invalid_message_is_a_retryable_failure(message: bytes) -> None:
    with pytest.raises(FramingError):
        EventStream().feed(message)
    events = read_whole(new_decoder, stream("cut_off") + message)
    assert isinstance(events[-1], StreamFailed)
    assert events[-1].fault.incomplete


@pytest.mark.parametrize("total", range(16))
def test_a_message_that_is_too_short_is_damage(total: int) -> None:
    prelude = total.to_bytes(4) + (0).to_bytes(4)
    with pytest.raises(FramingError):
        EventStream().feed(prelude + zlib.crc32(prelude).to_bytes(4) + bytes(16))


def test_a_message_that_is_too_long_fails_at_its_start() -> None:
    with pytest.raises(EventTooLong):
        EventStream(limit=100).feed(chunk(b"x" * 200)[:20])


# Over a socket


@pytest.fixture
async def bedrock() -> AsyncGenerator[Bedrock]:
    async with bedrock_rig() as rig:
        yield rig


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (MODEL, MODEL),
        (
            "arn:aws:bedrock:eu-central-1:123456789012:application-inference-profile/abc",
            "arn:aws:bedrock:eu-central-1:123456789012:application-inference-profile%2Fabc",
        ),
        ("odd model?#", "odd%20model%3F%23"),
    ],
)
async def test_a_signed_request_is_accepted_for_any_model_name(
    model: str, path: str, bedrock: Bedrock
) -> None:
    bedrock.fake.play("text")
    answer = answer_of(await bedrock.ask(request(*tool_round(), model=model, tools=TOOLS)))
    assert answer.has_visible_text
    (seen,) = bedrock.fake.requests
    assert seen.path == f"/model/{path}/invoke-with-response-stream"
    assert seen.json["anthropic_version"] == "bedrock-2023-05-31"
    assert not {"model", "stream", "anthropic_beta"} & set(seen.json)
    assert seen.headers["accept"] == "application/vnd.amazon.eventstream"
    assert seen.headers["user-agent"].startswith("chatd/")


async def test_a_bedrock_api_key_replaces_the_signature(bedrock: Bedrock) -> None:
    bedrock.fake.play("text")
    await bedrock.ask(api_key=Secret(BEARER), aws=None)
    assert "x-amz-date" not in bedrock.fake.requests[0].headers


async def test_beta_features_are_in_the_body(bedrock: Bedrock) -> None:
    bedrock.fake.play("text")
    await bedrock.ask(request(model=MODEL, options=Raw(b'{"context_1m_enabled":true}')))
    (seen,) = bedrock.fake.requests
    assert seen.json["anthropic_beta"] == ["context-1m-2025-08-07"]
    assert "anthropic-beta" not in seen.headers


async def test_web_search_is_rejected_before_a_request_is_sent(bedrock: Bedrock) -> None:
    sent = request(model=MODEL, options=Raw(b'{"web_search_enabled":true}'))
    classified = classify_fault((await bedrock.failure(sent)).fault)
    assert classified.kind == "config"
    assert "web_search_enabled" in (classified.error.detail or "")
    assert bedrock.fake.requests == []


@pytest.mark.parametrize(
    ("status", "name", "means"),
    [
        (429, "ThrottlingException", "rate_limit"),
        (403, "AccessDeniedException", "auth"),
        (403, "ExpiredTokenException", "auth"),
        (404, "ResourceNotFoundException", "config"),
        (503, "ServiceUnavailableException", "timeout"),
        (400, "ServiceQuotaExceededException", "usage_limit"),
    ],
)
async def test_a_rejection_by_aws_is_classified(
    status: int, name: str, means: str, bedrock: Bedrock
) -> None:
    bedrock.fake.answer_with(refusal(status, name, "No."))
    fault = (await bedrock.failure()).fault
    assert (fault.provider, fault.type) == ("bedrock", name)
    assert classify_fault(fault).kind == means
    assert classify_fault(fault).error.detail == "No."


async def test_an_invalid_key_is_reported_without_the_key(bedrock: Bedrock) -> None:
    wrong = msgspec.structs.replace(CREDENTIALS, secret_access_key=Secret("not-the-key-at-all"))
    async with bedrock.provider(aws=wrong) as provider:
        error = await collect_failure(provider, request(model=MODEL))
    assert error.fault.type == "InvalidSignatureException"
    assert "not-the-key-at-all" not in repr(error.fault) + repr(provider) + repr(wrong)


# Credentials and region


def config_failure(**more: object) -> tuple[str, str]:
    plain = ProviderConfig(kind="bedrock", region=REGION)
    with pytest.raises(ProviderError) as caught:
        build_provider(msgspec.structs.replace(plain, **more), FakeClock())
    classified = classify_fault(caught.value.fault)
    return classified.kind, classified.error.detail or ""


async def test_without_keys_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    kind, words = config_failure()
    assert kind == "missing_key"
    assert "chatd[bedrock]" in words
    assert "api_key" in words


@pytest.mark.covers("providers-6")
async def test_a_region_is_required() -> None:
    for region in (None, "", "eu central", "evil.example.org/"):
        kind, words = config_failure(aws=CREDENTIALS, region=region)
        assert kind == "config"
        assert "region" in words


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("bedrock-runtime.us-east-1.amazonaws.com", "us-east-1"),
        ("bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("bedrock-runtime.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("vpce-0a1b.bedrock-runtime.eu-west-1.vpce.amazonaws.com", "eu-west-1"),
    ],
)
def test_an_aws_address_names_its_region(host: str, region: str) -> None:
    there = ProviderConfig(kind="bedrock", base_url=f"https://{host}/")
    assert find_region(there) == region
    assert find_region(msgspec.structs.replace(there, region="us-west-2")) == "us-west-2"


def test_another_address_names_no_region() -> None:
    kind, words = config_failure(
        aws=CREDENTIALS, region=None, base_url="https://gateway.example.com"
    )
    assert (kind, "base_url" in words) == ("config", True)


class BotoCoreError(Exception):
    pass


class Machine:
    """A fake botocore that finds these credentials, none, or fails."""

    def __init__(self, found: AwsCredentials | None, trouble: Exception | None = None) -> None:
        self._found = found
        self._trouble = trouble

    def get_credentials(self) -> object:
        if self._trouble is not None:
            raise self._trouble
        return None if self._found is None else self

    def get_frozen_credentials(self) -> object:
        assert self._found is not None
        token = self._found.session_token
        return SimpleNamespace(
            access_key=self._found.access_key_id,
            secret_key=self._found.secret_access_key.reveal(),
            token=token and token.reveal(),
        )

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        session, exceptions = ModuleType("session"), ModuleType("exceptions")
        session.__dict__["get_session"] = lambda: self
        exceptions.__dict__["BotoCoreError"] = BotoCoreError
        monkeypatch.setitem(sys.modules, "botocore", ModuleType("botocore"))
        monkeypatch.setitem(sys.modules, "botocore.session", session)
        monkeypatch.setitem(sys.modules, "botocore.exceptions", exceptions)


async def test_static_credentials_of_the_machine_are_used(
    bedrock: Bedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(VECTOR_KEYS).install(monkeypatch)
    await bedrock.failure(aws=None)
    assert "x-amz-security-token" not in bedrock.fake.requests[0].headers


@pytest.mark.covers("providers-6")
async def test_temporary_credentials_of_the_machine_are_used(
    bedrock: Bedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(CREDENTIALS).install(monkeypatch)
    bedrock.fake.play("text")
    await bedrock.ask(aws=None)
    assert (
        bedrock.fake.requests[0].headers["x-amz-security-token"] == "AQoDYXdzEPT//////////wEXAMPLE"
    )


@pytest.mark.parametrize(
    ("machine", "means"),
    [
        (Machine(None), "missing_key"),
        (Machine(None, BotoCoreError("the token is abcdef")), "config"),
    ],
)
async def test_missing_credentials_of_the_machine_are_reported(
    machine: Machine, means: str, bedrock: Bedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install(monkeypatch)
    error = await bedrock.failure(aws=None)
    assert classify_fault(error.fault).kind == means
    assert "abcdef" not in repr(error.fault)
    assert bedrock.fake.requests == []


async def test_the_default_address_contains_the_region() -> None:
    for region, host in (
        ("us-east-1", "bedrock-runtime.us-east-1.amazonaws.com"),
        ("cn-north-1", "bedrock-runtime.cn-north-1.amazonaws.com.cn"),
    ):
        assert default_url(region) == f"https://{host}"


async def test_a_model_that_is_not_claude_is_refused_by_name_before_a_request(
    bedrock: Bedrock,
) -> None:
    failed = await bedrock.failure(request(model="amazon.nova-pro-v1:0"))
    assert "amazon.nova-pro-v1:0 is not a Claude model" in failed.message
    assert bedrock.fake.requests == []
