"""What differs between servers that all speak Chat Completions."""

from urllib.parse import urlsplit

from msgspec import Struct

from chatd.providers.files import COMPATIBLE as IMAGES_ONLY
from chatd.providers.files import COMPLETIONS, Accepts
from chatd.providers.settings import Kind


class Dialect(Struct, frozen=True, kw_only=True):
    """`named_choice`: one tool of several may be demanded. `merges_users`: models behind it
    often refuse two user messages in a row. `gemini`: Google's own, with its peculiarities."""

    developer_role: bool = False
    named_choice: bool = True
    merges_users: bool = True
    top_k: bool = False
    gemini: bool = False
    accepts: Accepts = COMPLETIONS


OPENAI = Dialect(developer_role=True, merges_users=False)
OPENROUTER = Dialect(top_k=True)
VERCEL = Dialect()
COMPATIBLE = Dialect(named_choice=False, top_k=True, accepts=IMAGES_ONLY)
GOOGLE = Dialect(named_choice=False, gemini=True, accepts=IMAGES_ONLY)


def dialect_of(kind: Kind, base: str) -> Dialect:
    match kind:
        case "openrouter":
            return OPENROUTER
        case "vercel":
            return VERCEL
        case "openai-compat":
            host = urlsplit(base).hostname or ""
            return (
                GOOGLE
                if host == "googleapis.com" or host.endswith(".googleapis.com")
                else COMPATIBLE
            )
        case _:
            return OPENAI
