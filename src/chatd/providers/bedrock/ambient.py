"""AWS credentials that the machine itself has: a profile, a role, a container's identity.

Finding them is botocore's business, which is an extra and is loaded only here.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from chatd.domain.model.protocol import ProviderError
from chatd.providers.secret import Secret
from chatd.providers.settings import AwsCredentials, ProviderSettings, misconfigured


class _Frozen(Protocol):
    access_key: str
    secret_key: str
    token: str | None


class _Credentials(Protocol):
    def get_frozen_credentials(self) -> _Frozen: ...


class _Session(Protocol):
    def get_credentials(self) -> _Credentials | None: ...


class Ambient:
    """Asks botocore each time, which keeps what it knows and renews what has expired. It may take
    a while, so it is asked from a thread."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        try:
            get_session: Callable[[], _Session] = import_module("botocore.session").get_session
            self._error: type[Exception] = import_module("botocore.exceptions").BotoCoreError
        except ImportError:
            raise misconfigured(
                settings,
                f"provider {settings.label} has neither an api_key nor AWS keys, and finding"
                " the machine's own needs the extra: install chatd[bedrock]",
                "missing_key",
            ) from None
        self._session = get_session()
        self._found: _Credentials | None = None

    def credentials(self) -> AwsCredentials:
        try:
            self._found = self._found or self._session.get_credentials()
            now = None if self._found is None else self._found.get_frozen_credentials()
        except self._error as error:
            what = type(error).__name__
            raise self._missing(f"cannot resolve AWS credentials ({what})", "config") from None
        if now is None:
            raise self._missing("this machine has no AWS credentials", "missing_key")
        return AwsCredentials(
            access_key_id=now.access_key,
            secret_access_key=Secret(now.secret_key),
            session_token=Secret(now.token) if now.token else None,
        )

    def _missing(self, what: str, word: str) -> ProviderError:
        label = self._settings.label
        return misconfigured(
            self._settings, f"provider {label}: {what}: set its api_key or AWS keys", word
        )
