"""Building providers, and errors of incomplete configs."""

from typing import get_args

import msgspec
import pytest

from chatd.domain.errors import InvariantBroken
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import ProviderError
from chatd.providers.provider_config import (
    AwsCredentials,
    ProviderConfig,
    ProviderKind,
    Secret,
    base_url,
    join_url,
    merge_headers,
)
from chatd.providers.registry import (
    CLOCKED_PROVIDER_CLASSES,
    OPTION_CLASSES,
    PROVIDER_CLASSES,
    build_provider,
)

KEY = Secret("sk-test-0123456789")
PLAIN = ProviderConfig(kind="anthropic", api_key=KEY)


def config_failure(settings: ProviderConfig) -> tuple[str, str]:
    """The kind and the message of the failure."""
    with pytest.raises(ProviderError) as caught:
        build_provider(settings)
    classified = classify_fault(caught.value.fault)
    assert not classified.retryable
    return classified.kind, classified.error.detail or ""


async def test_the_name_of_a_provider_defaults_to_its_kind() -> None:
    for settings, name in ((PLAIN, "anthropic"), (named("work"), "work")):
        provider = build_provider(settings)
        assert provider.name == name
        await provider.close()


def named(name: str) -> ProviderConfig:
    return msgspec.structs.replace(PLAIN, name=name)


@pytest.mark.covers("providers-16")
@pytest.mark.parametrize("key", [None, Secret(""), Secret(" \n")])
def test_a_missing_key_names_the_setting(key: Secret | None) -> None:
    kind, words = config_failure(msgspec.structs.replace(PLAIN, api_key=key, name="work"))
    assert kind == "missing_key"
    assert "work" in words
    assert "api_key" in words
    assert "ANTHROPIC_API_KEY" in words


@pytest.mark.covers("providers-16")
def test_an_invalid_key_is_reported_and_not_shown() -> None:
    kind, words = config_failure(msgspec.structs.replace(PLAIN, api_key=Secret("sk-a\nX-Evil: 1")))
    assert kind == "config"
    assert "Evil" not in words


async def test_white_space_around_a_key_is_removed() -> None:
    await build_provider(
        msgspec.structs.replace(PLAIN, api_key=Secret(" sk-test-0123456789\n"))
    ).close()


@pytest.mark.parametrize(
    "url",
    [
        *("example.org", "ftp://example.org", "http://", "//example.org", "http://[::1"),
        *("http://host:0", "http://host:99999", "http://host:port", "https://me:pass@host"),
    ],
)
def test_an_invalid_base_url_is_reported(url: str) -> None:
    kind, words = config_failure(msgspec.structs.replace(PLAIN, base_url=url))
    assert kind == "config"
    assert "base_url" in words
    assert "pass@" not in words


def test_a_base_url_loses_only_its_trailing_slash() -> None:
    for given, kept in (
        ("https://host/", "https://host"),
        (" http://host:8080/a/b/ ", "http://host:8080/a/b"),
        ("https://host/a?version=1#x", "https://host/a?version=1"),
    ):
        settings = msgspec.structs.replace(PLAIN, base_url=given)
        assert base_url(settings, "https://default") == kept
    assert base_url(PLAIN, "https://default") == "https://default"


def test_a_path_is_added_before_the_query() -> None:
    assert join_url("https://host/a?version=1", "/b") == "https://host/a/b?version=1"
    assert join_url("https://host", "/b") == "https://host/b"


@pytest.mark.covers("providers-17")
def test_headers_are_merged_without_regard_to_case() -> None:
    merged = merge_headers({"X-A": "1", "x-b": "2"}, {"x-a": "3"}, {"not one": "x", "x-c": "\n"})
    assert merged == {"x-a": "3", "x-b": "2"}


def test_a_config_shows_no_secret() -> None:
    secret = Secret("very-secret-value")
    settings = ProviderConfig(
        kind="bedrock",
        api_key=secret,
        headers={"x-key": secret},
        aws=AwsCredentials(access_key_id="AKID", secret_access_key=secret, session_token=secret),
    )
    assert "very-secret-value" not in repr(settings)
    assert settings.secrets == (secret,) * 4


def test_every_kind_with_options_has_a_provider() -> None:
    assert (
        set(OPTION_CLASSES)
        == {*PROVIDER_CLASSES, *CLOCKED_PROVIDER_CLASSES}
        == set(get_args(ProviderKind))
    )


def test_a_signing_provider_needs_a_clock() -> None:
    with pytest.raises(InvariantBroken):
        build_provider(ProviderConfig(kind="bedrock", region="us-east-1", api_key=KEY))
