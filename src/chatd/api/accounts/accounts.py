"""What routes need of accounts, built from one configuration."""

from collections.abc import Mapping

from argon2 import PasswordHasher
from msgspec import Struct

from chatd.api.accounts.authenticator import Authenticator
from chatd.api.accounts.oidc_client import OidcClient, OidcConfig
from chatd.api.accounts.oidc_sign_in import OidcSignIn
from chatd.api.accounts.passwords import Passwords
from chatd.api.accounts.request_limits import LookUpLanes, RateLimits, RequestLimits
from chatd.api.accounts.sign_in import SignIn
from chatd.api.accounts.site import Site, SiteConfig
from chatd.domain.access.accounts import IdentityRules
from chatd.domain.ids import UserId
from chatd.domain.ports import Env
from chatd.sealed_secrets import KeyRing
from chatd.store.notifications import ConfigChanges
from chatd.store.pool import Pool


class AccountsConfig(Struct, frozen=True, kw_only=True):
    """`has_passwords`: users may sign in with a password."""

    site: SiteConfig = SiteConfig()
    limits: RequestLimits = RequestLimits()
    has_passwords: bool = True
    oidc: OidcConfig | None = None
    identity_rules: IdentityRules = IdentityRules()
    managed_groups: tuple[str, ...] = ()


class Accounts(Struct, frozen=True, kw_only=True):
    site: Site
    authenticator: Authenticator
    passwords: Passwords
    sign_in: SignIn
    limits: RateLimits
    changes: ConfigChanges
    has_passwords: bool = True
    oidc: OidcSignIn | None = None

    @property
    def oidc_name(self) -> str | None:
        return None if self.oidc is None else self.oidc.name


def build_accounts(
    pool: Pool,
    env: Env,
    changes: ConfigChanges,
    config: AccountsConfig,
    *,
    fixed: Mapping[str, UserId],
    key_ring: KeyRing,
    hasher: PasswordHasher | None = None,
) -> Accounts:
    """`fixed` are tokens that no row holds. `hasher` is given by tests. Raises ValueError for an
    address or a network of the settings that is none."""
    site = Site(config.site)
    passwords = Passwords(hasher)
    lanes = LookUpLanes(env.clock)
    sign_in = SignIn(pool, env, site, passwords, lanes)
    oidc = None
    if config.oidc is not None:
        oidc = OidcSignIn(
            pool,
            env,
            site,
            sign_in,
            OidcClient(config.oidc, env.clock),
            key_ring=key_ring,
            rules=config.identity_rules,
            managed_groups=config.managed_groups,
        )
    return Accounts(
        site=site,
        authenticator=Authenticator(pool, env.clock, changes, site, lanes=lanes, fixed=fixed),
        passwords=passwords,
        sign_in=sign_in,
        limits=RateLimits(config.limits, env.clock),
        changes=changes,
        has_passwords=config.has_passwords,
        oidc=oidc,
    )
