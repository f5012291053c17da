"""The driver under hypothesis, which shrinks a failure to the shortest sequence."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chatd.domain.chat.states import Transition
from chatd.domain.ids import ChatId
from tests.model.driver import Driver

CHATS = st.integers(min_value=0, max_value=3)


class ChatMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver: Driver | None = None

    @initialize(chance=st.randoms(use_true_random=False))
    def begin(self, chance: Random) -> None:
        self.driver = Driver(chance)

    def _chat(self, number: int) -> ChatId:
        assert self.driver is not None
        return list(self.driver.world.chats)[number]

    @rule(number=CHATS, move=st.sampled_from(Transition))
    def move(self, number: int, move: Transition) -> None:
        assert self.driver is not None
        self.driver.move(self.driver.world.chats[self._chat(number)], move)

    @rule()
    def kill_worker(self) -> None:
        assert self.driver is not None
        self.driver.crash()

    @rule()
    def write_late(self) -> None:
        assert self.driver is not None
        self.driver.write_late()

    @invariant()
    def invariants_hold(self) -> None:
        if self.driver is not None:
            self.driver.check()

    def teardown(self) -> None:
        if self.driver is not None:
            self.driver.finish()


TestChatMachine = ChatMachine.TestCase
TestChatMachine.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
