"""The route by which an administrator asks a server what is wrong with its deployment."""

from datetime import datetime
from importlib import metadata
from typing import Annotated

from msgspec import Struct

from chatd.api.deps import ApiDeps
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.domain.deployment.diagnosis import Finding
from chatd.domain.description import CREATED_AT, describe


class DiagnosisReply(Struct, frozen=True, kw_only=True):
    """What the server found when it examined its database, its host and its replicas."""

    version: Annotated[str, describe("The server's version of chatd.", "0.1.0")]
    time: Annotated[datetime, describe("The server's clock.", CREATED_AT)]
    findings: Annotated[tuple[Finding, ...], describe("A result for each check.")]


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
        )

    async def get_diagnosis(self, request: ApiRequest) -> ApiReply:
        del request
        doctor = self._deps.doctor
        findings = [] if doctor is None else await doctor.examine()
        version, now = metadata.version("chatd"), self._deps.env.clock.now()
        return reply(DiagnosisReply(version=version, time=now, findings=tuple(findings)))
