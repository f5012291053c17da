"""Calls to a provider that an administrator asks for: one small call as a test, and the list of the
models that it offers."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast
from uuid import UUID

from msgspec import Struct, structs

from chatd.domain.access.permissions import SystemActor
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.failures import ClassifiedFailure, ModelError
from chatd.domain.model.protocol import (
    Finished,
    ModelCapabilities,
    ModelRequest,
    PromptMessage,
    PromptText,
    ProviderError,
    ProviderFault,
    StreamFailed,
    merge_capabilities,
)
from chatd.domain.ports import Clock, Env, Provider
from chatd.domain.prompt.titles import CHEAP_TITLE_MODELS
from chatd.providers.known_models import (
    OfferedModel,
    known_capabilities,
    list_offered,
    suggest_model,
)
from chatd.providers.provider_config import ProviderConfig, ProviderKind
from chatd.providers.registry import ProviderRegistry, build_provider
from chatd.sealed_secrets import SecretUnreadable
from chatd.services.models.directory import ModelDirectory
from chatd.services.models.provider_bodies import OfferedModelReply, TrialReply
from chatd.services.models.provider_clients import ProviderClients, usable_keys
from chatd.settings.schema import SettingsError
from chatd.store.account.audit import ChangeAuthor
from chatd.store.model import model_configs
from chatd.store.model.providers import StoredProvider

# One small call to a provider, and an explanation of its failure for an administrator.

TRIAL_TIMEOUT_S: Final = 30.0
TRIAL_MAX_OUTPUT_TOKENS: Final = 64
"""Some APIs refuse smaller limits, and a reasoning model needs a few tokens before its answer."""

_CAUSES: Final[dict[str, str]] = {
    "auth": "The provider refuses the key. Check the key, and that its account may use the model.",
    "missing_key": "There is no key. Add one.",
    "usage_limit": "The key works, but its account has no credit or quota left.",
    "rate_limit": "The key works, but the provider limits its rate at the moment.",
    "overloaded": "The provider is reachable, but overloaded at the moment.",
    "timeout": "The provider did not answer in time. Check base_url and the network.",
    "stream_silence_timeout": "The provider did not answer in time.",
}
_TRANSPORT_CAUSES: Final[dict[str, str]] = {
    "dns": "The host name of base_url cannot be resolved.",
    "refused": "Nothing answers at this address and port. Check base_url and that the server runs.",
    "unreachable": "The address cannot be reached. Check base_url, the firewall and the proxy.",
    "tls": "No secure connection. If the server has a certificate of its own, set ca_file to the"
    " authority that signed it; if it speaks http only, begin base_url with http://.",
    "timeout": "The provider took the connection and did not answer in time.",
    "reset": "The connection was cut. Check that base_url has the right scheme, http or https.",
}


class TrialResult(Struct, frozen=True, kw_only=True):
    """`explanation` says what to do; `detail` has the provider's own words, without secrets."""

    ok: bool
    duration_ms: int
    error_kind: str | None = None
    explanation: str | None = None
    detail: str | None = None


def trial_request(model: str) -> ModelRequest:
    prompt = PromptMessage(role="user", parts=(PromptText(text="Say ok."),))
    return ModelRequest(model=model, messages=(prompt,), max_output_tokens=TRIAL_MAX_OUTPUT_TOKENS)


async def try_provider(provider: Provider, model: str, clock: Clock) -> TrialResult:
    began = clock.monotonic()

    def result(fault: ProviderFault | None) -> TrialResult:
        took = int((clock.monotonic() - began) * 1000)
        if fault is None:
            return TrialResult(ok=True, duration_ms=took)
        failure = classify_fault(fault)
        return TrialResult(
            ok=False,
            duration_ms=took,
            error_kind=failure.kind,
            explanation=explain_failure(fault, failure, model),
            detail=failure.error.detail or fault.message,
        )

    try:
        async with (
            asyncio.timeout(TRIAL_TIMEOUT_S),
            provider.stream(trial_request(model)) as events,
        ):
            async for event in events:
                if isinstance(event, StreamFailed):
                    return result(event.fault)
                if isinstance(event, Finished):
                    break
        return result(None)
    except ProviderError as failed:
        return result(failed.fault)
    except TimeoutError:
        return result(ProviderFault(message="no answer in time", transport="timeout"))


def explain_failure(fault: ProviderFault, failure: ClassifiedFailure, model: str) -> str:
    """In words, the most likely cause first."""
    if "proxy" in fault.message:
        cause = fault.message.rstrip(".")
        return f"The proxy is the cause: {cause}. Check proxy, or set it to none."
    if fault.hint is not None and fault.transport is None:
        return fault.hint  # a missing /v1
    if fault.transport is not None:
        return _TRANSPORT_CAUSES[fault.transport]
    if is_unknown_model(fault, failure):
        return f"The provider is reachable and does not have the model {model}."
    if fault.status_code in {200, 301, 302, 307, 308, 404, 405}:
        return "base_url is not the address of this kind of API. Check its path and the kind."
    if failure.kind in _CAUSES:
        return _CAUSES[failure.kind]
    return failure.error.message


def is_unknown_model(fault: ProviderFault, failure: ClassifiedFailure) -> bool:
    if failure.kind != "config":
        return False
    known_types = {"model_not_found", "not_found_error", "deploymentnotfound", "not_found"}
    text = f"{fault.message} {fault.body or ''}".lower()
    return (fault.type or "").lower() in known_types or (
        "model" in text and fault.status_code in {400, 403, 404} and "<html" not in text
    )


LEARN_TIMEOUT_S: Final = 5.0
"""How long a new model waits for what its provider tells of it."""
_REPORTED: Final = ChangeAuthor(actor=SystemActor(reason="list of models"))


