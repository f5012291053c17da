"""Services that work beside the chats: models, webhooks, gauges, the demo's worker."""

import math
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from chatd.api.accounts.site import is_loopback
from chatd.api.model_ports import ModelServices
from chatd.app.role import ProcessRole
from chatd.automation.push_requests import DEFAULT_CONTACT, PushRequests
from chatd.automation.webhook_sender import WebhookSender
from chatd.demo_worker import DemoWorker, worker_environment
from chatd.models.administration import ModelAdministration
from chatd.models.configuration import DEMO_MODEL
from chatd.models.directory import ModelDirectory
from chatd.models.provider_administration import ProviderAdministration
from chatd.models.provider_clients import ProviderClients
from chatd.models.provider_trials import ProviderTrials
from chatd.models.user_keys import UserKeys
from chatd.providers.registry import ProviderRegistry
from chatd.replica import Replica
from chatd.sealed_secrets import KeyRing
from chatd.settings.schema import Settings
from chatd.telemetry import Gauges


def build_gauges(registry: CollectorRegistry, settings: Settings, replica: Replica) -> Gauges:
    gauges, pool = Gauges(registry), replica.database.pool

    def tick_age() -> float:
        """NaN without a worker and before its first heartbeat."""
        age = replica.lease.age_s
        return math.nan if age is None else age

    gauges.running.set_function(lambda: replica.worker.running)
    gauges.slots.labels("chats").set(settings.worker.slots)
    gauges.slots.labels("subagents").set(settings.worker.child_slots)
    gauges.tick_age.set_function(tick_age)
    gauges.connections.set_function(lambda: pool.size)
    gauges.connections_limit.set(settings.database.pool_size)
    gauges.connections_waiting.set_function(lambda: pool.waiting)
    return gauges


def build_demo_worker(
    settings: Settings,
    env: Mapping[str, str],
    role: ProcessRole,
    replica: Replica,
    models: ModelDirectory,
) -> DemoWorker:
    """Wanted only where this machine's browsers alone reach a server that runs chats itself."""
    is_local = role.serves == "api" and role.runs_chats and is_loopback(settings.server.host)

    async def is_wanted() -> bool:
        if not is_local or not settings.demo.kill_worker:
            return False
        default = await models.default()
        return default is not None and default.config.provider == DEMO_MODEL.provider

    return DemoWorker(
        worker_environment(settings, env),
        replica.env.clock,
        own=replica.worker,
        is_wanted=is_wanted,
    )


def build_webhook_sender(settings: Settings, replica: Replica, ring: KeyRing) -> WebhookSender:
    pool, env = replica.database.pool, replica.env
    pushes = PushRequests(
        pool,
        ring,
        env,
        contact=_push_contact(settings),
        summarize=replica.titles.label_turn if settings.chats.titles else None,
    )
    private = settings.webhooks.private_addresses
    sender = WebhookSender(pool, ring, env, pushes, allow_private=private)
    replica.on_turn_end = sender.on_turn_end
    return sender


def _push_contact(settings: Settings) -> str:
    """Push services refuse addresses that are not public, so loopback is never named."""
    url = settings.server.url
    if settings.webhooks.push_contact is not None:
        return settings.webhooks.push_contact
    return url if url is not None and url.startswith("https://") else DEFAULT_CONTACT


def build_model_services(
    models: ModelDirectory,
    clients: ProviderClients,
    own: ProviderRegistry,
    replica: Replica,
    ring: KeyRing,
) -> ModelServices:
    pool, env = replica.database.pool, replica.env
    return ModelServices(
        models=ModelAdministration(models, env),
        providers=ProviderAdministration(models, clients, ring, env),
        user_keys=UserKeys(pool, models, ring, env),
        calls=ProviderTrials(models, clients, own, env),
    )
