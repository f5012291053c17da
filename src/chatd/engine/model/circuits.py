"""The circuits of this replica, one for each provider. `domain.model.circuit` decides."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from chatd.domain.model.circuit import (
    CLOSED_CIRCUIT,
    CallAllowed,
    CallRefused,
    Circuit,
    after_answer,
    after_failure,
    after_no_outcome,
    request_call,
)
from chatd.domain.model.failures import ModelError
from chatd.domain.ports import Env


class Circuits:
    """Keyed by the provider's name in the settings, which has one address and one key."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._circuits: dict[str, Circuit] = {}

    def request_call(self, provider: str) -> CallRefused | None:
        """None allows the call, which must then run in `watch_call`."""
        decision = request_call(self._of(provider), self._env.clock.monotonic())
        match decision:
            case CallAllowed():
                self._set(provider, decision.circuit)
                return None
            case CallRefused():
                return decision

    def is_open(self, provider: str) -> bool:
        """Whether the provider fails for all chats, as far as this replica knows."""
        return self._of(provider).is_open

    @contextmanager
    def watch_call(self, provider: str) -> Generator[Callable[[], None]]:
        """Record how the call ends. It may report earlier that the provider answers."""

        def on_answering() -> None:
            if self._circuits.get(provider) is not CLOSED_CIRCUIT:
                self._set(provider, after_answer(self._of(provider)))

        try:
            yield on_answering
        except ModelError as error:
            now, jitter = self._env.clock.monotonic(), self._env.jitter()
            self._set(provider, after_failure(self._of(provider), error.classified, now, jitter))
            raise
        except BaseException:
            self._set(provider, after_no_outcome(self._of(provider)))
            raise
        on_answering()

    def _of(self, provider: str) -> Circuit:
        return self._circuits.get(provider, Circuit())

    def _set(self, provider: str, circuit: Circuit) -> None:
        was = self._of(provider)
        self._circuits[provider] = circuit
        if circuit.cause is not None and circuit.open_until != was.open_until:
            wait_s = round(circuit.open_until - self._env.clock.monotonic(), 1)
            kind = circuit.cause.kind
            self._env.emit("circuit_opened", provider=provider, error_kind=kind, wait_s=wait_s)
        elif was.is_open and not circuit.is_open:
            self._env.emit("circuit_closed", provider=provider)
