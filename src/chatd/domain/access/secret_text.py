"""Secrets that clients and runners send: the form of tokens, digests, and the CSRF token of a
session.

The caller gives the random part, so that these are pure.
"""

import base64
import hashlib
import hmac
import re
from typing import Final
from uuid import UUID

from chatd.domain.ids import CredentialId

SECRET_BYTES: Final = 32
TOKEN_ID_CHARS: Final = 12
TOKEN_PREFIX: Final = "chatd"
RUNNER_TOKEN_PREFIX: Final = f"{TOKEN_PREFIX}_runner"
POD_TOKEN_PREFIX: Final = f"{TOKEN_PREFIX}_pod"

_SECRET: Final = r"[A-Za-z0-9_-]{43}"
_TOKEN: Final = re.compile(rf"{TOKEN_PREFIX}_[0-9a-f]{{{TOKEN_ID_CHARS}}}_{_SECRET}")
_RUNNER_TOKEN: Final = re.compile(rf"{RUNNER_TOKEN_PREFIX}_[0-9a-f]{{{TOKEN_ID_CHARS}}}_{_SECRET}")
_POD_TOKEN: Final = re.compile(rf"{POD_TOKEN_PREFIX}_([0-9a-f]{{32}})_{_SECRET}")
_OPAQUE: Final = re.compile(_SECRET)
_CSRF_PURPOSE: Final = b"chatd csrf"
_POD_PURPOSE: Final = b"chatd pod"


def secret_text(random: bytes) -> str:
    return base64.urlsafe_b64encode(random).rstrip(b"=").decode()


def token_text(credential_id: CredentialId, random: bytes) -> str:
    """`chatd_<id>_<secret>`: scanners for leaked secrets can find it."""
    return f"{token_label(credential_id)}_{secret_text(random)}"


def token_label(credential_id: CredentialId) -> str:
    """The part of a token that is no secret."""
    return f"{TOKEN_PREFIX}_{credential_id.hex[:TOKEN_ID_CHARS]}"


def is_token(text: str) -> bool:
    """Whether it has the form of an API token. Anything else is refused without a look-up."""
    return _TOKEN.fullmatch(text) is not None


def runner_token_text(token_id: UUID, random: bytes) -> str:
    """`chatd_runner_<id>_<secret>`."""
    return f"{runner_token_label(token_id)}_{secret_text(random)}"


def runner_token_label(token_id: UUID) -> str:
    """The part of a runner's token that is no secret."""
    return f"{RUNNER_TOKEN_PREFIX}_{token_id.hex[:TOKEN_ID_CHARS]}"


def is_runner_token(text: str) -> bool:
    return _RUNNER_TOKEN.fullmatch(text) is not None


def pod_token_text(build_id: UUID, agent_key: bytes) -> str:
    """`chatd_pod_<build>_<secret>`: by which the pod of a build dials in. It follows from the key
    of the build's agent, so the runner and every replica know it and no row holds it."""
    made = hmac.digest(agent_key, _POD_PURPOSE, "sha256")
    return f"{POD_TOKEN_PREFIX}_{build_id.hex}_{secret_text(made)}"


def pod_token_build(text: str) -> UUID | None:
    """The build that the token of a pod names; None if it has another form."""
    found = _POD_TOKEN.fullmatch(text)
    return None if found is None else UUID(hex=found[1])


def is_opaque_secret(text: str) -> bool:
    """Whether it has the form of a session's, a link's or a ticket's secret."""
    return _OPAQUE.fullmatch(text) is not None


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


def csrf_token(session_secret: str) -> str:
    """Follows from the session's secret, so every replica knows it and no row holds it."""
    made = hmac.digest(session_secret.encode(), _CSRF_PURPOSE, "sha256")
    return secret_text(made)


def is_csrf_token(given: str | None, session_secret: str) -> bool:
    expected = csrf_token(session_secret).encode()
    return given is not None and hmac.compare_digest(expected, given.encode(errors="replace"))
