"""Users, groups, credentials and audit entries as values, and the rules of accounts: names,
passwords, scopes of tokens, what an OpenID provider says about a user, and rates of sign-ins.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, cast

from msgspec import Struct

from chatd.domain.access.permissions import TOKEN_SCOPES, Role, UserActor
from chatd.domain.errors import Forbidden, InvalidInput
from chatd.domain.ids import CredentialId, GroupId, UserId

UserStatus = Literal["active", "suspended"]
CredentialKind = Literal["session", "token", "link", "ticket"]
AuditOutcome = Literal["done", "refused", "failed"]


class User(Struct, frozen=True, kw_only=True):
    """A service account signs in with tokens only, which administrators create."""

    id: UserId
    username: str
    email: str | None
    name: str
    avatar_url: str | None
    role: Role
    status: UserStatus
    is_service: bool
    has_password: bool
    created_at: datetime
    updated_at: datetime
    last_seen_at: datetime | None

    @property
    def is_active(self) -> bool:
        return self.status == "active"


class Group(Struct, frozen=True, kw_only=True):
    id: GroupId
    name: str
    created_at: datetime
    member_count: int


class Credential(Struct, frozen=True, kw_only=True):
    """Never its secret. `expires_at` of a session moves with its use, at most to `ends_at`."""

    id: CredentialId
    kind: CredentialKind
    user_id: UserId
    name: str
    scopes: tuple[str, ...] | None
    created_at: datetime
    expires_at: datetime | None
    ends_at: datetime | None
    last_used_at: datetime | None
    ip: str | None
    user_agent: str | None
    created_by: UserId | None


class ActiveCredential(Struct, frozen=True, kw_only=True):
    """A credential that is valid now, of an active user. `id` is None for the administrator's
    token, which no row holds. `valid_for_s` is None for ever."""

    id: CredentialId | None
    kind: CredentialKind
    actor: UserActor
    username: str
    expires_at: datetime | None
    valid_for_s: float | None


class AuditEntry(Struct, frozen=True, kw_only=True):
    """`actor` is a username at that time, or the name of a worker or command. The names are those
    of today, or the last ones known. `person_name`: the user whom it is about beside the object,
    such as a new member or the owner of a chat; None if it is the actor."""

    id: int
    at: datetime
    actor_id: UserId | None
    actor: str
    ip: str | None
    action: str
    object_type: str
    object_id: str
    detail: dict[str, Any] | None
    outcome: AuditOutcome
    actor_name: str | None = None
    actor_is_deleted: bool = False
    object_name: str | None = None
    object_is_deleted: bool = False
    person_name: str | None = None


# Rules of accounts: names, passwords, and the scopes that a token may have.

MIN_PASSWORD_CHARS: Final = 12
MAX_PASSWORD_CHARS: Final = 256
"""A longer one would only cost time to hash."""
MAX_USERNAME_CHARS: Final = 64
MAX_EMAIL_CHARS: Final = 254

_USERNAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+-]*[A-Za-z0-9])?")
_EMAIL: Final = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+\.[^\s@<>,;.]+")
REDACTED: Final = "***"
_SECRET_NAMES: Final = ("password", "secret", "token", "api_key", "private", "headers")


def check_username(name: str) -> str:
    """Raises InvalidInput."""
    if len(name) > MAX_USERNAME_CHARS or not _USERNAME.fullmatch(name):
        raise InvalidInput(
            "username",
            f"must have 1 to {MAX_USERNAME_CHARS} letters, digits and . _ @ + - inside",
        )
    return name


def check_email(email: str) -> str:
    """Raises InvalidInput."""
    if len(email) > MAX_EMAIL_CHARS or not _EMAIL.fullmatch(email):
        raise InvalidInput("email", "must be an address such as ada@example.com")
    return email


def check_password(password: str, field: str = "password") -> str:
    """Raises InvalidInput. The text never contains the password."""
    if not MIN_PASSWORD_CHARS <= len(password) <= MAX_PASSWORD_CHARS:
        raise InvalidInput(
            field, f"must have {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters"
        )
    if "\0" in password:
        raise InvalidInput(field, "must not have a NUL character")
    if len(set(password)) == 1:
        raise InvalidInput(field, "must not be one character repeated")
    return password


def token_scopes(creator: UserActor, wanted: Collection[str] | None) -> tuple[str, ...] | None:
    """The scopes of a new token: those wanted, or the creator's own. None: no limit. Raises
    InvalidInput for an unknown scope, Forbidden for one that the creator lacks: `admin` is for
    administrators."""
    if wanted is None:
        return None if creator.scopes is None else _in_order(creator.scopes)
    for scope in wanted:
        if scope not in TOKEN_SCOPES:
            raise InvalidInput("scopes", f"there are {', '.join(TOKEN_SCOPES)}")
    if not wanted:
        raise InvalidInput("scopes", "must name at least one scope, or be left out")
    if "admin" in wanted and creator.role != "admin":
        raise Forbidden(
            "Only administrators create tokens with the scope admin.", code="missing_scope"
        )
    if creator.scopes is not None and not set(wanted) <= creator.scopes:
        raise Forbidden("A token cannot have a scope that its creator lacks.", code="missing_scope")
    return _in_order(wanted)


def token_expiry(creator: datetime | None, wanted: datetime | None) -> datetime | None:
    """When a new token expires: as wanted, or with the token that makes it. Raises InvalidInput
    if it would outlive that one."""
    if creator is None or (wanted is not None and wanted <= creator):
        return wanted
    if wanted is not None:
        end = f"{creator:%Y-%m-%dT%H:%M:%SZ}"
        raise InvalidInput("expires_at", f"must not be after {end}, the end of the creating token")
    return creator


def _in_order(scopes: Collection[str]) -> tuple[str, ...]:
    return tuple(scope for scope in TOKEN_SCOPES if scope in scopes)


def redacted_diff(
    before: Mapping[str, object] | None, after: Mapping[str, object] | None
) -> dict[str, dict[str, object]]:
    """What changed, for the audit log: the fields with another value, before and after. Of a field
    that may hold a secret only the fact that it changed is kept."""
    old, new = before or {}, after or {}
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    diff: dict[str, dict[str, object]] = {}
    if before is not None:
        diff["before"] = {name: _redacted(name, old[name]) for name in names if name in old}
    if after is not None:
        diff["after"] = {name: _redacted(name, new[name]) for name in names if name in new}
    return diff


def _redacted(name: str, value: object) -> object:
    is_secret = any(part in name.lower() for part in _SECRET_NAMES)
    return REDACTED if is_secret and value is not None and not isinstance(value, bool) else value


# What an OpenID provider says about a user, and what follows from it. Pure rules.

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


# Token buckets: so many events a minute, with a burst of one minute's worth.


class Bucket(Struct, frozen=True):
    """`level` events were left at the time `at`, in seconds of any steady clock."""

    level: float
    at: float


def take(bucket: Bucket | None, per_minute: float, now: float) -> tuple[Bucket, float]:
    """The bucket after one event, and 0; or the bucket unchanged in its level, and the seconds
    after which an event is allowed again. None is a full bucket."""
    level = per_minute
    if bucket is not None:
        refilled = bucket.level + max(now - bucket.at, 0.0) * per_minute / 60
        level = min(per_minute, refilled)
    if level >= 1:
        return Bucket(level - 1, now), 0.0
    return Bucket(level, now), (1 - level) * 60 / per_minute


def is_full(bucket: Bucket, per_minute: float, now: float) -> bool:
    """Then it need not be kept."""
    return bucket.level + (now - bucket.at) * per_minute / 60 >= per_minute


def retry_after(seconds: float) -> int:
    """The value of a Retry-After header: whole seconds, at least 1."""
    return max(1, math.ceil(seconds))
