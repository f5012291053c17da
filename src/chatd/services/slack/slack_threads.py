"""Lets the threads of Slack show what their chats do: the progress, the calls that wait for a
person, and the answers, each posted once.

A message is written down before it is posted, and its id at Slack after it. What a process that
died had posted is found by the metadata that the message carries.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.call_waits import call_fingerprint, wait_of, waiting_calls
from chatd.domain.chat.messages import PendingCall
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.repositories import is_final, progress_of
from chatd.domain.deployment.slack import (
    PROGRESS_INTERVAL_S,
    ThreadView,
    call_body,
    call_buttons,
    call_key,
    decided_text,
    progress_blocks,
    progress_text,
)
from chatd.domain.deployment.slack_text import (
    MAX_FALLBACK_CHARS,
    Block,
    answer_messages,
    escape,
    section,
)
from chatd.domain.ids import ToolCallId
from chatd.domain.ports import Env
from chatd.domain.text import clip
from chatd.services.slack.slack_api import SlackApi, SlackCallFailed
from chatd.store.chat import chats
from chatd.store.database.conn import Conn
from chatd.store.deployment import slack_work, tool_policies
from chatd.store.deployment.slack_work import ShownAnswer, SlackPost, SlackThread

MAX_ANSWERS_AT_ONCE: Final = 20
_PROGRESS: Final = "progress "
_UNSHOWN: Final = "This cannot be shown in Slack. Open the chat in chatd."
_BODY: Final = msgspec.json.Decoder(list[dict[str, object]])

Build = Callable[[UUID], Sequence[Block]]
"""The blocks of a post with this id."""


class ThreadLost(Exception):
    """Another process has claimed the thread since."""


class _Call(Struct, frozen=True, kw_only=True):
    key: str
    call: PendingCall
    fingerprint: str


class ThreadPass:
    """Shows one claimed thread once. `site` is the address of chatd's own page, for links."""

    def __init__(
        self, conn: Conn, env: Env, api: SlackApi, thread: SlackThread, *, site: str | None
    ) -> None:
        self._conn = conn
        self._env = env
        self._api = api
        self._thread = thread
        self._site = site
        self._posts: dict[str, SlackPost] = {}

    async def show(self) -> None:
        """Raises SlackCallFailed, ThreadLost."""
        chat = None
        if self._thread.chat_id is not None:
            chat = await chats.get(self._conn, WORKER, self._thread.chat_id)
        view = self._view(chat)
        answers: Sequence[ShownAnswer] = ()
        if chat is not None and view.progress != "gone":
            answers = await slack_work.list_answers(
                self._conn, chat.id, after=self._thread.shown_message, limit=MAX_ANSWERS_AT_ONCE
            )
        pieces = [
            (
                answer,
                [(f"answer {self._thread.chat_id} {answer.id} {n}", blocks) for n, blocks in shown],
            )
            for answer in answers
            for shown in [list(enumerate(answer_messages(answer.text)))]
        ]
        calls = () if chat is None else _calls(chat)
        own = f"{_PROGRESS}{self._thread.request}"
        keys = [own, *(call.key for call in calls)]
        keys += [key for _, shown in pieces for key, _ in shown]
        self._posts = dict(await slack_work.list_posts(self._conn, self._thread, keys))
        final = is_final(view.progress)
        if not final:
            await self._put_progress(own, view)
        await self._end_earlier(own)
        await self._settle_calls(calls, chat)
        for call in calls:
            await self._put_call(call, view)
        for answer, shown in pieces:
            for key, blocks in shown:
                text = escape(clip(answer.text, MAX_FALLBACK_CHARS))
                post = await self._put(key, lambda _id, b=blocks: b, text)
                await slack_work.close_post(self._conn, post)
            await slack_work.advance(self._conn, self._thread, answer.id)
        is_behind = len(answers) == MAX_ANSWERS_AT_ONCE
        if final and not is_behind:
            await self._finish_progress(own, view, chat)
        await slack_work.set_shown(
            self._conn,
            self._thread,
            None if is_behind else chat,
            is_final=final and not is_behind,
            pause_s=0.0 if final or is_behind else PROGRESS_INTERVAL_S,
        )

    def _view(self, chat: Chat | None) -> ThreadView:
        if chat is None:
            return ThreadView(thread_id=self._thread.id, progress="gone")
        began = chat.turn_message_id or chat.next_message_id
        return ThreadView(
            thread_id=self._thread.id,
            progress=progress_of(
                chat.status, archived=chat.archived, deleted=chat.deleted_at is not None
            ),
            tools=tuple(call.name for call in chat.pending_calls if wait_of(call) is None),
            messages=max(chat.next_message_id - began - 1, 0),
            queued=chat.queue_len,
            error="" if chat.last_error is None else chat.last_error.message,
            chat_url="" if self._site is None else f"{self._site}/c/{chat.id}",
        )

    async def _put_progress(
        self,
        key: str,
        view: ThreadView,
    ) -> None:
        await self._put(key, lambda _id: progress_blocks(view), progress_text(view))

    async def _finish_progress(
        self,
        key: str,
        view: ThreadView,
        chat: Chat | None,
    ) -> None:
        """A quick answer needs no word that it is done."""
        post = self._posts.get(key)
        ts = None if post is None else post.ts or await self._find(post)
        if ts is None and view.progress == "done" and chat is not None:
            began = (chat.turn_message_id or chat.next_message_id) - 1
            said = await slack_work.list_answers(
                self._conn, chat.id, after=began, limit=MAX_ANSWERS_AT_ONCE
            )
            if any(answer.text for answer in said):
                if post is not None:
                    await slack_work.close_post(self._conn, post)
                return
        await self._put_progress(key, view)
        await slack_work.close_post(self._conn, self._posts[key])

    async def _end_earlier(self, own: str) -> None:
        """The progress of an earlier request has a newer message below."""
        for key, post in self._posts.items():
            if key.startswith(_PROGRESS) and key != own and not post.is_closed:
                await self._settle(post, [section("⏩ Goes on below.")])

    async def _settle_calls(
        self,
        calls: Sequence[_Call],
        chat: Chat | None,
    ) -> None:
        """Calls that wait no more: who decided what takes the place of their buttons."""
        waiting = {call.key for call in calls}
        for post in self._posts.values():
            if post.tool_call_id is None or post.is_closed or post.key in waiting:
                continue
            answer = None
            if chat is not None:
                answer = await tool_policies.find_answer(
                    self._conn, WORKER, chat.id, ToolCallId(post.tool_call_id)
                )
            if answer is not None and answer.answered_at < post.created_at:
                answer = None  # of an earlier call with its id
            decision = None if answer is None else answer.decision
            who = "A former user" if answer is None else answer.username or "A former user"
            body: list[Block] = [] if post.body is None else [*_BODY.decode(post.body)]
            await self._settle(post, [*body, section(decided_text(decision, who))])

    async def _put_call(
        self,
        call: _Call,
        view: ThreadView,
    ) -> None:
        body = call_body(call.call)
        await self._put(
            call.key,
            lambda post_id: [*body, *call_buttons(call.call, post_id, view.chat_url)],
            f"Allow {escape(call.call.name)}?",
            call=call,
            body=msgspec.json.encode(body).decode(),
        )

    async def _settle(self, post: SlackPost, blocks: Sequence[Block]) -> None:
        """A last edit of what was posted."""
        ts = post.ts or await self._find(post)
        if ts is not None:
            await self._edit(post, ts, blocks, "")
        await slack_work.close_post(self._conn, post)

    async def _put(
        self,
        key: str,
        build: Build,
        text: str,
        *,
        call: _Call | None = None,
        body: str | None = None,
    ) -> SlackPost:
        """Post it, or edit what was posted if that differs. Raises SlackCallFailed, ThreadLost."""
        post, is_new = self._posts.get(key), False
        if post is None:
            post = await slack_work.begin_post(
                self._conn,
                self._thread,
                self._env.new_id(),
                key,
                tool_call_id=None if call is None else call.call.id,
                fingerprint=None if call is None else call.fingerprint,
                body=body,
            )
            if post is None:
                raise ThreadLost
            self._posts[key], is_new = post, True
        if post.is_closed:
            return post
        blocks = build(post.id)
        ts = post.ts
        if ts is None and not is_new:
            ts = await self._find(post)
        if ts is None:
            await self._post(post, blocks, text)
        elif post.digest != _digest(blocks):
            await self._edit(post, ts, blocks, text)
        return post

    async def _post(
        self,
        post: SlackPost,
        blocks: Sequence[Block],
        text: str,
    ) -> None:
        place = (self._thread.channel, self._thread.thread_ts)
        try:
            ts = await self._api.post(*place, blocks, text, str(post.id))
        except SlackCallFailed as error:
            if error.reason != "rejected":
                raise
            self._env.emit(
                "slack_failed", reason=error.reason, connection_id=self._thread.connection_id
            )
            ts = await self._api.post(*place, [section(_UNSHOWN)], _UNSHOWN, str(post.id))
        await slack_work.set_ts(self._conn, post, ts, _digest(blocks))

    async def _edit(
        self,
        post: SlackPost,
        ts: str,
        blocks: Sequence[Block],
        text: str,
    ) -> None:
        try:
            await self._api.edit(self._thread.channel, ts, blocks, text)
        except SlackCallFailed as error:
            # A person deleted the message, or the workspace forbids to edit it any more.
            is_gone = error.error in ("message_not_found", "cant_update_message")
            if not is_gone and error.reason != "rejected":
                raise
        await slack_work.set_ts(self._conn, post, ts, _digest(blocks))

    async def _find(self, post: SlackPost) -> str | None:
        """The id of a message that a process posted before it died."""
        oldest = await slack_work.last_ts(self._conn, post)
        return await self._api.find_post(
            self._thread.channel, self._thread.thread_ts, str(post.id), oldest
        )


def _calls(chat: Chat) -> tuple[_Call, ...]:
    """Those that a person can answer."""
    found = ((call, call_fingerprint(chat, call)) for call in waiting_calls(chat))
    return tuple(
        _Call(key=call_key(chat, call), call=call, fingerprint=fingerprint)
        for call, fingerprint in found
        if wait_of(call) in ("approval", "question")
    )


def _digest(blocks: Sequence[Block]) -> str:
    return sha256(msgspec.json.encode(blocks)).hexdigest()
