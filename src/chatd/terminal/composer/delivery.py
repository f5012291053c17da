"""Sends a draft: first its files, then the message. The text stays in the box until it is known
that it goes out."""

from msgspec.structs import replace

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.outbox import OutboxFull
from chatd.terminal.composer.behaviours import behaviour_of
from chatd.terminal.composer.chat_actions import ChatActions
from chatd.terminal.composer.host import ComposerHost
from chatd.terminal.composer.message_content import (
    content_of,
    read_content,
    refusal_of_files,
    refusal_of_text,
)
from chatd.terminal.composer.queue_actions import QueueActions, SentMeanwhile
from chatd.terminal.composer.sending import (
    Edited,
    EditedMessage,
    ResumeQueue,
    RunAgain,
    SayContinue,
    edit_choice,
    how_to_continue,
    make_draft,
)
from chatd.terminal.messages import OpenChat


class Delivery:
    def __init__(self, host: ComposerHost) -> None:
        self._host = host
        self._new_key: str | None = None

    async def send(self, text: str) -> None:
        """`text` is what is said; the draft has the same text as it was written."""
        host, key = self._host, self._host.key
        try:
            await host.files.attach_all(key, text)
            attachments = host.draft.attachments
            if refusal := refusal_of_text(text) or refusal_of_files(attachments):
                host.say(refusal, "warning")
            elif host.edited is not None:
                await self._save_edit(host.edited, text)
            elif host.chat_id is None:
                await self._create(text)
            else:
                self._send_to_chat(text)
        except (ApiError, ServerUnreachable, OutboxFull) as error:
            host.say(error.message, "error")

    def _send_to_chat(self, text: str) -> None:
        host = self._host
        behaviour = host.busy.value if host.is_busy else "queue"
        if behaviour == "reject":
            host.say(
                "Not sent: the chat works. Ctrl-G chooses what a message does then.", "warning"
            )
            return
        host.session.outbox.send(
            host.chat_id, make_draft(host.draft, text, behaviour, is_new=False)
        )
        if host.is_busy and behaviour != "queue":
            host.say(f"{behaviour_of(behaviour).sent}.")
        host.busy = host.busy.after_send()
        host.clear(host.key)

    async def _create(self, text: str) -> None:
        host, outbox = self._host, self._host.session.outbox
        key = host.key
        item = outbox.send(None, make_draft(host.draft, text, "queue", is_new=True))
        self._new_key = item.key
        try:
            chat_id = await outbox.created(item.key)
        finally:
            self._new_key = None
            outbox.dismiss(item.key)
        host.clear(key)
        host.post_message(OpenChat(chat_id))

    def waiting_text(self) -> str:
        """While a new chat is being created: why it takes long, if it does."""
        items = self._host.session.outbox.new_chats
        item = next((one for one in items if one.key == self._new_key), None)
        if item is None:
            return "Sending … Esc cancels"
        return (
            "The server does not answer; trying again. Esc cancels"
            if item.problem
            else ("Starting the chat …")
        )

    async def _save_edit(self, edited: Edited, text: str) -> None:
        host = self._host
        assert host.chat_id is not None
        content = content_of(text, host.draft.attachments, edited.kept)
        if isinstance(edited, EditedMessage):
            actions = ChatActions(host.session.api, host.chat_id)
            await actions.edit_message(edited.message_id, content, edit_choice(host.draft))
        else:
            try:
                await QueueActions(host.session.api, host.chat_id).edit(edited.queue_id, content)
            except SentMeanwhile:
                self.keep_late_edit(text)
                return
        host.stop_editing()

    def keep_late_edit(self, text: str) -> None:
        """The new text is not lost: it goes into the box."""
        self._host.stop_editing()
        before = self._host.draft.text.strip()
        self._host.write(f"{before}\n\n{text}" if before else text)
        self._host.say("The message was sent a moment ago. Your new text is in the box.", "warning")

    async def continue_chat(self) -> None:
        """After an error, a cut answer or a held queue."""
        host = self._host
        assert host.chat is not None
        assert host.chat_id is not None
        shown = host.chat.shown
        actions = ChatActions(host.session.api, host.chat_id)
        try:
            match how_to_continue(shown.status, shown.messages, len(shown.queue)):
                case ResumeQueue():
                    await actions.resume()
                case RunAgain(message=message):
                    found = read_content(message.content)
                    content = content_of(found.text, (), found.kept)
                    await actions.edit_message(message.id, content, edit_choice(host.draft))
                case SayContinue(text=text):
                    draft = make_draft(host.draft, text, "queue", is_new=False)
                    host.session.outbox.send(
                        host.chat_id, replace(draft, content=content_of(text, ()))
                    )
                case None:
                    host.say("The chat waits for your message: there is nothing to continue.")
        except (ApiError, ServerUnreachable, OutboxFull) as error:
            host.say(error.message, "error")
