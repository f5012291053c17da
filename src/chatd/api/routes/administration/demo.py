"""Routes of the demo: start a worker process, and kill it in the middle of its work."""

from typing import Annotated

from msgspec import Struct

from chatd.api.accounts.site import is_loopback
from chatd.api.deps import ApiDeps
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.domain.description import describe
from chatd.domain.errors import Conflict
from chatd.services.operation.demo_worker import DemoWorker

# Bodies of the demo. Docstrings here are part of the OpenAPI document.


class DemoReply(Struct, frozen=True, kw_only=True):
    """Whether a worker can be killed here, to see that another goes on."""

    available: Annotated[
        bool,
        describe(
            "Whether this server and caller may play the demo: on this machine, as an"
            " administrator, while the demo model is the default."
        ),
    ]
    worker_running: Annotated[bool, describe("Whether a worker process runs that may be killed.")]


class DemoRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /demo",
                permission="config.read",
                summary="Get whether a worker can be killed here, to see that another goes on",
                handle=self.get_demo,
                replies={200: DemoReply},
            ),
            ApiRoute(
                endpoint="POST /demo/worker",
                permission="config.write",
                summary="Start a worker process that runs the chats until it is killed",
                description=(
                    "The worker of the server takes no new chats meanwhile. Without a new start the"
                    " process ends after 15 minutes."
                ),
                handle=self.start_demo_worker,
                replies={200: DemoReply},
                errors=("not_in_demo",),
                starts_work=True,
            ),
            ApiRoute(
                endpoint="POST /demo/kill-worker",
                permission="config.write",
                summary="Kill that worker process, as a crash would",
                handle=self.kill_demo_worker,
                replies={204: None},
                errors=("not_in_demo", "no_demo_worker"),
            ),
        )

    async def get_demo(self, request: ApiRequest) -> ApiReply:
        demo = self._deps.demo
        available = demo is not None and self._is_local(request) and await demo.is_available()
        return reply(
            DemoReply(available=available, worker_running=demo is not None and demo.is_running)
        )

    async def start_demo_worker(self, request: ApiRequest) -> ApiReply:
        demo = self._require_demo(request)
        await demo.start()
        return reply(DemoReply(available=True, worker_running=True))

    async def kill_demo_worker(self, request: ApiRequest) -> ApiReply:
        await self._require_demo(request).kill()
        return NO_CONTENT

    def _require_demo(self, request: ApiRequest) -> DemoWorker:
        demo = self._deps.demo
        if demo is None or not self._is_local(request):
            raise Conflict(
                "The demo of a killed worker is only for a browser on the machine of the server.",
                code="not_in_demo",
            )
        return demo

    def _is_local(self, request: ApiRequest) -> bool:
        return is_loopback(self._deps.accounts.site.address(request.scope) or "")
