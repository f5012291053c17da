"""Routes for the caller's tokens for git hosts, with which chatd finds pull requests, and which git
in workspaces may use."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.domain.description import CREATED_AT, describe
from chatd.domain.errors import InvalidInput
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.mcp.oauth import split_url
from chatd.domain.workspace.pull_requests import (
    WELL_KNOWN_HOSTS,
    GitHostKind,
    api_address,
    parse_remote,
)
from chatd.store.account import git_credentials
from chatd.store.account.git_credentials import TOKEN, GitCredential, NewGitCredential

# Bodies and replies about tokens for git hosts. A token is never returned.
#
# Docstrings and descriptions here are part of the OpenAPI document.

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

    in_workspaces: Annotated[
        bool,
        describe(
            "Whether git in your workspaces uses it for this host, by HTTPS: a proxy adds it to the"
            " requests of git, and the token stays outside. Templates must allow the host."
        ),
    ] = False

    def __repr__(self) -> str:
        return f"GitCredentialBody(host={self.host!r})"


class GitCredentialReply(Struct, frozen=True, kw_only=True):
    """A token for a git host, without the token."""

    id: Annotated[UUID, describe("Its id.", _ID)]
    host: Annotated[str, describe("The host.", _HOST)]
    kind: Annotated[GitHostKind, describe("Which API the host has.", "github")]
    api_url: Annotated[str, describe("Where the token is sent.", "https://api.github.com")]
    in_workspaces: Annotated[bool, describe("Whether git in your workspaces uses it, by a proxy.")]
    created_at: Annotated[datetime, describe("When the token was given.", CREATED_AT)]


class GitCredentialPage(ListPage[GitCredentialReply], frozen=True, kw_only=True):
    """A page of tokens for git hosts."""


_SAVE: Final = BodySpec(GitCredentialBody)


class GitCredentialRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /git-credentials",
                permission="account.write",
                summary="Give a token for a git host",
                description="chatd asks the host for the pull requests of branches that your chats"
                " have checked out, and for their checks. With `in_workspaces` git in your"
                " workspaces uses it too, by a proxy: the token itself never reaches a workspace.",
                handle=self.save,
                body_spec=_SAVE,
                replies={201: GitCredentialReply},
                errors=("too_many_git_credentials", "secret_key_missing"),
            ),
            ApiRoute(
                endpoint="GET /git-credentials",
                permission="account.read",
                summary="List the git hosts for which you gave a token",
                handle=self.list_own,
                query=ListQuery,
                replies={200: GitCredentialPage},
            ),
            ApiRoute(
                endpoint="DELETE /git-credentials/{credential_id}",
                permission="account.write",
                summary="Delete a token for a git host",
                handle=self.delete,
                replies={204: None},
            ),
        )

    async def save(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_SAVE)
        host = body.host.lower()
        if parse_remote(f"https://{host}/a/b") is None:
            raise InvalidInput("host", "expected a host name, such as git.example.com")
        given = body.api_url
        if given is not None and (not given.isprintable() or split_url(given) is None):
            text = "expected an address such as https://git.example.com/api/v1"
            raise InvalidInput("api_url", text)
        if not body.token.isprintable():
            raise InvalidInput("token", "a token has no line breaks")
        kind = body.kind or WELL_KNOWN_HOSTS.get(host)
        if kind is None:
            raise InvalidInput("kind", "say which API this host has: github, gitlab or gitea")
        credential_id = deps.env.new_id()
        sealed = deps.key_ring.seal(body.token, TOKEN.context(credential_id))
        async with deps.pool.transaction() as session:
            saved = await git_credentials.save(
                session,
                request.caller.actor,
                NewGitCredential(
                    id=credential_id,
                    host=host,
                    kind=kind,
                    api_url=(body.api_url or api_address(kind, host)).rstrip("/"),
                    sealed_token=sealed,
                    in_workspaces=body.in_workspaces,
                ),
                ip=deps.author(request).ip,
            )
        return reply(_reply(saved), 201)

    async def list_own(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(git_credentials.list_own, actor)
        shown, cursor = cut_whole(paging, found, lambda credential: credential.id)
        return page_reply(GitCredentialPage, map(_reply, shown), cursor)

    async def delete(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await git_credentials.delete(
                session,
                request.caller.actor,
                request.credential_id,
                ip=self._deps.author(request).ip,
            )
        return NO_CONTENT


def _reply(credential: GitCredential) -> GitCredentialReply:
    return msgspec.convert(credential, GitCredentialReply, from_attributes=True)
