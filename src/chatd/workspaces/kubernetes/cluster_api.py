"""The few calls of the Kubernetes API that workspaces need: Secrets, PersistentVolumeClaims, Pods
and, where asked for, Sandboxes of one namespace, created, read, listed, watched and deleted.

Every call can be repeated: what exists already is not an error, nor is what is gone when it is
deleted. So a call without an answer, or one that the server puts off (429, 500, 503), is sent again
for a while. A connection per call: servers are replaced, and certificates change.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal

import aiohttp
import msgspec

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.workspaces.kubernetes.cluster_access import ClusterAccess
from chatd.workspaces.kubernetes.pod_plan import SANDBOX_API

CLUSTER_TIMEOUT_S: Final = 20.0
CLUSTER_RETRY_DELAYS_S: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
MAX_RETRY_AFTER_S: Final = 15.0
MAX_CLUSTER_REPLY_BYTES: Final = 32 << 20
LIST_PAGE: Final = 250
MAX_LISTED: Final = 100_000
MAX_POD_LOG_BYTES: Final = 256 * 1024
MAX_LIST_RESTARTS: Final = 3
REPEATED_STATUSES: Final = frozenset({429, 500, 502, 503, 504})

ResourceKind = Literal["pods", "persistentvolumeclaims", "secrets", "sandboxes"]
Object = dict[str, Any]


class ClusterError(ChatdError):
    """The API refused a call."""

    code = "cluster_refused"

    def __init__(self, message: str, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class ClusterUnreachable(ChatdError):
    """The API did not answer, so the outcome of the call is unknown."""

    code = "cluster_unreachable"


class _PageMeta(msgspec.Struct, frozen=True):
    place: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True):
    items: list[Object] = []
    metadata: _PageMeta = _PageMeta()


class _Resource(msgspec.Struct, frozen=True):
    name: str = ""


class _ResourceList(msgspec.Struct, frozen=True):
    resources: list[_Resource] = []


class ClusterClient:
    """`patient`: repeat calls that get no answer or are put off."""

    def __init__(self, access: ClusterAccess, clock: Clock, *, patient: bool = True) -> None:
        self._access = access
        self._clock = clock
        self._delays = CLUSTER_RETRY_DELAYS_S if patient else ()

    @property
    def namespace(self) -> str:
        return self._access.namespace

    async def version(self) -> str:
        return str((await self._json("GET", "/version")).get("gitVersion", ""))

    async def has_sandboxes(self) -> bool:
        """Whether the cluster has the resource; says nothing about its controller."""
        try:
            found = await self._json("GET", f"/apis/{SANDBOX_API}")
        except ClusterError as error:
            if error.status == 404:
                return False
            raise
        try:
            listed = msgspec.convert(found, _ResourceList).resources
        except msgspec.ValidationError:
            return False
        return any(each.name == "sandboxes" for each in listed)

    async def create(self, kind: ResourceKind, body: Mapping[str, Any]) -> bool:
        """Create it. False if there is an object of that name."""
        try:
            await self._call("POST", self._path(kind), body=body)
        except ClusterError as error:
            if error.status == 409:
                return False
            raise
        return True

    async def find(self, kind: ResourceKind, name: str) -> Object | None:
        try:
            return await self._json("GET", self._path(kind, name))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    async def list_all(self, kind: ResourceKind, labels: Mapping[str, str]) -> list[Object]:
        """List page by page. A list that takes too long loses its place (410) and begins again."""
        for _ in range(MAX_LIST_RESTARTS):
            try:
                return await self._list(kind, labels)
            except ClusterError as error:
                if error.status != 410:
                    raise
        raise ClusterUnreachable("The cluster's API does not finish a list.")

    async def _list(self, kind: ResourceKind, labels: Mapping[str, str]) -> list[Object]:
        selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        found: list[Object] = []
        query = {"labelSelector": selector, "limit": str(LIST_PAGE)}
        while len(found) < MAX_LISTED:
            try:
                page = msgspec.convert(await self._json("GET", self._path(kind), query), _Page)
            except msgspec.ValidationError:
                raise ClusterError(f"the API's list of {kind} cannot be read", 200) from None
            found += page.items
            if not page.metadata.place:
                break
            query["continue"] = page.metadata.place
        return found

    async def patch(self, kind: ResourceKind, name: str, body: Mapping[str, Any]) -> None:
        """Patch it; fields that are None are removed. With a `resourceVersion` that is not the
        newest one nothing is changed: ClusterError with the status 409."""
        content_type = "application/merge-patch+json"
        await self._call("PATCH", self._path(kind, name), body=body, content_type=content_type)

    async def delete(self, kind: ResourceKind, name: str, *, grace_s: int | None = None) -> None:
        """Begin its deletion. A pod ends within its own grace period if none is given."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", self._path(kind, name), body=body)
        except ClusterError as error:
            if error.status != 404:
                raise

    async def log_tail(self, pod: str, container: str, lines: int) -> str:
        """The end of the log; empty if there is none yet."""
        query = {"container": container, "tailLines": str(lines)}
        query["limitBytes"] = str(MAX_POD_LOG_BYTES)
        try:
            raw = await self._call("GET", f"{self._path('pods', pod)}/log", query)
        except ClusterError as error:
            if error.status in (400, 404):
                return ""
            raise
        return raw.decode(errors="replace")

    async def wait_change(self, name: str, version: str, timeout_s: float) -> None:
        """Until the pod may have changed since it had this version, or until the timeout. A watch
        is only a hint: if it ends, has lost its place (410) or is refused, the caller reads the pod
        again, and this returns after the timeout at the latest."""
        began = self._clock.monotonic()
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "timeoutSeconds": str(max(1, int(timeout_s))),
            "resourceVersion": version,
        }
        try:
            async with asyncio.timeout(timeout_s):
                if await self._is_event_seen(query):
                    return
        except (ClusterError, ClusterUnreachable, TimeoutError):
            pass
        left_s = began + timeout_s - self._clock.monotonic()
        if left_s > 0:
            await self._clock.sleep(left_s, "pod_poll")

    async def _is_event_seen(self, query: Mapping[str, str]) -> bool:
        """False if the watch ended before, or began with an error, such as 410."""
        try:
            async with (
                self._open() as session,
                session.get(
                    self._access.server + self._path("pods"),
                    params=query,
                    headers=self._access.headers(),
                ) as response,
            ):
                if response.status >= 300:
                    return False
                async for line in response.content:
                    if line.strip():
                        event = msgspec.json.decode(line, type=dict[str, Any])
                        return event.get("type") != "ERROR"
        except (aiohttp.ClientError, OSError, ValueError, msgspec.MsgspecError) as error:
            if isinstance(error, TimeoutError):
                raise
            return False
        return False

    def _path(self, kind: ResourceKind, name: str = "") -> str:
        api = f"apis/{SANDBOX_API}" if kind == "sandboxes" else "api/v1"
        path = f"/{api}/namespaces/{self._access.namespace}/{kind}"
        return f"{path}/{name}" if name else path

    async def _json(self, method: str, path: str, query: Mapping[str, str] | None = None) -> Object:
        raw = await self._call(method, path, query)
        try:
            return msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ClusterError(f"the API answered {path} with no JSON", 200) from None

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Raises ClusterError, ClusterUnreachable."""
        delays = iter(self._delays)
        is_renewed = False
        while True:
            error: ClusterError | ClusterUnreachable
            try:
                return await self._send(method, path, query, body, content_type)
            except ClusterError as refused:
                if refused.status == 401 and not is_renewed:
                    # The token's file was replaced between two calls.
                    is_renewed = True
                    continue
                if refused.status not in REPEATED_STATUSES:
                    raise
                error, pause_s = refused, refused.retry_after_s
            except (aiohttp.ClientError, OSError) as lost:
                error, pause_s = self._explain(lost), 0.0
            delay_s = next(delays, None)
            if delay_s is None:
                raise error from None
            await self._clock.sleep(max(delay_s, pause_s), "cluster_retry")

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
    ) -> bytes:
        headers = {**self._access.headers(), "Accept": "application/json, */*"}
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = content_type
        async with (
            asyncio.timeout(CLUSTER_TIMEOUT_S),
            self._open() as session,
            session.request(
                method, self._access.server + path, params=query, data=data, headers=headers
            ) as response,
        ):
            raw = await _read(response)
            if response.status >= 300:
                raise _refusal(response, raw)
            return raw

    def _open(self) -> aiohttp.ClientSession:
        tls = self._access.tls()
        connector = aiohttp.TCPConnector(ssl=True if tls is None else tls, force_close=True)
        return aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), trust_env=False
        )

    def _explain(self, error: Exception) -> ClusterUnreachable:
        reason = "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
        return ClusterUnreachable(
            f"The cluster's API at {self._access.server} cannot be reached: "
            f"{(reason or type(error).__name__)[:300]}."
        )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > MAX_CLUSTER_REPLY_BYTES:
            raise ClusterError(f"a reply is larger than {MAX_CLUSTER_REPLY_BYTES} bytes", 200)
    return bytes(raw)


def _refusal(response: aiohttp.ClientResponse, raw: bytes) -> ClusterError:
    try:
        message = str(msgspec.json.decode(raw, type=dict[str, Any]).get("message", ""))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        message = raw[:500].decode(errors="replace")
    after = response.headers.get("Retry-After", "")
    after_s = min(float(after), MAX_RETRY_AFTER_S) if after.isdecimal() else 0.0
    text = message.strip() or f"HTTP status {response.status}"
    return ClusterError(text, response.status, after_s)
