"""The work of `chatd models` and `chatd providers`: list models; add a provider with its first
model, test it, list and remove providers."""

import getpass
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_request import read_bounded
from chatd.cli.output import print_json, print_notice, print_table, print_text
from chatd.client.errors import ApiError
from chatd.client.provider_setup import (
    MAX_MODELS,
    MAX_OFFERED,
    MAX_PROVIDERS,
    SetupFailed,
    WantedProvider,
    create_model,
    create_provider,
    failure_text,
    model_facts,
    success_text,
)
from chatd.client.resources import ModelChoice, ModelFallback, Provider
from chatd.client.server import ServerApi
from chatd.domain.model.protocol import FALLBACK_REASONS
from chatd.terminal.composer.model_texts import efforts_of

MAX_LISTED_MODELS = 1000
_MODEL_HEADINGS = ("NAME", "PROVIDER", "MODEL", "CONTEXT", "EFFORT", "")


async def list_models(api: ServerApi, *, every: bool, as_json: bool) -> None:
    listed = api.list_models(include_disabled=every)
    if as_json:
        print_json(await listed.raw_items(MAX_LISTED_MODELS))
        return
    print_table(
        _MODEL_HEADINGS, [model_row(model) for model in await listed.items(MAX_LISTED_MODELS)]
    )


def model_row(model: ModelChoice) -> tuple[str, ...]:
    notes = ["default" if model.is_default else "", "" if model.enabled else "disabled"]
    return (
        model.name,
        model.provider,
        model.model,
        context_text(model),
        effort_text(model),
        ", ".join(note for note in notes if note),
    )


def context_text(model: ModelChoice) -> str:
    learned = model.learned_context
    limit = model.context_limit or model.capabilities.context_limit
    if limit is None:
        return "" if learned is None else f"below {learned.tokens:,} (learned)"
    is_learned = learned is not None and learned.tokens == limit and not learned.is_bound
    return f"{limit:,} (learned)" if is_learned else f"{limit:,}"


def effort_text(model: ModelChoice) -> str:
    """What `--effort` may be, such as `low to high`; empty if that is not known."""
    efforts, found = efforts_of(model), model.reasoning_effort
    if efforts:
        return efforts[0] if len(efforts) == 1 else f"{efforts[0]} to {efforts[-1]}"
    return "" if found is None or found.max is None else f"up to {found.max}"


MAX_SHOWN_MODELS: Final = 20
MAX_KEY_BYTES: Final = 16 * 1024
_PROVIDER_HEADINGS: Final = ("NAME", "KIND", "KEY", "ADDRESS", "")


class NewProvider(Struct, frozen=True, kw_only=True):
    """`model` is the first model; None: the person chooses from the provider's list, or the one
    that the server suggests is taken. `keeps`: the provider stays even if its test fails."""

    name: str
    kind: str
    url: str | None = None
    region: str | None = None
    model: str | None = None
    adds_model: bool = True
    keeps: bool = False


def has_person() -> bool:
    """At a terminal, who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def read_answer(question: str) -> str:
    """Asked on standard error, so that standard output stays for programs."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def read_key(key_env: str | None, key_file: Path | None = None, *, about: str = "") -> str:
    """From the environment, a file, hidden from a terminal, or the first line of standard input:
    other users of the machine can read the arguments of a process. Empty: none."""
    if key_env is not None and key_file is not None:
        raise UsageProblem("give --key-env or --key-file, not both")
    if key_env is not None:
        key = os.environ.get(key_env, "").strip()
        if not key:
            raise UsageProblem(f"--key-env: {key_env} is not set")
        return key
    if key_file is not None and str(key_file) != "-":
        try:
            with key_file.open("rb") as file:
                read = read_bounded(file, "--key-file", MAX_KEY_BYTES)
        except OSError as error:
            raise UsageProblem(f"--key-file: {key_file}: {error.strerror}") from None
        text = read.decode(errors="replace").strip()
        if not text:
            raise UsageProblem(f"--key-file: {key_file} is empty")
        return text
    if key_file is None and sys.stdin.isatty():
        return getpass.getpass(f"API key ({about or 'empty for none'}): ").strip()
    return sys.stdin.readline(MAX_KEY_BYTES).strip()


async def add_provider(api: ServerApi, wanted: NewProvider, key: str, *, as_json: bool) -> None:
    asked = WantedProvider(
        name=wanted.name,
        kind=wanted.kind,
        url=wanted.url,
        region=wanted.region,
        model=wanted.model,
    )
    made = await create_provider(api, asked, key)
    tested = await api.test_provider(made.id, wanted.model)
    if not tested.ok:
        if not wanted.keeps:
            await api.delete_provider(made.id)
        end = "It is stored." if wanted.keeps else "Nothing was stored; --keep stores it anyway."
        raise SetupFailed(f"{failure_text(tested)}\n  {end}")
    print_notice(success_text(made, tested))
    model = await _add_first_model(api, made, wanted) if wanted.adds_model else None
    if as_json:
        print_json({"provider": made, "test": tested, "model": model})


