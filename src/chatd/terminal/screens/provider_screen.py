"""The screen of /connect: a vendor, its key, a test, its models, the default. What was done stays
in sight, line by line; a step that fails is said, and the person goes on from there."""

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import ClassVar, Final, Literal, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.provider_setup import (
    MAX_PROVIDERS,
    VENDORS,
    NotPermitted,
    SetupFailed,
    Vendor,
    WantedProvider,
    add_models,
    connect_provider,
    list_key_providers,
    list_offers,
    make_default,
    may,
    model_facts,
    success_text,
    suggest_name,
)
from chatd.client.resources import ModelChoice, OfferedModel, Provider, UserKey
from chatd.terminal.dialogs import LinePrompt, MultiPicker, Pick, Picker
from chatd.terminal.safe_text import safe_text
from chatd.terminal.session import app_of, session_of

MAX_ADDRESS_CHARS: Final = 2000
MAX_KEY_CHARS: Final = 4096
_AGAIN: Final = "Enter begins again · Esc goes back"
Tone = Literal["", "bold", "$text-muted", "$text-error"]
T = TypeVar("T")


class Stopped(Exception):
    """The person closed a question: ask nothing more."""


class ProviderScreen(Screen[None]):
    """Administrators connect providers; other users store a key of their own, where that is
    allowed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "begin", "Connect a provider"),
        Binding("escape,q", "close", "Back to the chat"),
    ]
    DEFAULT_CSS = """
    ProviderScreen #provider-head { height: 1; padding: 0 1; background: $panel;
        text-style: bold; }
    ProviderScreen #provider-steps { height: 1fr; padding: 1 2; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Content] = []
        # Held, and not searched for: a request may end after the screen was closed.
        self._steps = Static(id="provider-steps", markup=False)

    def compose(self) -> ComposeResult:
        yield Static("Connect a provider of models", id="provider-head", markup=False)
        yield self._steps
        yield Footer()

    def on_mount(self) -> None:
        self.action_begin()

    def action_begin(self) -> None:
        """The questions take the keys once the setup has begun."""
        self._lines.clear()
        self.run_worker(self._connect, group="connect", exclusive=True)

    def action_close(self) -> None:
        """Cancel what runs: a test that has begun may then have stored its provider."""
        self.dismiss(None)

    def _say(self, text: str, tone: Tone = "") -> None:
        self._lines.append(Content.styled(safe_text(text), tone))
        self._steps.update(Content("\n").join(self._lines))

    async def _connect(self) -> None:
        session = session_of(self)
        try:
            if may(session.me, "config.write"):
                await self._connect_provider()
            else:
                await self._store_own_key()
        except Stopped:
            self._say(f"\nStopped; nothing more is stored. {_AGAIN}", "$text-muted")
        except (SetupFailed, NotPermitted, ApiError, ServerUnreachable) as error:
            self._say(f"\n{error.message}", "$text-error")
            self._say(_AGAIN, "$text-muted")

    async def _connect_provider(self) -> None:
        api = session_of(self).api
        vendor = await self._answer(
            Picker(
                "Whose models?",
                [Pick(value=one, label=one.title, words=one.kind) for one in VENDORS],
            )
        )
        self._say(vendor.title, "bold")
        wanted = await self._ask_place(vendor)
        known = await api.list_providers(include_disabled=True).items(MAX_PROVIDERS)
        has_key = any(one.name == wanted.name and one.has_api_key for one in known)
        key = await self._ask_key(vendor, wanted.name, has_key=has_key)
        self._say(f"Testing {wanted.name} with one small call…", "$text-muted")
        provider, tested = await connect_provider(api, wanted, key)
        self._say(success_text(provider, tested))
        await self._add_models(provider)

    async def _ask_place(self, vendor: Vendor) -> WantedProvider:
        url = region = None
        if vendor.needs_address:
            label = f"Its address, such as {vendor.address_hint}"
            url = await self._answer(LinePrompt(label, max_length=MAX_ADDRESS_CHARS))
        if vendor.needs_region:
            region = await self._answer(LinePrompt("AWS region, such as eu-west-1"))
        name = suggest_name(vendor, url)
        if url is not None:
            name = await self._answer(LinePrompt("Its name here", name, keeps=True))
            self._say(f"{name} at {url}")
        return WantedProvider(name=name, kind=vendor.kind, url=url, region=region)

    async def _ask_key(self, vendor: Vendor, name: str, *, has_key: bool) -> str:
        note = f"empty: the key that {name} has" if has_key else vendor.key_note
        label = f"API key ({note or 'not shown, and stored sealed on the server'})"
        prompt = LinePrompt(
            label, max_length=MAX_KEY_CHARS, is_secret=True, keeps=has_key or bool(vendor.key_note)
        )
        return await self._answer(prompt)

    async def _add_models(self, provider: Provider) -> None:
        api = session_of(self).api
        try:
            offered = await list_offers(api, provider)
        except ApiError as error:
            self._say(error.message, "$text-muted")
            typed = await self._answer(LinePrompt("A model by its name at the provider"))
            offered = [OfferedModel(model=typed, suggested=True)]
        chosen = await self._answer(
            MultiPicker(
                f"Models of {provider.name}",
                [_offer_pick(one) for one in offered],
                [one.model for one in offered if one.suggested],
            )
        )
        made = await add_models(api, provider, chosen)
        if made and (len(made) > 1 or not made[0].is_default):
            made = await self._offer_default(made)
        for one in made:
            self._say(model_facts(one))
        end = "Ctrl-O in the message box chooses it." if made else "No model was added."
        self._say(f"\n{end} Esc goes back · Enter connects another one", "$text-muted")

    async def _offer_default(self, made: Sequence[ModelChoice]) -> list[ModelChoice]:
        picks = [Pick(value="", label="Keep it as it is")]
        picks += [Pick(value=one.name, label=one.name) for one in made]
        chosen = ""
        with suppress(Stopped):
            chosen = await self._answer(Picker("The model of chats that name none", picks))
        if not chosen:
            return list(made)
        return await make_default(session_of(self).api, made, chosen)

    async def _store_own_key(self) -> None:
        session = session_of(self)
        takers = await list_key_providers(session.api, session.me)
        picks = [Pick(value=one, label=one.display_name or one.provider, note=_place(one))
                 for one in takers]  # fmt: skip
        taker = await self._answer(Picker("A key of your own, for your chats only", picks))
        label = f"Your API key for {taker.provider} (not shown, and stored sealed on the server)"
        key = await self._answer(LinePrompt(label, max_length=MAX_KEY_CHARS, is_secret=True))
        stored = await session.api.set_user_key(taker.provider, key)
        masked = "" if stored.key is None else f" {stored.key.masked}"
        self._say(f"Your key{masked} for {taker.provider} is stored; it was not tested.")
        self._say("Your chats use it from the next model call on. Esc goes back", "$text-muted")

    async def _answer(self, screen: "Screen[T | None] | Screen[T]") -> T:
        """Raises Stopped."""
        shown: Awaitable[T | None] = app_of(self).push_screen_wait(screen)
        answer = await shown
        if answer is None:
            raise Stopped
        return answer


def _place(taker: UserKey) -> str:
    replaces = "replaces yours, " if taker.key is not None else ""
    return f"{replaces}sent to {taker.destination}"


def _offer_pick(offer: OfferedModel) -> Pick[str]:
    is_here = ", ".join(offer.configured_as)
    note = f"is here as {is_here}" if is_here else "suggested" if offer.suggested else ""
    return Pick(value=offer.model, label=offer.model, note=note, words=offer.display_name)
