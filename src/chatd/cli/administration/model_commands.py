"""`chatd models`: list the models, and connect a provider with its models, step by step on a
terminal or at once in a script."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec import Struct

from chatd.cli.options import (
    AsJson,
    DataDir,
    Profile,
    ServerFinder,
    TokenFile,
    Url,
    with_target,
)

if TYPE_CHECKING:
    from chatd.client.provider_setup import Vendor
    from chatd.client.resources import Me, ModelChoice, OfferedModel, Provider
    from chatd.client.server import ServerApi

MAX_SHOWN_OFFERS: Final = 20

models: Final = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

Every = Annotated[bool, typer.Option("--all", help="Also those that are disabled")]


@models.callback()
def list_models(
    context: typer.Context,
    *,
    every: Every = False,
    url: Url = None,
    token_file: TokenFile = None,
    profile: Profile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the models that chats can use; with add, connect a provider and its models."""
    from chatd.cli.administration import providers as work
    from chatd.cli.api_session import run_command
    from chatd.cli.target import find_server

    if context.invoked_subcommand is not None:
        if every or as_json or any((url, token_file, profile, data_dir)):
            raise typer.BadParameter(f"write the options after {context.invoked_subcommand}")
        return
    run_command(
        lambda: find_server(url, token_file, profile, data_dir).server,
        lambda api: work.list_models(api, every=every, as_json=as_json),
    )


class Wanted(Struct, frozen=True, kw_only=True):
    """The options of `chatd models add`; what is not given is asked for, if there is a person."""

    vendor: str | None
    name: str | None
    url: str | None
    region: str | None
    key_env: str | None
    key_file: Path | None
    models: tuple[str, ...]
    makes_default: bool
    is_own_key: bool
    as_json: bool


