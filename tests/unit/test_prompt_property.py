"""Random histories give prompts that every provider accepts."""

import pytest
from msgspec import Raw

from chatd.domain.chat.messages import Message
from chatd.domain.model.protocol import (
    PromptCall,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from tests.support.domain.histories import FILES, ORIGINS, any_history, smallest
from tests.support.domain.prompt_rules import find_problems
from tests.support.domain.random_chat_run import RandomChatRun
from tests.support.factories import call

HISTORIES = 400
TARGETS = [
    PromptTarget(provider="here", files=FILES),
    PromptTarget(provider="here", files=FILES, strict_tools=True),
    PromptTarget(provider="here", files=FILES, origins=ORIGINS, accepts=lambda kind: False),
    PromptTarget(provider="there", files=FILES, origins=ORIGINS, strict_tools=True),
]


@pytest.mark.covers("prompt-20")
@pytest.mark.parametrize("target", TARGETS)
def test_a_prompt_of_any_history_is_well_formed(target: PromptTarget) -> None:
    def is_malformed(history: list[Message]) -> bool:
        return find_problems(build_prompt(history, target), strict_tools=target.strict_tools) != []

    for seed in range(HISTORIES):
        history = any_history(seed)
        before = list(history)
        if is_malformed(history):
            pytest.fail(f"seed {seed}: {smallest(history, is_malformed)}")
        assert build_prompt(history, target) == build_prompt(history, target)
        assert history == before


@pytest.mark.covers("prompt-20")
@pytest.mark.parametrize("seed", range(10))
def test_the_prompt_is_well_formed_after_every_transition(seed: int) -> None:
    run = RandomChatRun(seed)
    longest = 0
    for _ in range(60):
        run.step()
        prompt = build_prompt(run.rows.messages, TARGETS[1])
        assert find_problems(prompt, strict_tools=True) == []
        longest = max(longest, len(prompt))
    assert longest > 3


def user_message(text: str) -> PromptMessage:
    return PromptMessage(role="user", parts=(PromptText(text=text),))


USER = user_message("hi")
ASKS = PromptMessage(
    role="assistant",
    parts=(PromptCall(id=call("a").tool_call_id, name="execute", input=Raw(b"{}")),),
)
ANSWERS = PromptMessage(
    role="tool", parts=(PromptResult(id=call("a").tool_call_id, name="execute", text="done"),)
)


def test_the_checker_accepts_a_valid_prompt() -> None:
    assert find_problems([USER, ASKS, ANSWERS]) == []


@pytest.mark.parametrize(
    "broken",
    [
        [],
        [ASKS, ANSWERS],
        [USER, ASKS],
        [USER, ASKS, USER],
        [USER, ANSWERS],
        [USER, ASKS, ANSWERS, ANSWERS],
        [USER, ASKS, ANSWERS, ASKS, ANSWERS],
        [USER, PromptMessage(role="assistant", parts=(PromptText(text="no"),))],
        [USER, PromptMessage(role="user", parts=())],
        [user_message(" ")],
        [user_message("\0")],
        [user_message("\ud800")],
        [USER, PromptMessage(role="system", parts=(PromptText(text="s"),)), USER],
        [USER, PromptMessage(role="assistant", parts=(PromptReasoning(text=""),)), USER],
        [USER, PromptMessage(role="user", parts=ASKS.parts)],
    ],
)
def test_the_checker_finds_every_kind_of_problem(broken: list[PromptMessage]) -> None:
    assert find_problems(broken) != []
