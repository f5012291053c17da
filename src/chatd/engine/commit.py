"""A runner's door to the database: fenced writes that survive a database that does not answer.

Owns trying again; every try carries the same change id, so a write whose
reply was lost is found rather than repeated. Only the row can end the trying:
once the chat has moved on, the fence refuses.
"""

from collections.abc import Callable
from typing import Final

from chatd.domain.change import Change
from chatd.domain.chat import Chat
from chatd.domain.errors import InvariantBroken, Unavailable
from chatd.domain.ports import Env
from chatd.store.transact import Applied, Operation, Transactor

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0


class Committer:
    def __init__(self, transactor: Transactor, env: Env) -> None:
        self._transactor = transactor
        self._env = env

    async def commit(self, chat: Chat, decide: Callable[[Chat], Change]) -> Applied:
        """Raises StaleFence if somebody else has moved the chat."""
        operation = Operation(
            chat_id=chat.id,
            change_id=self._env.new_change_id(),
            decide=lambda loaded: decide(loaded.chat),
            known=chat,
        )
        wait_s = FIRST_WAIT_S
        while True:
            try:
                outcome = await self._transactor.run(operation)
            except Unavailable as error:
                self._env.emit("commit_delayed", chat_id=chat.id, error_kind=error.code)
                await self._env.clock.sleep(wait_s, "commit_retry")
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            else:
                if not isinstance(outcome, Applied):
                    raise InvariantBroken("A worker's move always changes something.")
                return outcome