async def _add_first_model(
    api: ServerApi, provider: Provider, wanted: NewProvider
) -> ModelChoice | None:
    name = wanted.model or await _choose_first_model(api, provider)
    if name is None:
        print_notice("Add a model on the page, or with chatd providers add-model.")
        return None
    return await add_model(api, provider.name, name, None)


async def add_model(
    api: ServerApi, provider: str, model: str, name: str | None, *, is_default: bool | None = None
) -> ModelChoice:
    if name is None:
        made = await create_model(api, provider, model, is_default=is_default)
    else:
        made = await api.create_model(
            name=name, provider=provider, model=model, is_default=is_default
        )
    print_text(made.name)
    print_notice(model_facts(made))
    return made


async def _choose_first_model(api: ServerApi, provider: Provider) -> str | None:
    """A person chooses from the provider's list; else the suggested one is taken. None if the
    provider does not list its models, or nothing is chosen."""
    try:
        offered = await api.list_offered_models(provider.id).items(MAX_OFFERED)
    except ApiError as error:
        print_notice(error.message)
        return None
    first = next((one.model for one in offered if one.suggested), None)
    if not has_person():
        return first
    for one in offered[:MAX_SHOWN_MODELS]:
        print_notice(f"  {one.model}")
    if len(offered) > MAX_SHOWN_MODELS:
        print_notice(f"  and {len(offered) - MAX_SHOWN_MODELS} more")
    return read_answer(f"The first model [{first or 'none'}]: ") or first


async def try_provider(api: ServerApi, name: str, model: str | None, *, as_json: bool) -> None:
    provider = await _find(api, name)
    tested = await api.test_provider(provider.id, model)
    if as_json:
        print_json(tested)
    if not tested.ok:
        raise SetupFailed(failure_text(tested))
    print_notice(success_text(provider, tested))


async def list_providers(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_providers(include_disabled=True)
    if as_json:
        print_json(await listed.raw_items(MAX_PROVIDERS))
        return
    print_table(_PROVIDER_HEADINGS, [_row(one) for one in await listed.items(MAX_PROVIDERS)])


async def show_or_set_fallbacks(
    api: ServerApi, name: str, given: Sequence[str], *, removes: bool, as_json: bool
) -> None:
    """`given` are names of models, each perhaps with reasons: `gpt:outage,overload`."""
    if given and removes:
        raise UsageProblem("name fallbacks, or say --none, not both")
    found = await api.list_models(include_disabled=True).items(MAX_MODELS)
    model = next((one for one in found if one.name == name and not one.deleted), None)
    if model is None:
        raise UsageProblem(f"there is no model {name}; chatd models lists them")
    if given or removes:
        names = [one.name for one in found]
        chain = [_read_fallback(one, names) for one in given]
        model = await api.update_model(model.id, fallbacks=chain)
    if as_json:
        print_json(model.fallbacks)
        return
    rows = [(one.model, ", ".join(one.on or FALLBACK_REASONS)) for one in model.fallbacks]
    print_table(("FALLBACK", "ON"), rows)


def _read_fallback(text: str, names: Collection[str]) -> ModelFallback:
    """The name of a model may have colons itself, such as `qwen3:8b`."""
    name, colon, reasons = text.rpartition(":")
    if not colon or text in names:
        return ModelFallback(model=text)
    return ModelFallback(model=name, on=tuple(part.strip() for part in reasons.split(",")))


async def remove_provider(api: ServerApi, name: str, *, with_models: bool) -> None:
    provider = await _find(api, name)
    if with_models:
        for model in await api.list_models(include_disabled=True).items(MAX_MODELS):
            if model.provider == name and not model.deleted:
                await api.delete_model(model.id)
    await api.delete_provider(provider.id)
    print_notice(f"deleted {provider.name}")


async def _find(api: ServerApi, name: str) -> Provider:
    found = await api.list_providers(include_disabled=True).items(MAX_PROVIDERS)
    provider = next((one for one in found if one.name == name), None)
    if provider is None:
        known = ", ".join(one.name for one in found)
        raise UsageProblem(f"there is no provider {name}; there are {known}")
    return provider


def _row(provider: Provider) -> tuple[str, ...]:
    notes = ["" if provider.enabled else "disabled", provider.source]
    return (
        provider.name,
        provider.kind,
        "yes" if provider.has_api_key else "",
        provider.base_url or "",
        ", ".join(note for note in notes if note != "database" and note),
    )