class ProviderUnreachable(Conflict):
    """The provider did not give its list of models. The text says why."""

    code = "provider_failed"


class ProviderTrials:
    """Uses the provider as it is stored, also if it is disabled."""

    def __init__(
        self, directory: ModelDirectory, clients: ProviderClients, own: ProviderRegistry, env: Env
    ) -> None:
        self._directory = directory
        self._clients = clients
        self._own = own
        self._env = env

    async def test(self, provider_id: UUID, model: str | None, key_id: UUID | None) -> TrialReply:
        provider = await self._find(provider_id)
        try:
            async with self._client(provider, key_id) as client:
                chosen = model or await self._any_model(provider, client)
                result = await try_provider(client, chosen, self._env.clock)
                return TrialReply(model=chosen, **structs.asdict(result))
        except ProviderError as failed:
            return _failed(model, failed.fault)
        except ModelError as error:
            return _refused(model, error.classified)

    async def list_offers(self, provider_id: UUID) -> Sequence[OfferedModelReply]:
        """Also stores what the provider tells of models that are configured. Raises
        ProviderUnreachable."""
        provider = await self._find(provider_id)
        kind = cast("ProviderKind", provider.kind)
        try:
            async with self._client(provider, None) as client:
                offers = await list_offered(client, kind)
        except ProviderError as failed:
            failure = classify_fault(failed.fault)
            text = explain_failure(failed.fault, failure, "")
            raise ProviderUnreachable(f"{text} ({failed.fault.message})") from None
        except ModelError as error:
            raise ProviderUnreachable(error.message) from None
        used: dict[str, list[str]] = {}
        for one in await self._directory.all():
            if one.provider_id == provider.id and not one.is_deleted:
                used.setdefault(one.config.model, []).append(one.config.name)
        await self._store(provider, offers, used.keys())
        first = suggest_model(kind, [one.model for one in offers])
        return [
            OfferedModelReply(
                model=one.model,
                display_name=one.display_name,
                capabilities=merge_capabilities(
                    one.capabilities, known_capabilities(kind, one.model)
                ),
                configured_as=tuple(used.get(one.model, ())),
                suggested=one.model == first,
            )
            for one in offers
        ]

    async def learn(self, provider_id: UUID) -> None:
        """Store what the provider tells of its configured models, if it tells it soon: a new model
        then has its capabilities at once."""
        try:
            async with asyncio.timeout(LEARN_TIMEOUT_S):
                await self.list_offers(provider_id)
        except (TimeoutError, Conflict, NotFound) as error:
            self._env.emit("models_not_listed", provider_id=provider_id, reason=str(error))

    async def _store(
        self, provider: StoredProvider, offers: Sequence[OfferedModel], used: Collection[str]
    ) -> None:
        told = {
            one.model: one.capabilities
            for one in offers
            if one.model in used and one.capabilities != ModelCapabilities()
        }
        if told:
            async with self._directory.change(
                "model", provider.id, _REPORTED, "report", ("capabilities",)
            ) as session:
                await model_configs.set_reported(session, provider.id, told)

    async def _find(self, provider_id: UUID) -> StoredProvider:
        found = await self._directory.providers()
        provider = next((one for one in found if one.id == provider_id), None)
        if provider is None:
            raise NotFound("There is no such provider.")
        return provider

    @asynccontextmanager
    async def _client(
        self, provider: StoredProvider, key_id: UUID | None
    ) -> AsyncGenerator[Provider]:
        """A client of its own, with one key. Raises ProviderError and ModelError."""
        client = build_provider(self._config(provider, key_id), self._env.clock)
        try:
            yield client
        finally:
            await client.close()

    def _config(self, provider: StoredProvider, key_id: UUID | None) -> ProviderConfig:
        if provider.source != "database":
            config = self._own.providers.get(provider.name)
            if config is None:
                text = f"The provider {provider.name} is not configured on this server."
                raise ProviderUnreachable(f"{text} Ask a server that declares it.")
            return config
        keys = {key.id: key for key in usable_keys(provider)}
        if key_id is not None and key_id not in keys:
            raise InvalidInput("key_id", "the provider has no such key")
        key = keys[key_id] if key_id is not None else next(iter(keys.values()), None)
        try:
            opened = None if key is None else self._clients.open_key(key)
            secrets = self._clients.open_secrets(provider)
            return self._clients.config(provider, secrets, opened)
        except (SecretUnreadable, SettingsError) as error:
            raise ProviderError(ProviderFault(message=error.message, type="config")) from None

    async def _any_model(self, provider: StoredProvider, client: Provider) -> str:
        """One that is configured, a small known one, or the first of the provider's list."""
        models = await self._directory.all()
        mine = [one for one in models if one.provider_id == provider.id and not one.is_deleted]
        if mine:
            return mine[0].config.model
        small = [one.model for one in CHEAP_TITLE_MODELS if one.provider == provider.kind]
        if small:
            return small[0]
        offers = await list_offered(client, cast("ProviderKind", provider.kind))
        if not offers:
            raise ProviderError(ProviderFault(message="the provider lists no model", type="config"))
        return offers[0].model


def _failed(model: str | None, fault: ProviderFault) -> TrialReply:
    failure = classify_fault(fault)
    text = explain_failure(fault, failure, model or "")
    detail = failure.error.detail or fault.message
    return structs.replace(_refused(model, failure), explanation=text, detail=detail)


def _refused(model: str | None, failure: ClassifiedFailure) -> TrialReply:
    return TrialReply(
        ok=False,
        model=model or "",
        duration_ms=0,
        error_kind=failure.kind,
        explanation=failure.error.message,
    )
