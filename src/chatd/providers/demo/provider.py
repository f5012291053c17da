"""The demo model: no key, no network, the same answer to the same question.

It reads only the request. The one thing it remembers is how often it has failed on request, and
forgetting that costs a failure more.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

import msgspec
from msgspec import UNSET, structs

from chatd.domain.errors import InvalidInput
from chatd.domain.model import ModelEvent, ModelRequest, NamedTool, ProviderFailed, ToolSpec
from chatd.domain.ports import Clock
from chatd.providers.demo.beats import Break, Scene, Use, say
from chatd.providers.demo.options import DemoOptions
from chatd.providers.demo.play import Stage, play, rough_tokens
from chatd.providers.demo.sample import sample
from chatd.providers.demo.scenes import scene_for
from chatd.providers.demo.turn import fingerprint, read_turn
from chatd.providers.options import parse
from chatd.providers.settings import ProviderSettings, misconfigured

_REMEMBERED: Final = 256


class DemoProvider:
    """Satisfies `domain.ports.Provider`."""

    def __init__(self, settings: ProviderSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._failed: OrderedDict[str, int] = OrderedDict()

    @property
    def name(self) -> str:
        return self._settings.label

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        options = self._options(request)
        key = fingerprint(request.messages)
        scene = self._scene(request, options, key)
        self._count_failure(scene, key)
        if scene.beats and isinstance(first := scene.beats[0], Break):
            raise ProviderFailed(first.fault)
        stage = Stage(
            clock=self._clock,
            tokens_per_s=options.tokens_per_second,
            key=key,
            input_tokens=rough_tokens(request),
            max_tokens=request.max_output_tokens,
        )
        async with aclosing(play(scene, stage)) as events:
            yield events

    async def close(self) -> None:
        """There is nothing to close."""

    def _scene(self, request: ModelRequest, options: DemoOptions, key: str) -> Scene:
        if request.output_schema is not UNSET:
            said = say(sample(request.output_schema, read_turn(request).prompt))
            return structs.replace(said, pace=0.0)
        if (wanted := _wanted_tool(request)) is not None:
            about = read_turn(request).prompt
            args = msgspec.json.decode(sample(wanted.input_schema, about), type=dict[str, object])
            return Scene(beats=(Use(name=wanted.name, args=args),))
        left = options.failures - self._failed.get(key, 0)
        return self._named(scene_for(request, seed=options.seed, failures_left=left))

    def _named(self, scene: Scene) -> Scene:
        """Faults say who failed."""
        return structs.replace(
            scene,
            beats=tuple(
                Break(fault=structs.replace(beat.fault, provider=self.name))
                if isinstance(beat, Break)
                else beat
                for beat in scene.beats
            ),
        )

    def _count_failure(self, scene: Scene, key: str) -> None:
        if not any(isinstance(beat, Break) for beat in scene.beats):
            self._failed.pop(key, None)
            return
        self._failed[key] = self._failed.pop(key, 0) + 1
        while len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)

    def _options(self, request: ModelRequest) -> DemoOptions:
        try:
            return parse(DemoOptions, request.options)
        except InvalidInput as error:
            raise misconfigured(self._settings, error.message) from None


def _wanted_tool(request: ModelRequest) -> ToolSpec | None:
    """A tool that the caller insists on."""
    match request.tool_choice:
        case NamedTool(name=name):
            return next((tool for tool in request.tools if tool.name == name), None)
        case "required" if request.tools:
            return request.tools[0]
        case _:
            return None
