"""The routes by which an administrator asks a server what is wrong with its deployment, and
confirms that a restored one may act."""

from datetime import datetime
from importlib import metadata
from typing import Annotated

from msgspec import Struct, convert

from chatd.api.deps import ApiDeps
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.domain.deployment.diagnosis import Finding
from chatd.domain.description import CREATED_AT, describe
from chatd.store.deployment import backups


class DiagnosisReply(Struct, frozen=True, kw_only=True):
    """What the server found when it examined its database, its host and its replicas."""

    version: Annotated[str, describe("The server's version of chatd.", "0.1.0")]
    time: Annotated[datetime, describe("The server's clock.", CREATED_AT)]
    findings: Annotated[tuple[Finding, ...], describe("A result for each check.")]


class RestoreReply(Struct, frozen=True, kw_only=True):
    """The restore that made this deployment."""

    made_at: Annotated[datetime, describe("When the backup was made.", CREATED_AT)]
    restored_at: Annotated[datetime, describe("When it was restored.", CREATED_AT)]
    confirmed_at: Annotated[
        datetime | None, describe("Since when the deployment acts by itself.", CREATED_AT)
    ]


class DiagnosisRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /diagnosis",
                permission="config.read",
                summary="Examine the database, the host and the replicas of this deployment",
                description="The checks take up to a few seconds. `chatd doctor` prints them.",
                handle=self.get_diagnosis,
                replies={200: DiagnosisReply},
            ),
            ApiRoute(
                endpoint="POST /restore/confirm",
                permission="config.write",
                summary="Confirm that a deployment restored from a backup replaces the original",
                description="Until then it runs no chats and no schedules, sends no webhooks and"
                " deletes nothing. `GET /auth/me` shows whether it waits, as `restored_from`.",
                handle=self.confirm_restore,
                replies={200: RestoreReply},
                errors=("nothing_to_confirm",),
            ),
        )

    async def confirm_restore(self, request: ApiRequest) -> ApiReply:
        actor, ip = request.caller.actor, self._deps.accounts.site.address(request.scope)
        async with self._deps.pool.transaction() as session:
            record = await backups.confirm_restore(session, actor, ip=ip)
        return reply(convert(record, RestoreReply, from_attributes=True))

    async def get_diagnosis(self, request: ApiRequest) -> ApiReply:
        del request
        doctor = self._deps.doctor
        findings = [] if doctor is None else await doctor.examine()
        version, now = metadata.version("chatd"), self._deps.env.clock.now()
        return reply(DiagnosisReply(version=version, time=now, findings=tuple(findings)))
