"""A strict API server of Kubernetes for tests, with one node that runs the pods.

Objects must fit the official OpenAPI schemas, without unknown fields, and the rules of the real
server that the manifests could break. It can be told to refuse, delay or lose calls, to forget the
past (410), to end watches, to have no room, and to lose its node.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import aiohttp.web
from msgspec import Struct

from chatd.workspaces.kubernetes.pod_plan import SANDBOX_API
from tests.support.pod_processes import Node, PodProcesses

Object = dict[str, Any]
NAMESPACE = "workspaces"
KINDS = {
    "pods": "Pod",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "secrets": "Secret",
    "sandboxes": "Sandbox",
}
SANDBOX_PATH = f"/apis/{SANDBOX_API}"
SCHEMAS: dict[str, Object] = json.loads(
    (Path(__file__).parents[1] / "data" / "kubernetes" / "schemas.json").read_text()
)["definitions"]
TEXTS: Object = {"type": "object", "additionalProperties": {"type": "string"}}
# Version v1beta1 of agent-sandbox, as far as chatd could use it.
SCHEMAS["api.core.v1.Sandbox"] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"$ref": "#/definitions/apimachinery.pkg.apis.meta.v1.ObjectMeta"},
        "spec": {
            "type": "object",
            "required": ["podTemplate"],
            "properties": {
                "podTemplate": {
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "metadata": {
                            "type": "object",
                            "properties": {"labels": TEXTS, "annotations": TEXTS},
                        },
                        "spec": {"$ref": "#/definitions/api.core.v1.PodSpec"},
                    },
                },
                "operatingMode": {"type": "string"},
                "service": {"type": "boolean"},
                "shutdownPolicy": {"type": "string"},
                "shutdownTime": {"type": "string"},
            },
        },
    },
}
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")
KEY = re.compile(r"([a-z0-9.-]{1,253}/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?")


class Refusal(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: Object = {
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": status, "reason": reason, "message": message,
        }  # fmt: skip


def find_problem(value: object, schema: Object, path: str = "") -> str:  # noqa: C901, PLR0912
    """Why the value does not fit the schema; empty if it does."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name.endswith("resource.Quantity"):
            is_quantity = isinstance(value, str) and QUANTITY.fullmatch(value) is not None
            return "" if is_quantity else f"{path}: {value!r} is no quantity"
        return find_problem(value, SCHEMAS[name], path)
    match schema.get("type"):
        case "object" if not isinstance(value, dict):
            return f"{path}: expected an object"
        case "object":
            fields = cast("Object", value)
            known = schema.get("properties")
            for name in schema.get("required", ()):
                if name not in fields:
                    return f"{path}.{name}: is required"
            for name, each in fields.items():
                inner = schema.get("additionalProperties") if known is None else known.get(name)
                if inner is None and (known is not None or "additionalProperties" in schema):
                    return f'unknown field "{path}.{name}"'
                if inner and (problem := find_problem(each, inner, f"{path}.{name}")):
                    return problem
        case "array" if not isinstance(value, list):
            return f"{path}: expected a list"
        case "array":
            items = cast("list[object]", value)
            for number, each in enumerate(items):
                if problem := find_problem(each, schema["items"], f"{path}[{number}]"):
                    return problem
        case "string" if schema.get("format") == "int-or-string":
            return "" if isinstance(value, str | int) else f"{path}: expected a string or a number"
        case kind:
            types = {"string": str, "integer": int, "boolean": bool}
            is_wrong_bool = kind == "integer" and isinstance(value, bool)
            if not isinstance(value, types[str(kind)]) or is_wrong_bool:
                return f"{path}: expected {kind}, and it is {value!r}"
    return ""


def check_object(kind: str, body: Object) -> None:
    """Raises Refusal as the real server would."""
    version = SANDBOX_API if kind == "sandboxes" else "v1"
    if body.get("apiVersion") != version or body.get("kind") != KINDS[kind]:
        raise Refusal(400, "BadRequest", f"the object is not a {KINDS[kind]} of v1")
    problem = find_problem(body, SCHEMAS[f"api.core.v1.{KINDS[kind]}"])
    metadata = body.get("metadata", {})
    for key, value in metadata.get("labels", {}).items():
        if not KEY.fullmatch(key) or not LABEL.fullmatch(value):
            problem = problem or f"metadata.labels: invalid {key}={value}"
    for key in metadata.get("annotations", {}):
        problem = problem or ("" if KEY.fullmatch(key) else f"metadata.annotations: {key}")
    if not NAME.fullmatch(metadata.get("name", "")):
        problem = problem or "metadata.name: invalid"
    if kind == "pods":
        problem = problem or _pod_problem(body["spec"])
    if kind == "sandboxes" and not problem:
        is_mode = body["spec"].get("operatingMode", "Running") in {"Running", "Suspended"}
        pod_problem = _pod_problem(body["spec"]["podTemplate"]["spec"])
        problem = pod_problem if is_mode else "spec.operatingMode: Unsupported value"
    if kind == "persistentvolumeclaims":
        has_size = body["spec"]["resources"]["requests"].get("storage", "0") != "0"
        problem = problem or ("" if has_size else "spec.resources[storage]: is required")
    if problem:
        raise Refusal(422, "Invalid", f"{KINDS[kind]} is invalid: {problem}")