@models.command("add")
@with_target
def add_models(
    vendor: Annotated[
        str | None,
        typer.Argument(
            metavar="[VENDOR]",
            help="anthropic, openai, google, openrouter, azure, bedrock, vercel, or openai-compat"
            " for a server by its address [asked for]",
            show_default=False,
        ),
    ] = None,
    *,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The provider's name here [the vendor's]"),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Its address [the vendor's]")
    ] = None,
    region: Annotated[str | None, typer.Option(metavar="REGION", help="For bedrock")] = None,
    key_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="The environment variable that has the key"),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Read the key from this file; - is standard input [asked for]"
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="ID",
            help="A model of the provider, may be repeated [chosen from its list]",
        ),
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Chats that name no model use the first of them")
    ] = False,
    own_key: Annotated[
        bool, typer.Option("--own-key", help="Only store a key that your own chats use")
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Connect a provider: its key, one small call as a test, its models, the default.

    Asks for what is not given. A key is never an argument: other users of the computer could read
    it. A provider that is there already is used again, and a new key comes after those that it
    has. What fails its test is not stored.

    Users who are not administrators can store a key of their own for providers that take such keys.
    """
    from chatd.cli.api_session import run_command

    wanted = Wanted(
        vendor=vendor,
        name=name,
        url=base_url,
        region=region,
        key_env=key_env,
        key_file=key_file,
        models=tuple(model or ()),
        makes_default=default,
        is_own_key=own_key,
        as_json=as_json,
    )
    run_command(server, lambda api: _connect(api, wanted))


async def _connect(api: "ServerApi", wanted: Wanted) -> None:
    from chatd.cli.administration.providers import read_key
    from chatd.cli.output import print_json, print_notice, print_text
    from chatd.client import provider_setup as setup

    me = await api.get_me()
    if wanted.is_own_key or not setup.may(me, "config.write"):
        await _store_own_key(api, me, wanted)
        return
    vendor = _choose_vendor(wanted)
    url = wanted.url
    if url is None and vendor.needs_address:
        url = _ask(f"Address, such as {vendor.address_hint}: ", "--base-url")
    region = wanted.region
    if region is None and vendor.needs_region:
        region = _ask("Region, such as eu-west-1: ", "--region")
    suggested = setup.suggest_name(vendor, url)
    asked = setup.WantedProvider(
        name=wanted.name or suggested,
        kind=vendor.kind,
        url=url,
        region=region,
        model=wanted.models[0] if wanted.models else None,
    )
    key = read_key(wanted.key_env, wanted.key_file, about=vendor.key_note or "not shown")
    if not key and not vendor.key_note:
        known = await api.list_providers(include_disabled=True).items(setup.MAX_PROVIDERS)
        if not any(one.name == asked.name and one.has_api_key for one in known):
            raise setup.SetupFailed(f"{vendor.title} needs a key. Nothing was stored.")
    print_notice(f"Testing {asked.name} ...")
    provider, tested = await setup.connect_provider(api, asked, key)
    print_notice(setup.success_text(provider, tested))
    chosen = await _choose_models(api, provider, wanted)
    made = await setup.add_models(api, provider, chosen)
    if made and wanted.makes_default:
        made = await setup.make_default(api, made, made[0].name)
    elif made and not any(one.is_default for one in made):
        made = await _offer_default(api, made)
    for one in made:
        print_notice(setup.model_facts(one))
    if wanted.as_json:
        print_json({"provider": provider, "test": tested, "models": made})
    else:
        for one in made:
            print_text(one.name)


def _choose_vendor(wanted: Wanted) -> "Vendor":
    """Raises UsageProblem."""
    from chatd.cli.administration.providers import has_person
    from chatd.cli.api_session import UsageProblem
    from chatd.cli.output import print_notice
    from chatd.client.provider_setup import VENDORS, find_vendor

    kinds = ", ".join(one.kind for one in VENDORS)
    word = wanted.vendor
    if word is None:
        if not has_person():
            raise UsageProblem(f"name a vendor: {kinds}")
        for number, one in enumerate(VENDORS, 1):
            print_notice(f"  {number}  {one.title}")
        word = _ask("Which one? ", "the vendor")
        if word.isdigit() and 1 <= int(word) <= len(VENDORS):
            return VENDORS[int(word) - 1]
    if (vendor := find_vendor(word)) is None:
        raise UsageProblem(f"there is no vendor {word!r}; there are {kinds}")
    return vendor


async def _choose_models(api: "ServerApi", provider: "Provider", wanted: Wanted) -> tuple[str, ...]:
    """By their names at the provider. A script gets the suggested one. Empty: none was chosen, or
    the provider lists none."""
    from chatd.cli.administration.providers import has_person, read_answer
    from chatd.cli.output import print_notice
    from chatd.client.errors import ApiError
    from chatd.client.provider_setup import list_offers

    if wanted.models:
        return wanted.models
    try:
        offered = await list_offers(api, provider)
    except ApiError as error:
        print_notice(f"{error.message} Name a model with -m.")
        return ()
    if not has_person():
        return tuple(one.model for one in offered[:1])
    shown = offered
    while True:
        for number, one in enumerate(shown[:MAX_SHOWN_OFFERS], 1):
            print_notice(f"  {number:2}  {one.model}{_mark(one)}")
        if len(shown) > MAX_SHOWN_OFFERS:
            print_notice(f"      and {len(shown) - MAX_SHOWN_OFFERS} more: /word finds some")
        first = f" [{shown[0].model}]" if shown else ""
        answer = read_answer(f"Models, by number or name{first}: ")
        if answer.startswith("/"):
            word = answer[1:].strip().lower()
            shown = [one for one in offered if word in one.model.lower()]
            continue
        chosen, unknown = read_choice(answer, shown, offered)
        if not unknown:
            return chosen
        print_notice(f"There is no {unknown}.")


def _mark(offer: "OfferedModel") -> str:
    if offer.configured_as:
        return f"  (is here as {', '.join(offer.configured_as)})"
    return "  (suggested)" if offer.suggested else ""


def read_choice(
    answer: str, shown: "Sequence[OfferedModel]", offered: "Sequence[OfferedModel]"
) -> tuple[tuple[str, ...], str]:
    """The chosen models, without doubles, and the first word that is none. Empty is the first one
    that is shown."""
    words = answer.replace(",", " ").split() or ([shown[0].model] if shown else [])
    names = {one.model for one in offered}
    chosen: list[str] = []
    for word in words:
        is_number = word.isdigit() and 1 <= int(word) <= min(len(shown), MAX_SHOWN_OFFERS)
        name = shown[int(word) - 1].model if is_number else word
        if name not in names:
            return (), word
        if name not in chosen:
            chosen.append(name)
    return tuple(chosen), ""


async def _offer_default(api: "ServerApi", made: "list[ModelChoice]") -> "list[ModelChoice]":
    from chatd.cli.administration.providers import has_person, read_answer
    from chatd.client.provider_setup import make_default

    if not has_person():
        return made
    answer = read_answer(f"Make {made[0].name} the default of all chats that name none? [y/N] ")
    if answer.lower() not in ("y", "yes"):
        return made
    return await make_default(api, made, made[0].name)


async def _store_own_key(api: "ServerApi", me: "Me", wanted: Wanted) -> None:
    """Raises NotPermitted, UsageProblem."""
    from chatd.cli.administration.providers import has_person, read_key
    from chatd.cli.api_session import UsageProblem
    from chatd.cli.output import print_json, print_notice
    from chatd.client.provider_setup import list_key_providers

    takers = await list_key_providers(api, me)
    names = [one.provider for one in takers]
    word = wanted.name or wanted.vendor
    if word is None and has_person():
        print_notice("Providers that take a key of your own, which your chats use first:")
        for number, one in enumerate(takers, 1):
            print_notice(
                f"  {number}  {one.display_name or one.provider}, sent to {one.destination}"
            )
        word = _ask("Which one? ", "the provider")
        if word.isdigit() and 1 <= int(word) <= len(names):
            word = names[int(word) - 1]
    if word not in names:
        raise UsageProblem(f"name a provider that takes keys of users: {', '.join(names)}")
    key = read_key(wanted.key_env, wanted.key_file, about="not shown")
    if not key:
        raise UsageProblem("there is no key; nothing was stored")
    stored = await api.set_user_key(word, key)
    if wanted.as_json:
        print_json(stored)
        return
    masked = "" if stored.key is None else f" {stored.key.masked}"
    print_notice(
        f"Your key{masked} for {word} is stored. Your chats use it from the next model call on; it"
        " was not tested."
    )


def _ask(question: str, option: str) -> str:
    """Raises UsageProblem without a person or an answer."""
    from chatd.cli.administration.providers import has_person, read_answer
    from chatd.cli.api_session import UsageProblem

    answer = read_answer(question) if has_person() else ""
    if not answer:
        raise UsageProblem(f"name {option}; nothing was stored")
    return answer
