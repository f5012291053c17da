"""Bodies and replies about tokens for git hosts. A token is never returned.

Docstrings and descriptions here are part of the OpenAPI document.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar
from uuid import UUID

from msgspec import Meta, Struct

from chatd.domain.chat.pull_requests import GitHostKind
from chatd.domain.description import CREATED_AT, describe
from chatd.domain.list_page import ListPage

_ID = "6e1f3c52-8a0b-4a55-9d7e-2b7c1d0e9f31"
_HOST = "github.com"

GitHostName = Annotated[
    str, Meta(max_length=260, pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$")
]
GitToken = Annotated[str, Meta(min_length=8, max_length=4096, pattern=r"^[!-~]+$")]


class GitCredentialBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token for a git host. It replaces the caller's former one for the same host."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "host": _HOST,
        "kind": "github",
        "token": "github_pat_11AAAA",
    }

    host: Annotated[GitHostName, describe("The host in the addresses of remotes.", _HOST)]
    token: Annotated[
        GitToken,
        describe("A token that may read repositories and their checks.", "github_pat_11AAAA"),
    ]
    kind: Annotated[
        GitHostKind | None,
        describe("Which API the host has; may be left out for well-known hosts.", "github"),
    ] = None
    api_url: Annotated[
        Annotated[str, Meta(max_length=500, pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")] | None,
        describe(
            "The address of its API, if it is not the usual one.", "https://git.example.com/api/v1"
        ),
    ] = None

    def __repr__(self) -> str:
        return f"GitCredentialBody(host={self.host!r})"


class GitCredentialReply(Struct, frozen=True, kw_only=True):
    """A token for a git host, without the token."""

    id: Annotated[UUID, describe("Its id.", _ID)]
    host: Annotated[str, describe("The host.", _HOST)]
    kind: Annotated[GitHostKind, describe("Which API the host has.", "github")]
    api_url: Annotated[str, describe("Where the token is sent.", "https://api.github.com")]
    created_at: Annotated[datetime, describe("When the token was given.", CREATED_AT)]


class GitCredentialPage(ListPage[GitCredentialReply], frozen=True, kw_only=True):
    """A page of tokens for git hosts."""