def _pod_problem(spec: Object) -> str:  # noqa: C901
    volumes = [each["name"] for each in spec.get("volumes", ())]
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    names = [each["name"] for each in containers]
    if len(set(names)) != len(names) or len(set(volumes)) != len(volumes):
        return "spec: names of containers and volumes must be unique"
    for volume in spec.get("volumes", ()):
        if len(volume) != 2:
            return f"spec.volumes: {volume['name']} must have one source"
    for each in containers:
        paths = [mount["mountPath"] for mount in each.get("volumeMounts", ())]
        if len(set(paths)) != len(paths):
            return f"{each['name']}.volumeMounts: must be unique"
        for mount in each.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                return f'{each["name"]}.volumeMounts: Not found: "{mount["name"]}"'
        if not each.get("image"):
            return f"{each['name']}.image: Required value"
        resources = each.get("resources", {})
        for name, limit in resources.get("limits", {}).items():
            if _amount(resources.get("requests", {}).get(name, limit)) > _amount(limit):
                return f"{each['name']}.resources.requests: must be at most the {name} limit"
    for each in spec.get("initContainers", ()):
        if "startupProbe" in each:
            return f"{each['name']}.startupProbe: may not be set for init containers"
    return _restricted_problem(spec, containers)


def _restricted_problem(spec: Object, containers: list[Object]) -> str:
    """The Pod Security Standard `restricted`, as the namespace enforces it."""
    security = spec.get("securityContext", {})
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        return 'violates PodSecurity "restricted": runAsNonRoot'
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        return 'violates PodSecurity "restricted": seccompProfile'
    if any("hostPath" in volume for volume in spec.get("volumes", ())):
        return 'violates PodSecurity "restricted": restricted volume types'
    for each in containers:
        own = each.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            return 'violates PodSecurity "restricted": allowPrivilegeEscalation'
        if own.get("capabilities") != {"drop": ["ALL"]}:
            return 'violates PodSecurity "restricted": unrestricted capabilities'
    return ""


def _amount(quantity: str) -> float:
    units = {"m": 0.001, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity)
    assert found is not None
    return float(found[1]) * units.get(found[2], 1)


def _chart_role() -> frozenset[tuple[str, str]]:
    """What the role of the chart allows, as resource and verb."""
    chart = Path(__file__).parents[2] / "deploy" / "helm" / "chatd" / "templates" / "runner.yaml"
    rules = re.findall(r"resources: \[(.+)\]\n +verbs: \[(.+)\]", chart.read_text())
    return frozenset(
        (resource.strip(), verb.strip())
        for resources, verbs in rules
        for resource in resources.split(",")
        for verb in verbs.split(",")
    )


