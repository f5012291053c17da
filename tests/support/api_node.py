"""A node for a real API server that has none: it binds pods, runs their processes, and reports.

It stands for the scheduler, the kubelet and the controller that frees claims, as far as workspaces
need them, in a namespace of its own. See `make test-kubernetes`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import aiohttp.web
import msgspec

from chatd.workspaces.kubernetes.cluster_access import ClusterAccess
from tests.support.pod_processes import Node, PodProcesses
from tests.support.providers.certificate import self_signed

Object = dict[str, Any]
MERGE = "application/merge-patch+json"


class ApiNode:
    def __init__(self, access: ClusterAccess, root: Path, kits: Path) -> None:
        self._access = access
        self._name = f"chatd-test-{uuid4().hex[:12]}"
        self._secrets: dict[str, Object] = {}
        self._pods: dict[str, PodProcesses] = {}
        self._seen: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        root.mkdir(exist_ok=True)
        self._node = Node(root, kits, self._secrets.get)
        self._tls = access.tls()
        self._session: aiohttp.ClientSession | None = None

    @property
    def _http(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    @property
    def namespace(self) -> str:
        return self._name

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["ApiNode"]:
        async with aiohttp.ClientSession() as http, self._serving_logs() as port:
            self._session = http
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            body = {"metadata": {"name": self._name, "labels": labels}}
            await self._ask("POST", "/namespaces", body)
            await self._ask("POST", "/nodes", {"metadata": {"name": self._name}})
            status = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            }
            await self._ask("PATCH", f"/nodes/{self._name}/status", {"status": status}, MERGE)
            self._begin(self._watch())
            self._begin(self._free_claims())
            try:
                yield self
            finally:
                for task in tuple(self._tasks):
                    task.cancel()
                await asyncio.wait(tuple(self._tasks))
                await self._ask("DELETE", f"/nodes/{self._name}")
                await self._ask("DELETE", f"/namespaces/{self._name}")

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._access.headers(), "Content-Type": content_type}
        async with self._http.request(
            method, f"{self._access.server}/api/v1{path}", data=data, headers=headers,
            ssl=True if self._tls is None else self._tls,
        ) as response:  # fmt: skip
            answer = await response.json()
            if response.status >= 300 and response.status not in (404, 409):
                raise AssertionError(answer)
            return answer

    def _path(self, kind: str, name: str = "") -> str:
        path = f"/namespaces/{self._name}/{kind}"
        return f"{path}/{name}" if name else path

    async def _watch(self) -> None:
        url = f"{self._access.server}/api/v1{self._path('pods')}?watch=true"
        tls = True if self._tls is None else self._tls
        while True:
            timeout = aiohttp.ClientTimeout(total=None)
            async with self._http.get(
                url, headers=self._access.headers(), ssl=tls, timeout=timeout
            ) as events:
                async for line in events.content:
                    event = json.loads(line)
                    if event["type"] in ("ADDED", "MODIFIED"):
                        await self._see(event["object"])

    async def _see(self, pod: Object) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if "deletionTimestamp" in metadata:
            if uid in self._pods:
                self._pods[uid].end(metadata.get("deletionGracePeriodSeconds", 0))
        elif uid not in self._seen:
            self._seen.add(uid)
            for secret in (await self._ask("GET", self._path("secrets")))["items"]:
                self._secrets[secret["metadata"]["name"]] = secret.get("data", {})
            target = {"apiVersion": "v1", "kind": "Node", "name": self._name}
            binding = {"metadata": {"name": metadata["name"]}, "target": target}
            await self._ask("POST", f"{self._path('pods', metadata['name'])}/binding", binding)
            self._begin(self._run(pod))

    async def _run(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = self._path("pods", metadata["name"])

        async def report(status: Object) -> None:
            await self._ask("PATCH", f"{path}/status", {"status": status}, MERGE)

        processes = self._pods[metadata["uid"]] = PodProcesses(self._node, pod, report)
        await processes.run()
        await processes.ending.wait()
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        await self._ask("DELETE", path, options)
        del self._pods[metadata["uid"]]
        processes.close()

    async def _free_claims(self) -> None:
        """As the controller does that protects claims in use."""
        while True:
            for claim in (await self._ask("GET", self._path("persistentvolumeclaims")))["items"]:
                metadata = claim["metadata"]
                is_used = any(pod.uses_claim(metadata["name"]) for pod in self._pods.values())
                if "deletionTimestamp" in metadata and not is_used:
                    body = {"metadata": {"finalizers": None}}
                    path = self._path("persistentvolumeclaims", metadata["name"])
                    await self._ask("PATCH", path, body, MERGE)
                    await asyncio.to_thread(self._node.remove_claim, metadata["name"])
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def _serving_logs(self) -> AsyncGenerator[int]:
        """What a kubelet serves, and the API server asks for."""

        async def serve(request: aiohttp.web.Request) -> aiohttp.web.Response:
            _, _, _, pod, container = request.path.split("/")
            for processes in self._pods.values():
                if processes.name == pod and (text := processes.log(container)) is not None:
                    return aiohttp.web.Response(body=text)
            return aiohttp.web.Response(status=404)

        app = aiohttp.web.Application()
        app.router.add_get("/{path:.*}", serve)
        runner = aiohttp.web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        tls = self_signed(self._node.root)
        await aiohttp.web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


def in_namespace(config: Path, namespace: str, target: Path) -> Path:
    """A kubeconfig like this one for another namespace."""
    raw = msgspec.yaml.decode(config.read_bytes())
    current = next(c for c in raw["contexts"] if c["name"] == raw["current-context"])
    current["context"]["namespace"] = namespace
    target.write_text(json.dumps(raw))
    return target
