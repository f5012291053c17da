"""What routes need of accounts, built from one configuration."""

from collections.abc import Mapping

from argon2 import PasswordHasher
from msgspec import Struct

from chatd.api.accounts.authenticator import Authenticator
from chatd.api.accounts.passwords import Passwords
from chatd.api.accounts.rate_limits import RateLimits, RequestLimits
from chatd.api.accounts.sign_in import SignIn
from chatd.api.accounts.site import Site, SiteConfig
from chatd.domain.ids import UserId
from chatd.domain.ports import Env
from chatd.store.config_changes import ConfigChanges
from chatd.store.pool import Pool


class AccountsConfig(Struct, frozen=True, kw_only=True):
    """`has_passwords`: users may sign in with a password."""

    site: SiteConfig = SiteConfig()
    limits: RequestLimits = RequestLimits()
    has_passwords: bool = True


class Accounts(Struct, frozen=True, kw_only=True):
    site: Site
    authenticator: Authenticator
    passwords: Passwords
    sign_in: SignIn
    limits: RateLimits
    has_passwords: bool = True

    @property
    def oidc_name(self) -> str | None:
        return None


def build_accounts(
    pool: Pool,
    env: Env,
    changes: ConfigChanges,
    config: AccountsConfig,
    *,
    fixed: Mapping[str, UserId],
    hasher: PasswordHasher | None = None,
) -> Accounts:
    """`fixed` are tokens that no row holds. `hasher` is given by tests. Raises ValueError for an
    address or a network of the settings that is none."""
    site = Site(config.site)
    passwords = Passwords(hasher)
    return Accounts(
        site=site,
        authenticator=Authenticator(pool, env.clock, changes, site, fixed=fixed),
        passwords=passwords,
        sign_in=SignIn(pool, env, site, passwords),
        limits=RateLimits(config.limits, env.clock),
        has_passwords=config.has_passwords,
    )
