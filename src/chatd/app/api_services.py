"""What the API is given, from the settings and the objects of the built."""

import asyncio

from chatd.api.accounts.authenticator import ADMIN_TOKEN_FILE as TOKEN_FILE
from chatd.api.accounts.authenticator import AccountsConfig, admin_token, build_accounts
from chatd.api.accounts.oidc import OidcConfig
from chatd.api.accounts.request_limits import RequestLimits
from chatd.api.accounts.site import SiteConfig
from chatd.api.application import HealthApplication, HealthRoutes, build_application
from chatd.api.deps import ApiDeps, RetentionDays, StreamLimits
from chatd.api.server import Application
from chatd.app.composition import Composition, file_limits
from chatd.domain.access.accounts import IdentityRules
from chatd.domain.access.permissions import ADMIN_USER_ID
from chatd.settings.schema import OidcSettings, Settings, SettingsError


def _retention(settings: Settings) -> RetentionDays:
    chats = settings.chats
    return RetentionDays(
        auto_archive=chats.auto_archive_days,
        archived_chats=chats.retention_days,
        deleted_messages=chats.deleted_messages_days,
        usage=chats.usage_days,
        debug_records=chats.debug_days,
        audit_log=settings.audit.retention_days,
        workspaces=settings.workspaces.retention_days,
    )


def accounts_config(settings: Settings) -> AccountsConfig:
    server, limits = settings.server, settings.limits
    return AccountsConfig(
        site=SiteConfig(
            url=server.url,
            allowed_hosts=server.allowed_hosts,
            allowed_origins=server.allowed_origins,
            trusted_proxies=server.trusted_proxies,
        ),
        limits=RequestLimits(
            requests=limits.requests_per_minute,
            chats=limits.new_chats_per_minute,
            files=limits.uploads_per_minute,
        ),
        has_passwords=settings.sign_in.passwords,
        oidc=_oidc_config(settings.oidc),
        identity_rules=IdentityRules(
            allowed_domains=settings.oidc.allowed_domains,
            auto_create=settings.oidc.auto_create,
            link_by_email=settings.oidc.link_by_email,
            trust_email=settings.oidc.trust_email,
            groups_claim=settings.oidc.groups_claim,
            admin_groups=settings.oidc.admin_groups,
            viewer_groups=settings.oidc.viewer_groups,
        ),
        managed_groups=settings.oidc.groups,
    )


def _oidc_config(oidc: OidcSettings) -> OidcConfig | None:
    """Raises SettingsError."""
    if oidc.issuer is None:
        return None
    if oidc.client_id is None:
        raise SettingsError("oidc.client_id is missing: oidc.issuer is set")
    return OidcConfig(
        issuer=oidc.issuer,
        client_id=oidc.client_id,
        client_secret=oidc.client_secret,
        name=oidc.name,
        scopes=oidc.scopes,
    )


def _deps(built: Composition, given_token: str | None, stop: asyncio.Event) -> ApiDeps:
    replica, settings = built.replica, built.settings
    limits = settings.limits
    token = admin_token(given_token, settings.data_dir)
    if given_token is None and settings.database.url is not None:
        replica.env.emit("admin_token_of_this_host", file=str(settings.data_dir / TOKEN_FILE))
    return ApiDeps(
        pool=replica.database.pool,
        transactor=replica.transactor,
        announce=replica.announce_chat,
        reserve_slot=replica.reserve_slot,
        titles=replica.titles,
        feeds=replica.feeds,
        chat_lists=replica.chat_lists,
        models=built.models,
        model_administration=built.model_administration,
        provider_administration=built.provider_administration,
        provider_trials=built.provider_trials,
        user_keys=built.user_keys,
        accounts=build_accounts(
            replica.database.pool,
            replica.env,
            replica.config_changes,
            accounts_config(settings),
            fixed={token: ADMIN_USER_ID},
            key_ring=built.key_ring,
        ),
        env=replica.env,
        registry=built.registry,
        files=replica.files,
        key_ring=built.key_ring,
        wake_webhooks=built.webhooks.wake,
        push_public_key=built.webhooks.pushes.public_key,
        reaches_private_hosts=settings.webhooks.private_addresses,
        frame_origins=settings.server.frame_origins,
        metrics_token=settings.server.metrics_token,
        file_limits=file_limits(settings),
        draining=stop.is_set,
        known=replica.feeds.known,
        workspaces=built.workspace_control,
        budget=replica.budget,
        default_limit=replica.default_limit,
        retention=_retention(settings),
        limits=StreamLimits(
            streams_per_user=limits.streams_per_user, topics_per_socket=limits.topics_per_socket
        ),
        database_error=lambda: replica.lease.error_kind,
        demo=built.demo,
        stops_subagents=settings.chats.interrupt_subagents == "stop",
        mcp=built.mcp,
    )


def build_served_application(
    built: Composition, token: str | None, stop: asyncio.Event
) -> Application:
    if built.role.serves == "api":
        return build_application(_deps(built, token, stop))
    lease = built.replica.lease
    return HealthApplication(
        HealthRoutes(
            built.pool,
            built.registry,
            stop.is_set,
            lambda: lease.error_kind,
            metrics_token=built.settings.server.metrics_token,
        )
    )
