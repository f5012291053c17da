"""Asking the model for an answer: the request, the stream, and what is kept of it."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.answer import Answer, Keep, Nothing, Refused, judge
from chatd.domain.assemble import Assembler
from chatd.domain.chat import Chat, Episode
from chatd.domain.effort import resolve_effort
from chatd.domain.failures import ModelFailed
from chatd.domain.messages import Draft, Message, UsageEntry
from chatd.domain.model import ModelRequest
from chatd.domain.ports import Env
from chatd.domain.prompt import Reader, build_prompt
from chatd.domain.step_rows import Call, answer_message, usage_entry
from chatd.engine.listening import Listener
from chatd.engine.runner import Runner
from chatd.engine.setting import Setting
from chatd.parts.episodes import Episodes

STRICT: Final = frozenset({"anthropic", "bedrock"})
"""APIs that refuse a conversation in which their own calls are not in perfect order."""


class Answered(Struct, frozen=True, kw_only=True):
    """Rows for history and for the books. No row: the model had nothing to say."""

    messages: tuple[Draft, ...]
    usage: tuple[UsageEntry, ...]


class Hearing:
    """Satisfies `runner.Heard`: an answer that is still coming."""

    def __init__(self, assembler: Assembler, call: Call) -> None:
        self._assembler = assembler
        self._call = call

    def so_far(self, at: str) -> tuple[Draft, ...]:
        del at
        answer = self._assembler.interrupted()
        if isinstance(judge(answer, ""), Nothing):
            return ()
        return (answer_message(answer, self._call),)


class Answering:
    def __init__(self, episodes: Episodes, env: Env) -> None:
        self._episodes = episodes
        self._env = env

    async def answer(self, runner: Runner, setting: Setting) -> Answered:
        """Raises ModelFailed. What was said until then is shown no longer and kept nowhere."""
        chat = runner.work.chat
        request = request_for(chat, runner.work.history, setting)
        assembler = Assembler()
        call = Call(config=setting.config, reasoning_effort=chat.reasoning_effort)
        recorder = self._episodes.open(Episode.of(chat))
        runner.heard = Hearing(assembler, call)
        try:
            listener = Listener(setting.choice.provider, self._env)
            listened = await listener.listen(request, assembler, recorder)
        except ModelFailed:
            runner.heard = None
            raise
        finally:
            recorder.close()
        answer = assembler.finished()
        done = Call(
            config=setting.config,
            reasoning_effort=chat.reasoning_effort,
            runtime_ms=listened.runtime_ms,
        )
        return self._kept(answer, done)

    def _kept(self, answer: Answer, call: Call) -> Answered:
        paid = (usage_entry("turn", call, answer.usage),)
        match judge(answer, call.config.provider):
            case Keep():
                return Answered(messages=(answer_message(answer, call),), usage=paid)
            case Nothing():
                return Answered(messages=(), usage=paid)
            case Refused() as refused:
                raise ModelFailed(refused.failure)


def request_for(chat: Chat, history: Sequence[Message], setting: Setting) -> ModelRequest:
    config = setting.config
    prompt = build_prompt(
        history,
        Reader(provider=config.provider, strict_tools=setting.choice.kind in STRICT),
    )
    return ModelRequest(
        model=config.model,
        messages=prompt,
        tools=setting.specs,
        max_output_tokens=config.max_output_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        reasoning_effort=resolve_effort(chat.reasoning_effort, config.reasoning_effort),
        options=config.options,
    )
