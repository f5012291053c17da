"""The API of a connection's host, by its token or as its App of GitHub, and the token for git."""

from collections.abc import Mapping
from typing import Final

from chatd.domain.deployment.repositories import api_url, host_of
from chatd.domain.ports import Env
from chatd.git_hosts.github import GitHubApi
from chatd.git_hosts.github_app import APP_HEADERS, App, AppTokens, Use
from chatd.git_hosts.gitlab import GitLabApi
from chatd.git_hosts.host_api import GitHostApi, HostRequests
from chatd.sealed_secrets import KeyRing
from chatd.store.deployment.repositories import (
    REPOSITORY_KEY,
    REPOSITORY_TOKEN,
    OpenConnection,
    SealedAccess,
)

_SCHEMES: Final = {"github": "Bearer", "gitlab": "Bearer", "gitea": "token"}


class HostApis:
    """One for each process: it keeps the tokens of Apps. `allow_private`: hosts may be in private
    networks."""

    def __init__(self, ring: KeyRing, env: Env, *, allow_private: bool) -> None:
        self._ring = ring
        self._env = env
        self._app_tokens = AppTokens(env.clock)
        self.allow_private = allow_private

    def open(self, access: SealedAccess, repository: str) -> GitHostApi:
        """For this repository. Raises SecretUnreadable."""
        host = host_of(access.url)
        requests = self._requests(access)
        app = self._app(access)
        if app is not None:
            plain = requests

            async def find_token(refused: str | None) -> str:
                return await self._app_tokens.get(
                    plain, access.id, app, repository, refused=refused
                )

            requests = requests.with_tokens(find_token)
        else:
            requests = requests.with_token(self._token(access), _SCHEMES[access.vendor])
        match access.vendor:
            case "github" | "gitea":
                return GitHubApi(access.vendor, requests, host)
            case "gitlab":
                return GitLabApi(requests, host)

    async def check(self, found: OpenConnection) -> str:
        """As whom chatd acts there. Raises HostCallFailed, SecretUnreadable."""
        app = self._app(found.access)
        if app is None:
            return await self.open(found.access, "").check()
        patterns = found.connection.repositories
        return await self._app_tokens.check(self._requests(found.access), app, patterns)

    async def token(self, access: SealedAccess, repository: str, use: Use) -> str:
        """Raises HostCallFailed, SecretUnreadable."""
        app = self._app(access)
        if app is None:
            return self._token(access)
        requests = self._requests(access)
        return await self._app_tokens.get(requests, access.id, app, repository, use=use)

    def _app(self, access: SealedAccess) -> App | None:
        if access.app_id is None or access.private_key is None:
            return None
        key = self._ring.open(access.private_key, REPOSITORY_KEY.context(access.id))
        return App(id=access.app_id, private_key=key)

    def _token(self, access: SealedAccess) -> str:
        return self._ring.open(access.token or "", REPOSITORY_TOKEN.context(access.id))

    def _requests(self, access: SealedAccess) -> HostRequests:
        headers: Mapping[str, str] = APP_HEADERS if access.vendor == "github" else {}
        base, clock = api_url(access.vendor, access.url), self._env.clock
        return HostRequests(base, headers, clock, allow_private=self.allow_private)
