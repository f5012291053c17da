"""The work of `chatd chats send`: a message to a chat, without waiting for the answer."""

from pathlib import Path
from typing import Final, get_args

from msgspec import Struct

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.work import find_chat
from chatd.cli.output import print_json, print_notice
from chatd.cli.run.prompt import Prompt
from chatd.cli.run.request import message_content
from chatd.client.drafts import Draft
from chatd.client.server import ServerApi
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.model.protocol import Effort
from chatd.domain.tool_modes import ModeChoice

BUSY_BEHAVIORS: Final[tuple[WhenBusy, ...]] = get_args(WhenBusy)


class NewMessage(Struct, frozen=True, kw_only=True):
    prompt: Prompt
    files: tuple[Path, ...] = ()
    busy: WhenBusy = "queue"
    model: str | None = None
    effort: Effort | None = None
    mode: ModeChoice | None = None


async def send(api: ServerApi, name: str, message: NewMessage, *, as_json: bool) -> None:
    chat_id = await find_chat(api, name)
    draft = Draft(
        content=await message_content(api, message.prompt, message.files),
        busy_behavior=message.busy,
        model=message.model,
        reasoning_effort=message.effort,
        mode=message.mode,
    )
    sending = api.send_message(chat_id, draft)
    if as_json:
        print_json(await sending.raw())
        return
    sent = await sending
    print_notice("The chat is busy: the message is in its queue." if sent.queued else "Sent.")
    print_notice(f"To wait for the answer: chatd chats tail {chat_id} --until-idle")


def read_busy(text: str) -> WhenBusy:
    """Raises UsageProblem."""
    for known in BUSY_BEHAVIORS:
        if text == known:
            return known
    raise UsageProblem(f"--busy {text!r}: choose {', '.join(BUSY_BEHAVIORS)}")
