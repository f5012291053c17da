"""Connects a provider, from its key to its models: what each vendor needs, and the steps that the
command `chatd models add` and the terminal's `/connect` share.

Every step can be repeated: a provider that exists is used again, and a key that fails its test is
taken back.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.errors import ApiError
from chatd.client.resources import (
    Me,
    ModelChoice,
    OfferedModel,
    Provider,
    Trial,
    UserKey,
)
from chatd.client.server import ServerApi
from chatd.domain.access.permissions import (
    ROLES,
    Permission,
    UserActor,
    has_permission,
)
from chatd.domain.errors import ChatdError

MAX_PROVIDERS: Final = 1000
MAX_OFFERED: Final = 5000
MAX_MODELS: Final = 5000
_MAX_NAME_CHARS: Final = 60


class Vendor(Struct, frozen=True, kw_only=True):
    """What a person is asked for. `needs_address`: the vendor has none of its own. `key_note` says
    what an empty key means; empty: a key is needed."""

    kind: str
    title: str
    needs_address: bool = False
    address_hint: str = ""
    needs_region: bool = False
    key_note: str = ""


VENDORS: Final[tuple[Vendor, ...]] = (
    Vendor(kind="anthropic", title="Anthropic"),
    Vendor(kind="openai", title="OpenAI"),
    Vendor(kind="google", title="Google Gemini"),
    Vendor(kind="openrouter", title="OpenRouter"),
    Vendor(
        kind="openai-compat",
        title="A server with OpenAI's API, by its address",
        needs_address=True,
        address_hint="http://127.0.0.1:11434/v1",
        key_note="empty if it needs none",
    ),
    Vendor(
        kind="azure",
        title="Azure OpenAI",
        needs_address=True,
        address_hint="https://NAME.openai.azure.com/openai/v1",
    ),
    Vendor(
        kind="bedrock",
        title="Amazon Bedrock",
        needs_region=True,
        key_note="empty for the credentials of the server's machine",
    ),
    Vendor(kind="vercel", title="Vercel AI Gateway"),
)


class SetupFailed(ChatdError):
    """The provider was not connected. The text says why, and what is stored."""

    code = "provider_failed"


class NotPermitted(ChatdError):
    """The user may not connect a provider here."""

    code = "forbidden"


class WantedProvider(Struct, frozen=True, kw_only=True):
    """`model` is the one that the test calls; None: one that the server chooses."""

    name: str
    kind: str
    url: str | None = None
    region: str | None = None
    model: str | None = None


def find_vendor(word: str) -> Vendor | None:
    return next((one for one in VENDORS if one.kind == word.strip().lower()), None)


def suggest_name(vendor: Vendor, url: str | None) -> str:
    """A provider with its own address is named after its host; the others after their kind."""
    if vendor.kind != "openai-compat" or not url:
        return vendor.kind
    host = urlsplit(url if "://" in url else f"http://{url}").hostname or ""
    local = "local" if host in ("127.0.0.1", "::1", "localhost") else host
    return model_slug(local)[:_MAX_NAME_CHARS] or vendor.kind


def model_slug(text: str) -> str:
    """`Qwen/Qwen3` becomes `qwen-qwen3`: what `-m` takes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def may(me: Me, permission: Permission) -> bool:
    """Judged by the role of the user and the scopes of the token. The server checks again."""
    if me.user.role not in ROLES:  # of a newer server
        return True
    scopes = None if me.scopes is None else frozenset(me.scopes)
    actor = UserActor(user_id=me.user.id, role=me.user.role, scopes=scopes)
    return has_permission(actor, permission)


async def list_key_providers(api: ServerApi, me: Me) -> list[UserKey]:
    """The providers that take a key of this user's own. Raises NotPermitted if there is none."""
    found = await api.list_user_keys().items(MAX_PROVIDERS) if may(me, "account.write") else []
    if not found:
        raise NotPermitted(
            "Only an administrator connects providers here, and none of them takes keys of users."
            " Ask an administrator to add the provider, or to allow keys of users for it."
        )
    return found


