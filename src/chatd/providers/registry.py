"""Which kind of provider is built by whom. The only list of them."""

from collections.abc import Callable, Mapping
from typing import Final

from chatd.domain.ports import Provider
from chatd.providers.anthropic.client import AnthropicProvider
from chatd.providers.settings import Kind, ProviderSettings, misconfigured

BUILDERS: Final[Mapping[Kind, Callable[[ProviderSettings], Provider]]] = {
    "anthropic": AnthropicProvider,
}


def build(settings: ProviderSettings) -> Provider:
    """Nothing is sent yet. Raises `ProviderFailed` that says what is missing."""
    builder = BUILDERS.get(settings.kind)
    if builder is None:
        raise misconfigured(settings, f"providers of kind {settings.kind} are not supported")
    return builder(settings)
