"""Building providers, and what is said when something is missing."""

from typing import get_args

import msgspec
import pytest

from chatd.domain.errors import InvariantBroken
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import ProviderError
from chatd.providers.registry import BUILDERS, OPTIONS, TIMED_BUILDERS, build
from chatd.providers.secret import Secret
from chatd.providers.settings import (
    AwsCredentials,
    Kind,
    ProviderSettings,
    base_url,
    join_url,
    merge_headers,
)

KEY = Secret("sk-test-0123456789")
PLAIN = ProviderSettings(kind="anthropic", api_key=KEY)


def refused(settings: ProviderSettings) -> tuple[str, str]:
    """The kind of the refusal, and its words."""
    with pytest.raises(ProviderError) as caught:
        build(settings)
    classified = classify_fault(caught.value.fault)
    assert not classified.retryable
    return classified.kind, classified.error.detail or ""


async def test_a_provider_is_called_what_it_is_called() -> None:
    for settings, name in ((PLAIN, "anthropic"), (named("work"), "work")):
        provider = build(settings)
        assert provider.name == name
        await provider.close()


def named(name: str) -> ProviderSettings:
    return msgspec.structs.replace(PLAIN, name=name)


@pytest.mark.covers("providers-16")
@pytest.mark.parametrize("key", [None, Secret(""), Secret(" \n")])
def test_a_missing_key_is_told_with_what_to_set(key: Secret | None) -> None:
    kind, words = refused(msgspec.structs.replace(PLAIN, api_key=key, name="work"))
    assert kind == "missing_key"
    assert "work" in words
    assert "api_key" in words
    assert "ANTHROPIC_API_KEY" in words


@pytest.mark.covers("providers-16")
def test_a_key_that_cannot_be_one_is_told_but_not_shown() -> None:
    kind, words = refused(msgspec.structs.replace(PLAIN, api_key=Secret("sk-a\nX-Evil: 1")))
    assert kind == "config"
    assert "Evil" not in words


async def test_blanks_around_a_key_are_forgiven() -> None:
    await build(msgspec.structs.replace(PLAIN, api_key=Secret(" sk-test-0123456789\n"))).close()


@pytest.mark.parametrize(
    "url",
    [
        *("example.org", "ftp://example.org", "http://", "//example.org", "http://[::1"),
        *("http://host:0", "http://host:99999", "http://host:port", "https://me:pass@host"),
    ],
)
def test_a_base_url_that_is_none_is_told(url: str) -> None:
    kind, words = refused(msgspec.structs.replace(PLAIN, base_url=url))
    assert kind == "config"
    assert "base_url" in words
    assert "pass@" not in words


def test_a_base_url_is_kept_but_for_its_last_slash() -> None:
    for given, kept in (
        ("https://host/", "https://host"),
        (" http://host:8080/a/b/ ", "http://host:8080/a/b"),
        ("https://host/a?version=1#x", "https://host/a?version=1"),
    ):
        settings = msgspec.structs.replace(PLAIN, base_url=given)
        assert base_url(settings, "https://default") == kept
    assert base_url(PLAIN, "https://default") == "https://default"


def test_a_path_goes_before_the_query() -> None:
    assert join_url("https://host/a?version=1", "/b") == "https://host/a/b?version=1"
    assert join_url("https://host", "/b") == "https://host/b"


@pytest.mark.covers("providers-17")
def test_headers_are_merged_whatever_their_case() -> None:
    merged = merge_headers({"X-A": "1", "x-b": "2"}, {"x-a": "3"}, {"not one": "x", "x-c": "\n"})
    assert merged == {"x-a": "3", "x-b": "2"}


def test_settings_show_no_secret() -> None:
    secret = Secret("very-secret-value")
    settings = ProviderSettings(
        kind="bedrock",
        api_key=secret,
        headers={"x-key": secret},
        aws=AwsCredentials(access_key_id="AKID", secret_access_key=secret, session_token=secret),
    )
    assert "very-secret-value" not in repr(settings)
    assert settings.secrets == (secret,) * 4


def test_there_is_someone_to_build_every_kind_that_has_options() -> None:
    assert set(OPTIONS) == {*BUILDERS, *TIMED_BUILDERS} == set(get_args(Kind))


def test_a_provider_that_signs_needs_a_clock() -> None:
    with pytest.raises(InvariantBroken):
        build(ProviderSettings(kind="bedrock", region="us-east-1", api_key=KEY))