async def connect_provider(
    api: ServerApi, wanted: WantedProvider, key: str, *, keeps: bool = False
) -> tuple[Provider, Trial]:
    """One small call shows that it works. What fails the test is removed again, unless `keeps`. An
    existing provider gets the key after those that it has. Raises SetupFailed."""
    found = await api.list_providers(include_disabled=True).items(MAX_PROVIDERS)
    known = next((one for one in found if one.name == wanted.name), None)
    if known is None:
        made = await create_provider(api, wanted, key)
        tested = await api.test_provider(made.id, wanted.model)
        if tested.ok or keeps:
            return made, tested
        await api.delete_provider(made.id)
        raise SetupFailed(f"{failure_text(tested)} Nothing was stored.")
    is_other_place = wanted.url is not None and wanted.url.rstrip("/") != (
        known.base_url or ""
    ).rstrip("/")
    if known.kind != wanted.kind or is_other_place:
        at = f" at {known.base_url}" if known.base_url else ""
        raise SetupFailed(
            f"There is another provider {known.name} already: {known.kind}{at}. Nothing was"
            " stored. Give this one another name."
        )
    added = (await api.create_provider_key(known.id, key)).id if key else None
    tested = await api.test_provider(known.id, wanted.model, key_id=added)
    if tested.ok or keeps:
        return known, tested
    if added is not None:
        await api.delete_provider_key(known.id, added)
    end = "The new key was not stored." if key else f"{known.name} was there before, and stays."
    raise SetupFailed(f"{failure_text(tested)} {end}")


async def create_provider(api: ServerApi, wanted: WantedProvider, key: str) -> Provider:
    return await api.create_provider(
        name=wanted.name,
        kind=wanted.kind,
        base_url=wanted.url,
        region=wanted.region,
        api_keys=[key] if key else [],
    )


async def list_offers(api: ServerApi, provider: Provider) -> list[OfferedModel]:
    """The models that the provider lists, the suggested one first. Raises ApiError if it gives no
    list."""
    offered = await api.list_offered_models(provider.id).items(MAX_OFFERED)
    return sorted(offered, key=lambda one: not one.suggested)


async def add_models(api: ServerApi, provider: Provider, ids: Sequence[str]) -> list[ModelChoice]:
    """Add models by their names at the provider, except those that are configured already."""
    known = await api.list_models(include_disabled=True).items(MAX_MODELS)
    mine = {one.model: one for one in known if one.provider == provider.name and not one.deleted}
    return [mine.get(one) or await create_model(api, provider.name, one) for one in ids]


async def make_default(
    api: ServerApi, models: Sequence[ModelChoice], name: str
) -> list[ModelChoice]:
    """Make the model with this name the default; returns the models as they are then."""
    chosen = next(one for one in models if one.name == name)
    if chosen.is_default:
        return list(models)
    made = await api.update_model(chosen.id, is_default=True)
    return [made if one.id == made.id else replace(one, is_default=False) for one in models]


async def create_model(
    api: ServerApi, provider: str, model: str, *, is_default: bool | None = None
) -> ModelChoice:
    """Name it after the model; if another provider has the same one, after both."""
    plain = model_slug(model)
    try:
        return await api.create_model(
            name=plain, provider=provider, model=model, is_default=is_default
        )
    except ApiError as error:
        if error.code != "name_taken":
            raise
        return await api.create_model(
            name=f"{provider}-{plain}", provider=provider, model=model, is_default=is_default
        )


def success_text(provider: Provider, tested: Trial) -> str:
    return f"{provider.name} works: {tested.model} answered in {tested.duration_ms} ms."


def failure_text(tested: Trial) -> str:
    detail = f"\n  {tested.detail}\n " if tested.detail else ""
    return f"The test failed: {tested.explanation or 'the provider gave no reason'}{detail}"


def model_facts(model: ModelChoice) -> str:
    known = model.capabilities
    facts = [
        "the default" if model.is_default else "",
        f"{known.context_limit:,} tokens of context" if known.context_limit else "",
        "reads images" if known.images else "",
        f"efforts {', '.join(known.efforts)}" if known.efforts else "",
    ]
    return f"{model.name} is there: {', '.join(fact for fact in facts if fact) or 'ready'}."
