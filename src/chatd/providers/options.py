"""A model's own options, one typed block per provider, as administrators write them.

Owns names, bounds and what excludes what. A block is refused as a whole, with
the option named; nothing unknown is passed on or ignored.
"""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct

from chatd.domain.chat.parts import Json
from chatd.domain.errors import InvalidInput

Domain = Annotated[str, Meta(min_length=1, max_length=253)]
Domains = Annotated[tuple[Domain, ...], Meta(max_length=100)]


class Thinking(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    budget_tokens: Annotated[int, Meta(ge=1024, description="Tokens the model may think")]


class AnthropicOptions(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    send_reasoning: Annotated[
        bool, Meta(description="Send earlier reasoning back with the conversation")
    ] = True
    thinking: Annotated[
        Thinking | None, Meta(description="A fixed budget for thinking, for older models")
    ] = None
    effort: Annotated[
        Literal["low", "medium", "high", "xhigh", "max"] | None,
        Meta(description="How hard the model tries"),
    ] = None
    thinking_display: Annotated[
        Literal["summarized", "omitted"] | None, Meta(description="What is shown of the thinking")
    ] = None
    disable_parallel_tool_use: Annotated[
        bool | None, Meta(description="At most one tool call at a time")
    ] = None
    web_search_enabled: Annotated[
        bool, Meta(description="Let the provider search the web for the model")
    ] = False
    allowed_domains: Annotated[
        Domains, Meta(description="Search only these; excludes blocked_domains")
    ] = ()
    blocked_domains: Annotated[
        Domains, Meta(description="Never search these; excludes allowed_domains")
    ] = ()
    context_1m_enabled: Annotated[
        bool, Meta(description="Ask for the context of a million tokens")
    ] = False

    def __post_init__(self) -> None:
        if self.allowed_domains and self.blocked_domains:
            raise ValueError("allowed_domains and blocked_domains exclude each other")


_T = TypeVar("_T", bound=Struct)


def parse(block: type[_T], options: Json) -> _T:
    """The options, or InvalidInput that names the one that is wrong. None given: the defaults."""
    if options is UNSET:
        return block()
    try:
        return msgspec.json.decode(options, type=block)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".")
        where = f"options.{field}" if field else "options"
        raise InvalidInput(where, said.replace("`", ""), code="invalid_options") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidInput("options", "not JSON", code="invalid_options") from None
