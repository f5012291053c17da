"""A provider with several keys: against a real server that refuses some of them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from chatd.domain.model.protocol import ProviderError
from chatd.providers.provider_config import ProviderConfig, Secret
from chatd.providers.registry import build_provider
from chatd.services.models.provider_clients import KeyedProvider, KeyRests
from tests.support.clock import FakeClock
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk, stream
from tests.support.providers.prompts import request
from tests.support.providers.server import Gate, RecordedRequest, Reply
from tests.support.stream_replica import Emitted

KEYS = [UUID(int=number) for number in (1, 2, 3)]
REFUSED = b'{"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}'
LIMITED = b'{"error": {"message": "Too many requests", "code": "rate_limit_exceeded"}}'


class KeyedServer(FakeCompatible):
    """`replies` are what it refuses the keys with, by the last character of the key."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: dict[str, Reply] = {}

    def refuse(self, request: RecordedRequest) -> Reply | None:
        key = request.headers.get("authorization", "")[-1:]
        return self.replies.get(key) or super().refuse(request)

    @property
    def used(self) -> str:
        return "".join(one.headers["authorization"][-1] for one in self.requests)


def refusal(status: int, body: bytes, **headers: str) -> Reply:
    return Reply(
        status=status, headers={"content-type": "application/json", **headers}, steps=(body,)
    )


class Rig:
    def __init__(self, fake: KeyedServer, count: int) -> None:
        self.fake = fake
        self.clock = FakeClock()
        self.emitted = Emitted()
        self.unused: list[KeyedProvider] = []
        self.rests: KeyRests = {}
        configs = {
            key: ProviderConfig(
                kind="openai-compat",
                name="house",
                base_url=f"{fake.url}/v1",
                api_key=Secret(f"sk-secret-{key.int}"),
            )
            for key in KEYS[:count]
        }
        self.provider = KeyedProvider(
            "house",
            {key: build_provider(config) for key, config in configs.items()},
            clock=self.clock,
            emit=self.emitted,
            rests=self.rests,
            on_unused=self.unused.append,
        )

    async def ask(self) -> None:
        self.fake.script(stream("text"))
        async with self.provider.stream(request(model="m")) as events:
            assert [event async for event in events]

    async def fail(self) -> ProviderError:
        with pytest.raises(ProviderError) as failed:
            async with self.provider.stream(request(model="m")):
                pass
        return failed.value


@asynccontextmanager
async def rig_with(count: int) -> AsyncGenerator[Rig]:
    async with KeyedServer.running() as fake:
        rig = Rig(fake, count)
        yield rig
        await rig.provider.close()


async def test_the_first_key_is_used_while_it_works() -> None:
    async with rig_with(2) as rig:
        await rig.ask()
        await rig.ask()
        assert rig.fake.used == "11"


async def test_a_call_with_a_refused_key_goes_on_with_the_next_and_the_key_rests() -> None:
    async with rig_with(2) as rig:
        rig.fake.replies["1"] = refusal(401, REFUSED)
        await rig.ask()
        await rig.ask()
        assert rig.fake.used == "122"
        [event] = rig.emitted.of("provider_key_rests")
        assert (event["provider"], event["key_id"], event["error_kind"]) == (
            "house",
            KEYS[0],
            "auth",
        )
        assert "sk-secret" not in repr(event)
        rig.fake.replies.clear()
        rig.clock.advance(300)
        await rig.ask()
        assert rig.fake.used == "1221"


async def test_a_limited_key_rests_as_long_as_the_provider_says() -> None:
    async with rig_with(2) as rig:
        rig.fake.replies["1"] = refusal(429, LIMITED, **{"retry-after": "7"})
        await rig.ask()
        rig.fake.replies.clear()
        rig.clock.advance(6)
        await rig.ask()
        rig.clock.advance(1)
        await rig.ask()
        assert rig.fake.used == "1221"


async def test_if_all_keys_rest_each_is_tried_and_the_last_error_counts() -> None:
    async with rig_with(2) as rig:
        rig.fake.replies["1"] = refusal(401, REFUSED)
        rig.fake.replies["2"] = refusal(429, LIMITED)
        failed = await rig.fail()
        assert failed.fault.status_code == 429
        # The limited key rests for less time.
        rig.fake.replies["2"] = refusal(401, REFUSED)
        await rig.fail()
        assert rig.fake.used == "1221"


async def test_a_failure_that_every_key_would_have_is_not_tried_again() -> None:
    async with rig_with(2) as rig:
        rig.fake.replies["1"] = refusal(500, b'{"error": {"message": "oh"}}')
        await rig.fail()
        assert rig.fake.used == "1"
        assert rig.rests == {}


async def test_a_single_key_never_rests() -> None:
    async with rig_with(1) as rig:
        rig.fake.replies["1"] = refusal(401, REFUSED)
        await rig.fail()
        assert rig.rests == {}


async def test_a_replaced_provider_is_unused_when_its_last_call_has_ended() -> None:
    async with rig_with(1) as rig:
        gate = Gate()
        rig.fake.script(chunk(content="a"), gate, chunk(content="b"), chunk("stop"), DONE)
        async with (
            asyncio.timeout(20),
            rig.provider.stream(request(model="m")) as events,
        ):
            await gate.reached.wait()
            rig.provider.retire()
            assert rig.unused == []
            gate.open()
            assert len([event async for event in events]) > 2
        assert rig.unused == [rig.provider]
