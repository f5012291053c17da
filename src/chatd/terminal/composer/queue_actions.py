"""What a person does to the queue. Events of the chat show the result; a lost race is told."""

from types import NoneType

from chatd.client.drafts import InputPart
from chatd.client.errors import ApiError
from chatd.client.server import ServerApi
from chatd.domain.chat.public_messages import PublicQueuedMessage
from chatd.domain.ids import ChatId, QueueId


class SentMeanwhile(Exception):
    """The message has left the queue."""


class QueueActions:
    """All raise ApiError, ServerUnreachable and SentMeanwhile."""

    def __init__(self, api: ServerApi, chat_id: ChatId) -> None:
        self._api = api
        self._path = f"/chats/{chat_id}/queue"

    async def edit(self, message: QueueId, content: tuple[InputPart, ...]) -> None:
        try:
            await self._api.patch(f"{self._path}/{message}", {"content": content}, NoneType)
        except ApiError as error:
            raise _translate(error) from error

    async def promote(self, message: QueueId) -> None:
        await self._post(f"{message}/promote", None)

    async def move(self, message: QueueId, before: QueueId | None) -> None:
        await self._post(f"{message}/move", {"before": before})

    async def remove(self, message: QueueId) -> None:
        try:
            await self._api.delete(f"{self._path}/{message}")
        except ApiError as error:
            raise _translate(error) from error

    async def _post(self, path: str, body: object) -> None:
        try:
            await self._api.post(f"{self._path}/{path}", body, NoneType)
        except ApiError as error:
            raise _translate(error) from error


def _translate(error: ApiError) -> Exception:
    is_gone = error.code == "queued_message_gone" or error.status == 404
    return SentMeanwhile() if is_gone else error


Queue = tuple[PublicQueuedMessage, ...]


def move_target(queue: Queue, message: QueueId, step: int) -> tuple[bool, QueueId | None]:
    """Whether it can go one place up or down, and before which message it is then; None: last.
    Those that steer always come first: nothing moves past them."""
    at = next((at for at, one in enumerate(queue) if one.id == message), -1)
    other = at + step
    if at < 0 or not 0 <= other < len(queue) or queue[other].steer != queue[at].steer:
        return False, None
    following = other if step < 0 else other + 1
    return True, queue[following].id if following < len(queue) else None