ROLE = _chart_role()
VERBS = {"LOG": "get", "WATCH": "watch", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Fault(Struct):
    """What the next `times` calls with this method and kind get instead of an answer. `status` 0:
    the connection is lost. `is_silent`: it stays, without an answer. `is_done`: the call takes
    effect all the same."""

    method: str
    kind: str
    status: int = 0
    times: int = 1
    headers: dict[str, str] = {}
    is_silent: bool = False
    is_done: bool = False


class FakeCluster:
    def __init__(self, root: Path, kits: Path) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.node = Node(root, kits, self._secret_data)
        self.tokens = {"first"}
        self.faults: list[Fault] = []
        self.calls: list[str] = []
        self.unschedulable = ""
        self.is_node_lost = False
        self.role = set(ROLE)
        self.has_sandboxes = False
        self.has_controller = True
        self.oldest = 0
        self.watches = 0
        self.url = ""
        self.pods: dict[str, PodProcesses] = {}
        self._version = 0
        self._events: list[tuple[int, str, str, Object]] = []
        self._changed = asyncio.Condition()
        self._ended_watches = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["FakeCluster"]:
        app = aiohttp.web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        runner = aiohttp.web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(tuple(self._tasks))
            await runner.cleanup()

    def kubeconfig(self, path: Path) -> Path:
        config = {
            "current-context": "test",
            "contexts": [
                {
                    "name": "test",
                    "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE},
                }
            ],
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"tokenFile": "token"}}],
        }
        path.write_text(json.dumps(config))
        (path.parent / "token").write_text(min(self.tokens))
        return path

    def names(self, kind: str) -> list[str]:
        return sorted(name for each, name in self.objects if each == kind)

    # What a test makes happen

    def compact(self) -> None:
        """Forget the past: watches from there get 410."""
        self.oldest = self._version + 1

    async def end_watches(self) -> None:
        async with self._changed:
            self._ended_watches += 1
            self._changed.notify_all()

    async def evict(self, name: str, message: str) -> None:
        self.pods[name].end(0)
        pod = self.objects["pods", name]
        await self._change(
            "pods", {**pod, "status": {"phase": "Failed", "reason": "Evicted", "message": message}}
        )

    # The API

    async def _serve(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        try:
            return await self._answer(request)
        except Refusal as refusal:
            return aiohttp.web.json_response(refusal.body, status=refusal.status)

    async def _answer(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        if request.path == "/version":
            return aiohttp.web.json_response({"gitVersion": "v1.34.0-fake"})
        is_custom = request.path.startswith(SANDBOX_PATH)
        if is_custom and not self.has_sandboxes:
            return aiohttp.web.Response(status=404, text="404 page not found")
        if request.path == SANDBOX_PATH:
            listed = {"kind": "APIResourceList", "groupVersion": SANDBOX_API}
            resource = {"name": "sandboxes", "kind": "Sandbox", "namespaced": True}
            return aiohttp.web.json_response({**listed, "resources": [resource]})
        found = re.fullmatch(
            r"/(?:api/v1|apis/agents.x-k8s.io/v1beta1)/namespaces/([^/]+)/([a-z]+)"
            r"(?:/([^/]+))?(/log)?",
            request.path,
        )
        if found is not None and is_custom != (found[2] == "sandboxes"):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if found is None or found[2] not in KINDS or found[1] != NAMESPACE:
            raise Refusal(403, "Forbidden", f"{request.path} is forbidden: no role allows it")
        kind, name, is_log = found[2], found[3], found[4]
        is_watch = request.query.get("watch") == "true"
        word = "LOG" if is_log else "WATCH" if is_watch else request.method
        verb = VERBS.get(word) or ("list" if name is None else "get")
        if (kind + (is_log or ""), verb) not in self.role:
            raise Refusal(403, "Forbidden", f"{kind} is forbidden: the role allows no {verb}")
        self.calls.append(f"{word} {kind}")
        fault = self._take_fault(word, kind)
        if fault is not None and not fault.is_done:
            return await self._fail(request, fault)
        answer = await self._act(request, kind, name, word)
        return answer if fault is None else await self._fail(request, fault)

    async def _act(
        self, request: aiohttp.web.Request, kind: str, name: str | None, word: str
    ) -> aiohttp.web.StreamResponse:
        body: Object = await request.json() if request.can_read_body else {}
        match word, name:
            case "LOG", str():
                return self._log(name, request.query["container"])
            case "WATCH", None:
                return await self._watch(request, kind)
            case "GET", None:
                return aiohttp.web.json_response(self._list(kind, request))
            case "GET", str():
                return aiohttp.web.json_response(self._get(kind, name))
            case "POST", None:
                return aiohttp.web.json_response(await self._create(kind, body), status=201)
            case "PATCH", str():
                return aiohttp.web.json_response(await self._patch(kind, name, body, request))
            case "DELETE", str():
                problem = find_problem(body, SCHEMAS["apimachinery.pkg.apis.meta.v1.DeleteOptions"])
                if problem:
                    raise Refusal(400, "BadRequest", problem)
                return aiohttp.web.json_response(
                    await self._delete(kind, name, body.get("gracePeriodSeconds"))
                )
            case _:
                raise Refusal(405, "MethodNotAllowed", f"{word} is not allowed")

    def _take_fault(self, method: str, kind: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and (fault.method, fault.kind) == (method, kind):
                fault.times -= 1
                return fault
        return None

    async def _fail(self, request: aiohttp.web.Request, fault: Fault) -> aiohttp.web.StreamResponse:
        if fault.is_silent:
            await asyncio.Event().wait()
        if not fault.status:
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionError
        body = Refusal(fault.status, "Fault", "the test wants it so").body
        return aiohttp.web.json_response(body, status=fault.status, headers=fault.headers)

    def _get(self, kind: str, name: str) -> Object:
        found = self.objects.get((kind, name))
        if found is None:
            raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
        return found

    def _list(self, kind: str, request: aiohttp.web.Request) -> Object:
        """Pages of what there is now; the place is the name of the next one."""
        selector = request.query.get("labelSelector", "")
        wanted = dict(each.split("=") for each in selector.split(",") if each)
        after, at = "", self._version
        if "continue" in request.query:
            number, _, after = request.query["continue"].partition(" ")
            at = int(number)
            if at < self.oldest:
                raise Refusal(410, "Expired", "The provided continue parameter is too old")
        limit = int(request.query.get("limit", "0")) or 10_000
        found = [
            each
            for (of, name), each in sorted(self.objects.items())
            if of == kind
            and name > after
            and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]
        metadata = {"resourceVersion": str(at)}
        if len(found) > limit:
            metadata["continue"] = f"{at} {found[limit - 1]['metadata']['name']}"
        return {"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": found[:limit]}

    async def _create(self, kind: str, body: Object) -> Object:
        check_object(kind, body)
        name = body["metadata"]["name"]
        if (kind, name) in self.objects:
            raise Refusal(409, "AlreadyExists", f'{kind} "{name}" already exists')
        metadata = {
            **body["metadata"],
            "namespace": NAMESPACE,
            "uid": str(uuid4()),
            "creationTimestamp": _now(),
        }
        made = {**body, "metadata": metadata}
        if kind == "pods":
            made["status"] = {"phase": "Pending"}
            if self.unschedulable:
                made["status"]["conditions"] = [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": self.unschedulable,
                    }
                ]
            else:
                made["spec"] = {**made["spec"], "nodeName": "node-1"}
        await self._change(kind, made, "ADDED")
        if kind == "sandboxes":
            await self.reconcile(name)
        if kind == "pods" and not self.unschedulable:
            task = asyncio.get_running_loop().create_task(self._run_pod(made))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return made

    async def _patch(
        self, kind: str, name: str, body: Object, request: aiohttp.web.Request
    ) -> Object:
        if request.content_type != "application/merge-patch+json":
            raise Refusal(415, "UnsupportedMediaType", "the patch has no known type")
        found = self._get(kind, name)
        if kind == "sandboxes":
            return await self._patch_sandbox(found, body)
        if set(body) != {"metadata"} or not set(body["metadata"]) <= {"annotations", "labels"}:
            raise Refusal(422, "Invalid", "the test's cluster patches labels and annotations only")
        metadata = dict(found["metadata"])
        for field, values in body["metadata"].items():
            metadata[field] = {**metadata.get(field, {}), **values}
        changed = {**found, "metadata": metadata}
        await self._change(kind, changed)
        return changed

    async def _patch_sandbox(self, found: Object, body: Object) -> Object:
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != found["metadata"]["resourceVersion"]:
            raise Refusal(409, "Conflict", "the object has been modified")
        changed = merge_patch(found, body)
        check_object("sandboxes", changed)
        await self._change("sandboxes", changed)
        await self.reconcile(changed["metadata"]["name"])
        return changed

    async def reconcile(self, name: str) -> None:
        """What the controller of agent-sandbox does: a pod of the Sandbox's name while it runs, and
        none while it is suspended. A pod that ended is left as it is."""
        if not self.has_controller:
            return
        sandbox, pod = self.objects.get(("sandboxes", name)), self.objects.get(("pods", name))
        if sandbox is None:
            return
        owner = {
            "apiVersion": SANDBOX_API, "kind": "Sandbox", "name": name,
            "uid": sandbox["metadata"]["uid"], "controller": True,
        }  # fmt: skip
        is_running = sandbox["spec"].get("operatingMode", "Running") == "Running"
        if is_running and pod is None:
            template = sandbox["spec"]["podTemplate"]
            metadata = {**template["metadata"], "name": name, "ownerReferences": [owner]}
            made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            await self._create("pods", {**made, "spec": template["spec"]})
        elif not is_running and pod is not None and "ownerReferences" in pod["metadata"]:
            await self._delete("pods", name, None)

    async def _delete(self, kind: str, name: str, grace_s: int | None) -> Object:
        found = self._get(kind, name)
        usual = found.get("spec", {}).get("terminationGracePeriodSeconds", 0)
        grace = usual if grace_s is None else grace_s
        if kind == "persistentvolumeclaims" and self._is_used(name):
            # Its finalizer keeps it until no pod uses it.
            ending = {**found, "metadata": {**found["metadata"], "deletionTimestamp": _now()}}
            await self._change(kind, ending)
            return ending
        if kind == "pods" and (name in self.pods or self.is_node_lost):
            metadata = {
                **found["metadata"],
                "deletionTimestamp": _now(),
                "deletionGracePeriodSeconds": grace,
            }
            ending = {**found, "metadata": metadata}
            await self._change(kind, ending)
            if not self.is_node_lost:
                self.pods[name].end(grace)
            return ending
        await self._remove(kind, name)
        return found

    def _is_used(self, claim: str) -> bool:
        return any(
            volume.get("persistentVolumeClaim", {}).get("claimName") == claim
            for (kind, _), pod in self.objects.items()
            if kind == "pods"
            for volume in pod["spec"]["volumes"]
        )

    def _log(self, pod: str, container: str) -> aiohttp.web.Response:
        self._get("pods", pod)
        text = self.pods[pod].log(container) if pod in self.pods else None
        if text is None:
            raise Refusal(400, "BadRequest", f'container "{container}" is waiting to start')
        return aiohttp.web.Response(body=text, content_type="text/plain")

    async def _watch(self, request: aiohttp.web.Request, kind: str) -> aiohttp.web.StreamResponse:
        version = int(request.query.get("resourceVersion") or self._version)
        wanted = request.query["fieldSelector"].removeprefix("metadata.name=")
        ended = self._ended_watches
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watches += 1
        if version < self.oldest:
            gone = Refusal(410, "Expired", "too old resource version").body
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while ended == self._ended_watches:
                    for number, of, event, each in self._events:
                        is_new = number > version and of == kind
                        if is_new and each["metadata"]["name"] == wanted:
                            line = json.dumps({"type": event, "object": each})
                            await response.write(line.encode() + b"\n")
                    version = self._version
                    async with self._changed:
                        if version == self._version and ended == self._ended_watches:
                            await self._changed.wait()
        return response

    # Objects and the node

    def _secret_data(self, name: str) -> Object | None:
        found = self.objects.get(("secrets", name))
        return None if found is None else found["data"]

    async def _change(self, kind: str, body: Object, event: str = "MODIFIED") -> None:
        self._version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._version)}
        changed = {**body, "metadata": metadata}
        problem = find_problem(changed, SCHEMAS[f"api.core.v1.{KINDS[kind]}"])
        assert not problem, problem
        body["metadata"] = metadata
        self.objects[kind, metadata["name"]] = changed
        await self._publish(kind, event, changed)

    async def _remove(self, kind: str, name: str) -> None:
        found = self.objects.pop((kind, name), None)
        if found is None:
            return
        if kind == "pods" and (processes := self.pods.pop(name, None)) is not None:
            processes.close()
        self._version += 1
        await self._publish(kind, "DELETED", found)
        if kind == "persistentvolumeclaims":
            await asyncio.to_thread(self.node.remove_claim, name)
        if kind == "sandboxes" and ("pods", name) in self.objects:  # by the garbage collector
            await self._delete("pods", name, None)
        if kind == "pods":
            await self.reconcile(name)
            for of, claim in tuple(self.objects):
                is_ending = "deletionTimestamp" in self.objects[of, claim]["metadata"]
                if of == "persistentvolumeclaims" and is_ending and not self._is_used(claim):
                    await self._remove(of, claim)

    async def _publish(self, kind: str, event: str, body: Object) -> None:
        self._events = [*self._events[-500:], (self._version, kind, event, body)]
        async with self._changed:
            self._changed.notify_all()

    async def _run_pod(self, pod: Object) -> None:
        name = pod["metadata"]["name"]

        async def report(status: Object) -> None:
            found = self.objects.get(("pods", name))
            if found is not None and found["status"].get("reason") != "Evicted":
                await self._change("pods", {**found, "status": status})

        processes = self.pods[name] = PodProcesses(self.node, pod, report)
        await processes.run()
        found = self.objects.get(("pods", name))
        if found is not None and "deletionTimestamp" in found["metadata"]:
            await self._remove("pods", name)
        elif found is not None:
            await self._wait_deleted(name)

    async def _wait_deleted(self, name: str) -> None:
        """A pod whose containers have ended stays until it is deleted."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: "deletionTimestamp" in self._metadata_of(name) or self.is_node_lost
            )
        if not self.is_node_lost:
            await self._remove("pods", name)

    def _metadata_of(self, name: str) -> Object:
        found = self.objects.get(("pods", name))
        return {"deletionTimestamp": ""} if found is None else found["metadata"]


def merge_patch(found: object, change: object) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    merged = dict(cast("Object", found)) if isinstance(found, dict) else {}
    for name, value in cast("Object", change).items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
