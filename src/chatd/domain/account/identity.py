"""What an OpenID provider says about a user, and what follows from it. Pure rules."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from msgspec import Struct

from chatd.domain.access import Role
from chatd.domain.account.rules import MAX_USERNAME_CHARS
from chatd.domain.errors import Forbidden

CLOCK_SKEW_S: Final = 60.0
"""How much the provider's clock may differ."""
MAX_CLAIMED_GROUPS: Final = 500
_MAX_SUBJECT_CHARS: Final = 255


class IdentityRules(Struct, frozen=True, kw_only=True):
    """`allowed_domains` of emails; empty: all. `groups_claim` names the claim with the groups;
    users in one of `admin_groups` are administrators, in one of `viewer_groups` viewers.
    `trust_email`: an email counts as verified if the provider does not say whether it is."""

    allowed_domains: tuple[str, ...] = ()
    auto_create: bool = False
    link_by_email: bool = False
    trust_email: bool = False
    groups_claim: str | None = None
    admin_groups: tuple[str, ...] = ()
    viewer_groups: tuple[str, ...] = ()


class Identity(Struct, frozen=True, kw_only=True):
    """`email` is None unless the provider has verified it. `groups` is None without the claim."""

    issuer: str
    subject: str
    email: str | None
    name: str
    username: str
    groups: tuple[str, ...] | None


class ExpectedToken(Struct, frozen=True, kw_only=True):
    """`now` in seconds since 1970."""

    issuer: str
    client_id: str
    nonce: str
    now: float


def find_token_fault(claims: Mapping[str, object], expected: ExpectedToken) -> str | None:
    """Why an ID token with a valid signature is refused; None if it is not."""
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else _texts(audience)
    if claims.get("iss") != expected.issuer:
        return "another issuer"
    if expected.client_id not in audiences:
        return "for another client"
    party = claims.get("azp", expected.client_id if len(audiences) == 1 else None)
    if party != expected.client_id:
        return "for another authorized party"
    expires_at, issued_at = _number(claims.get("exp")), _number(claims.get("iat"))
    if expires_at is None or expires_at + CLOCK_SKEW_S <= expected.now:
        return "expired"
    starts_at = max(issued_at or 0.0, _number(claims.get("nbf")) or 0.0)
    if issued_at is None or starts_at > expected.now + CLOCK_SKEW_S:
        return "not valid yet"
    if claims.get("nonce") != expected.nonce:
        return "for another sign-in"
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT_CHARS:
        return "without a subject"
    return None


def read_identity(claims: Mapping[str, object], rules: IdentityRules) -> Identity:
    """From claims that were checked."""
    email, groups = claims.get("email"), None
    verified = claims.get("email_verified", rules.trust_email or None)
    is_verified = verified is True and isinstance(email, str)
    if rules.groups_claim is not None:
        groups = tuple(_texts(claims.get(rules.groups_claim)))[:MAX_CLAIMED_GROUPS]
    name, username = claims.get("name"), claims.get("preferred_username")
    return Identity(
        issuer=str(claims["iss"]),
        subject=str(claims["sub"]),
        email=str(email) if is_verified else None,
        name=name[:200] if isinstance(name, str) else "",
        username=username if isinstance(username, str) else "",
        groups=groups,
    )


def check_domain(identity: Identity, rules: IdentityRules) -> None:
    """Raises Forbidden."""
    if not rules.allowed_domains:
        return
    domain = (identity.email or "").rpartition("@")[2].lower()
    if domain not in {allowed.lower() for allowed in rules.allowed_domains}:
        raise Forbidden(
            "Users with this email may not sign in here, or the provider has not verified the"
            " email.",
            code="identity_not_allowed",
        )


def claimed_role(identity: Identity, rules: IdentityRules) -> Role | None:
    """None if the provider does not decide roles."""
    if identity.groups is None or not (rules.admin_groups or rules.viewer_groups):
        return None
    if set(identity.groups) & set(rules.admin_groups):
        return "admin"
    return "viewer" if set(identity.groups) & set(rules.viewer_groups) else "member"


def proposed_username(identity: Identity, suffix: str = "") -> str:
    """From the provider's username or the email; with a suffix if that one is taken."""
    text = identity.username or (identity.email or "").partition("@")[0] or "user"
    kept = re.sub(r"[^A-Za-z0-9._-]", "-", text)
    base = kept.strip("._-")[: MAX_USERNAME_CHARS - len(suffix)].strip("._-")
    return f"{base or 'user'}{suffix}"


def local_path(text: str | None) -> str:
    """Where to go after a sign-in: a path of this server, else the first page."""
    if text is None or not text.startswith("/") or text[:2] in ("//", "/\\"):
        return "/"
    return text if text.isascii() and text.isprintable() and len(text) <= 1000 else "/"


def _texts(value: object) -> Sequence[str]:
    if not isinstance(value, list):
        return []
    return [one for one in cast("list[object]", value) if isinstance(one, str)]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
