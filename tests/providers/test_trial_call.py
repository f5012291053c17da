"""A test call explains its failure in words, without secrets."""

from pathlib import Path

import pytest

from chatd.clock import SystemClock
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import ProviderFault
from chatd.providers.provider_config import HttpConfig, ProviderConfig, Secret, provider_proxies
from chatd.providers.registry import build_provider
from chatd.services.models.provider_trials import TrialResult, explain_failure, try_provider
from tests.support.providers.certificate import self_signed
from tests.support.providers.openai_chat import FakeCompatible, stream
from tests.support.providers.server import Reply


async def attempt(base_url: str, proxy: str | None = None) -> TrialResult:
    http = HttpConfig() if proxy is None else HttpConfig(proxies=provider_proxies(proxy))
    config = ProviderConfig(
        kind="openai-compat",
        name="house",
        base_url=base_url,
        api_key=Secret("sk-very-secret"),
        http=http,
    )
    provider = build_provider(config)
    try:
        return await try_provider(provider, "m", SystemClock())
    finally:
        await provider.close()


async def test_a_provider_that_answers_passes() -> None:
    async with FakeCompatible.running() as fake:
        fake.script(stream("text"))
        result = await attempt(f"{fake.url}/v1")
    assert (result.ok, result.explanation) == (True, None)
    assert fake.requests[0].json["max_tokens"] == 64


async def test_a_missing_version_in_the_address_is_named() -> None:
    async with FakeCompatible.running() as fake:
        result = await attempt(fake.url)
    assert result.explanation == f'The base_url has no /v1. Try base_url = "{fake.url}/v1".'


async def test_a_refused_key_is_named_without_the_key() -> None:
    body = b'{"error": {"message": "Incorrect API key: sk-very-secret", "code": "invalid_api_key"}}'
    async with FakeCompatible.running() as fake:
        fake.scripted.append(
            Reply(status=401, headers={"content-type": "application/json"}, steps=(body,))
        )
        result = await attempt(f"{fake.url}/v1")
    assert result.error_kind == "auth"
    assert str(result.explanation).startswith("The provider refuses the key.")
    assert "sk-very-secret" not in repr(result)


async def test_a_missing_model_is_named() -> None:
    body = b'{"error": {"message": "The model m does not exist", "code": "model_not_found"}}'
    async with FakeCompatible.running() as fake:
        fake.scripted.append(
            Reply(status=404, headers={"content-type": "application/json"}, steps=(body,))
        )
        result = await attempt(f"{fake.url}/v1")
    assert result.explanation == "The provider is reachable and does not have the model m."


async def test_an_address_where_nothing_listens_is_named() -> None:
    result = await attempt("http://127.0.0.1:1/v1")
    assert str(result.explanation).startswith("Nothing answers at this address and port.")


async def test_an_untrusted_certificate_is_named(tmp_path: Path) -> None:
    async with FakeCompatible.running(tls=self_signed(tmp_path)) as fake:
        result = await attempt(f"{fake.url}/v1")
    assert str(result.explanation).startswith("No secure connection.")


async def test_a_proxy_that_does_not_answer_is_named() -> None:
    result = await attempt("http://model.invalid/v1", proxy="http://127.0.0.1:1")
    assert str(result.explanation).startswith("The proxy is the cause: no connection to the proxy")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ProviderFault(message="", transport="dns"), "host name of base_url"),
        (ProviderFault(message="", transport="timeout"), "did not answer in time"),
        (ProviderFault(message="", transport="reset"), "http or https"),
        (ProviderFault(message="", transport="unreachable"), "firewall"),
        (ProviderFault(message="", type="missing_key"), "There is no key"),
        (ProviderFault(message="", type="insufficient_quota"), "no credit or quota"),
        (ProviderFault(message="status 429", status_code=429), "limits its rate"),
        (ProviderFault(message="", type="overloaded_error"), "overloaded"),
        (ProviderFault(message="status 405", status_code=405), "path and the kind"),
        (ProviderFault(message="the reply is a web page", status_code=200, type="config"), "path"),
    ],
)
def test_each_failure_is_explained(fault: ProviderFault, words: str) -> None:
    assert words in explain_failure(fault, classify_fault(fault), "m")
