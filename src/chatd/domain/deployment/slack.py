"""Slack: which message and which press asks for what, and what a thread shows.

A thread is a chat. It belongs to the user whose person of Slack began it, and only that person
continues it and answers its calls: chatd never acts for one person as somebody else. Pure;
`services.slack_socket` receives, `services.slack_worker` acts.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final, Literal, TypeVar, cast
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from chatd.domain.chat.call_waits import (
    Question,
    call_fingerprint,
    read_questions,
    wait_of,
    waiting_calls,
)
from chatd.domain.chat.commands import CreateChat, SendMessage
from chatd.domain.chat.messages import PendingCall, UserInput
from chatd.domain.chat.parts import Part, TextPart
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.answer_links import describe_call, may_have_link
from chatd.domain.deployment.repositories import Progress
from chatd.domain.deployment.slack_text import (
    MAX_SECTION_CHARS,
    Block,
    actions,
    button,
    code_sections,
    escape,
    link_button,
    mrkdwn,
    plain_text,
    section,
    split_text,
)
from chatd.domain.errors import ToolError
from chatd.domain.ids import ChatId, ModelConfigId, ProjectId, UserId, WorkspaceId
from chatd.domain.prompt.titles import fallback_title
from chatd.domain.text import clip
from chatd.domain.workspace.entities import TemplateId

T = TypeVar("T")
MAX_CONNECTIONS: Final = 200
MAX_CONNECTION_NAME_CHARS: Final = 64
MAX_WAITING_EVENTS: Final = 500
"""Of one connection. Slack is not told that more were received, and sends them again."""
MAX_CLAIMS: Final = 30
MAX_TEXT_CHARS: Final = 40_000
"""Of a message of Slack."""
MAX_FILES: Final = 10
"""Of a message that become attachments."""
EVENTS_KEPT_S: Final = 30 * 86_400.0
PROGRESS_INTERVAL_S: Final = 3.0
"""Between two edits of a thread while the chat works."""
LINK_CODE_LIFETIME_S: Final = 600.0
MAX_LINK_CODES: Final = 5
"""Of one user at a time; an older one counts no more."""
REQUIRED_SCOPES: Final = frozenset(
    {
        "app_mentions:read",
        "channels:history",
        "chat:write",
        "files:read",
        "groups:history",
        "im:history",
        "mpim:history",
        "users:read",
    }
)
EMAIL_SCOPE: Final = "users:read.email"
POST_EVENT_TYPE: Final = "chatd_post"
"""Of the metadata by which a message of chatd is found again."""
STOP: Final = "stop"
APPROVE: Final = "approve"
DENY: Final = "deny"
OPEN: Final = "open"
OPTION: Final = "option-"
_SPACE: Final = UUID("5f0d7f3e-8b1c-5d0e-9c61-0f6f1f6f5a11")
_CODE_PURPOSE: Final = "slack link"
_LINK: Final = re.compile(r"`?link\s+([A-Za-z2-7]{26})`?", re.IGNORECASE)
_CODE: Final = re.compile(r"(?<![A-Za-z0-9])[A-Za-z2-7]{26}(?![A-Za-z0-9])")
_MAX_CODES_READ: Final = 5
_TS: Final = re.compile(r"\d{1,12}\.\d{1,9}", re.ASCII)
_ID: Final = re.compile(r"[A-Z0-9]{1,40}", re.ASCII)
_TAKEN_SUBTYPES: Final = frozenset({"", "file_share", "thread_broadcast"})


SlackEventKind = Literal["message", "press"]


class SlackConnection(Struct, frozen=True, kw_only=True):
    """A workspace of Slack. Without a template its chats begin without a workspace of chatd.
    `match_email`: a person with the confirmed email of a user is that user. `team_id` and
    `bot_user_id` are empty until Slack has said them."""

    id: UUID
    name: str
    template_id: TemplateId | None = None
    project_id: ProjectId | None = None
    model_config_id: ModelConfigId | None = None
    match_email: bool = False
    enabled: bool = True
    team_id: str = ""
    team_name: str = ""
    bot_user_id: str = ""
    problem: str | None = None


class SlackFile(Struct, frozen=True, kw_only=True):
    id: str = ""
    name: str = ""
    mimetype: str = ""
    size: int = 0
    url_private_download: str = ""


class SlackEvent(Struct, frozen=True, kw_only=True):
    """A message, or a press of a button. `thread_ts` is the first message of its thread, `ts` the
    message itself, or the one with the button. `action` and `value` are of a button."""

    kind: SlackEventKind
    key: str
    channel: str
    thread_ts: str
    ts: str
    user: str
    is_direct: bool = False
    is_mention: bool = False
    text: str = ""
    files: tuple[SlackFile, ...] = ()
    action: str = ""
    value: str = ""

    @property
    def place(self) -> str:
        """Events of one place are acted upon in order. A press waits for no message."""
        return f"{'press ' if self.kind == 'press' else ''}{self.channel} {self.thread_ts}"

    @property
    def is_request(self) -> bool:
        """Whether it counts without a chat in its thread."""
        return self.is_direct or self.is_mention or self.kind == "press"

    @property
    def is_kept(self) -> bool:
        """Whether it is stored without a chat in its thread. A code to link a person that others
        have read is no message to chatd, but must not count any more."""
        return self.is_request or ("link" in self.text.lower() and bool(codes_in(self.text)))


# What Slack sends


class _Event(Struct, frozen=True, kw_only=True):
    type: str = ""
    subtype: str = ""
    user: str = ""
    user_team: str = ""
    bot_id: str = ""
    text: str = ""
    ts: str = ""
    thread_ts: str = ""
    channel: str = ""
    channel_type: str = ""
    files: tuple[SlackFile, ...] = ()


class _User(Struct, frozen=True, kw_only=True):
    id: str = ""
    team_id: str = ""


class _Channel(Struct, frozen=True, kw_only=True):
    id: str = ""


class _Message(Struct, frozen=True, kw_only=True):
    ts: str = ""
    thread_ts: str = ""


class _Action(Struct, frozen=True, kw_only=True):
    action_id: str = ""
    action_ts: str = ""
    value: str = ""


class SlackPayload(Struct, frozen=True, kw_only=True):
    """The fields of all payloads that are read."""

    type: str = ""
    team_id: str = ""
    event: _Event | None = None
    user: _User = _User()
    channel: _Channel = _Channel()
    message: _Message = _Message()
    actions: tuple[_Action, ...] = ()


def read_payload(payload: SlackPayload, connection: SlackConnection) -> SlackEvent | str:
    """The event, or why chatd does nothing at it."""
    event = None
    if payload.type == "event_callback" and payload.event is not None:
        if payload.team_id != connection.team_id:
            return "another workspace"
        event = _read_message(payload.event, connection)
    elif payload.type == "block_actions":
        if payload.user.team_id not in ("", connection.team_id):
            return "a person of another workspace"
        event = _read_press(payload)
    if event is None:
        return "not an event that starts anything"
    if isinstance(event, str):
        return event
    has_ids = _ID.fullmatch(event.channel) and _ID.fullmatch(event.user)
    if not has_ids or not _TS.fullmatch(event.ts) or not _TS.fullmatch(event.thread_ts):
        return "the event has an unusual id"
    return event


def _read_message(event: _Event, connection: SlackConnection) -> SlackEvent | str | None:
    """A message that mentions the bot comes twice, as two events: it has one key."""
    if event.type not in ("app_mention", "message") or event.subtype not in _TAKEN_SUBTYPES:
        return None
    if event.bot_id or event.user in ("", connection.bot_user_id):
        return "bots cannot ask"
    if event.user_team not in ("", connection.team_id):
        return "a person of another workspace"
    is_mention = _plain_mention(connection.bot_user_id) in _with_plain_mention(
        event.text, connection.bot_user_id
    )
    if event.type == "app_mention" and not is_mention:
        return "no mention"
    return SlackEvent(
        kind="message",
        key=f"message {event.channel} {event.ts}",
        channel=event.channel,
        thread_ts=event.thread_ts or event.ts,
        ts=event.ts,
        user=event.user,
        is_direct=event.channel_type == "im" or event.channel.startswith("D"),
        is_mention=is_mention,
        text=clip(event.text, MAX_TEXT_CHARS),
        files=tuple(one for one in event.files if one.id)[:MAX_FILES],
    )


def _read_press(payload: SlackPayload) -> SlackEvent | str | None:
    if not payload.actions:
        return None
    action, message = payload.actions[0], payload.message
    if action.action_id == OPEN or not (action.value + action.action_id).isprintable():
        return "not a button of chatd"
    if not action.value:
        return "a button that only opens a page"
    key = f"press {payload.channel.id} {message.ts} {payload.user.id} {action.action_id}"
    return SlackEvent(
        kind="press",
        key=clip(f"{key} {action.value} {action.action_ts}", 400),
        channel=payload.channel.id,
        thread_ts=message.thread_ts or message.ts,
        ts=message.ts,
        user=payload.user.id,
        is_direct=payload.channel.id.startswith("D"),
        action=clip(action.action_id, 100),
        value=clip(action.value, 100),
    )


def _plain_mention(bot_user_id: str) -> str:
    return f"<@{bot_user_id}>"


def _with_plain_mention(text: str, bot_user_id: str) -> str:
    """Slack may name the bot in a mention."""
    return re.sub(f"<@{re.escape(bot_user_id)}\\|[^<>]*>", _plain_mention(bot_user_id), text)


def request_of(event: SlackEvent, bot_user_id: str) -> str:
    """What the person wrote, without the mention at its beginning."""
    text = _with_plain_mention(event.text, bot_user_id).strip()
    mention = _plain_mention(bot_user_id)
    if bot_user_id and text.startswith(mention):
        text = text.removeprefix(mention).lstrip(" :,\n")
    return plain_text(text.replace(mention, "@chatd") if bot_user_id else text)


def link_code_of(request: str) -> str | None:
    """The code of `link CODE`."""
    found = _LINK.fullmatch(request.strip())
    return None if found is None else found[1].upper()


def codes_in(text: str) -> Sequence[str]:
    """What may be codes."""
    found = (one[0].upper() for one in _CODE.finditer(text))
    return tuple(islice(found, _MAX_CODES_READ))


def link_digest_text(code: str) -> str:
    """What is hashed. Not the code alone: it must be no credential for anything else."""
    return f"{_CODE_PURPOSE}:{code.upper()}"


def how_to_link(site: str | None) -> str:
    where = "chatd" if site is None else f"<{site}/settings/connections|chatd>"
    return (
        f"Hello! I do not know yet who you are in chatd. Sign in to {where}, make a code under"
        " Settings > Connections > Slack (or with `chatd slack link`), and send it to me in a"
        " direct message: `link CODE`."
    )


# Names that follow from the thread, so that what is repeated after a crash finds what was made


def chat_of(thread_id: UUID, event_key: str) -> ChatId:
    """The chat that this event starts, if it starts one."""
    return ChatId(uuid5(_SPACE, f"{thread_id} {event_key}"))


def workspace_of(chat_id: ChatId) -> WorkspaceId:
    return WorkspaceId(uuid5(_SPACE, f"workspace {chat_id}"))


def request_id_of(connection_id: UUID, event_key: str) -> UUID:
    return uuid5(_SPACE, f"request {connection_id} {event_key}")


# What the chat is told


def create_command(
    connection: SlackConnection,
    chat_id: ChatId,
    owner_id: UserId,
    content: tuple[Part, ...],
    *,
    has_workspace: bool,
    model_config_id: ModelConfigId | None,
) -> CreateChat:
    text = next((part.text for part in content if isinstance(part, TextPart)), "Slack")
    return CreateChat(
        id=chat_id,
        owner_id=owner_id,
        title=fallback_title(text),
        prompt=UserInput(
            content=content, created_by=owner_id, model_config_id=connection.model_config_id
        ),
        model_config_id=model_config_id,
        labels={"slack": connection.name},
        project_id=connection.project_id,
        workspace_id=workspace_of(chat_id) if has_workspace else None,
    )


def send_command(content: tuple[Part, ...], user_id: UserId) -> SendMessage:
    prompt = UserInput(content=content, created_by=user_id)
    return SendMessage(prompt=prompt, when_busy="queue")


def asked_question(chat: Chat) -> tuple[PendingCall, Question] | None:
    """The one question that the chat waits for: a reply in the thread answers it."""
    calls = waiting_calls(chat)
    if len(calls) != 1 or wait_of(calls[0]) != "question":
        return None
    try:
        questions = read_questions(calls[0].args)
    except ToolError:
        return None
    return (calls[0], questions[0]) if len(questions) == 1 else None


# What the thread shows


class ThreadView(Struct, frozen=True, kw_only=True):
    """`tools` are those that run, `messages` of the turn so far."""

    thread_id: UUID
    progress: Progress
    tools: tuple[str, ...] = ()
    messages: int = 0
    queued: int = 0
    error: str = ""
    chat_url: str = ""


def progress_blocks(view: ThreadView) -> list[Block]:
    text = progress_text(view)
    buttons = [*_open(view.chat_url)]
    if view.progress in ("working", "asking"):
        buttons = [button(STOP, "Stop", str(view.thread_id), "danger"), *buttons]
    made = [section(text)]
    return [*made, actions(buttons)] if buttons else made


def progress_text(view: ThreadView) -> str:
    match view.progress:
        case "working":
            facts = [f"{view.messages} messages so far"] if view.messages > 1 else []
            facts += [f"{view.queued} in the queue"] if view.queued else []
            what = ", ".join(f"`{escape(name)}`" for name in view.tools[:3])
            shown = f"⏳ Working on it: {what}" if what else "⏳ Working on it"
            return f"{shown} ({', '.join(facts)})." if facts else f"{shown}."
        case "asking":
            return "✋ Waiting for your answer."
        case "failed":
            return f"❌ The chat stopped: {escape(clip(' '.join(view.error.split()), 1000))}"
        case "gone":
            return "The chat was archived or deleted."
        case "done":
            return "✅ Done."


def call_body(call: PendingCall) -> list[Block]:
    """What a call would do, without buttons."""
    if wait_of(call) == "question":
        return _question_body(call)
    told = describe_call(call)
    reason = f"\n{escape(clip(call.reason, 500))}" if call.reason else ""
    head = section(clip(f"✋ *Allow `{escape(told.tool)}`?*{reason}", MAX_SECTION_CHARS))
    return [head, *(code_sections(told.text) if told.text else ())][:20]


def call_buttons(call: PendingCall, post_id: UUID, chat_url: str) -> list[Block]:
    """The blocks after the body. A call that cannot be shown whole is not approved here."""
    value, links = str(post_id), _open(chat_url)
    if wait_of(call) == "question":
        question = _only_question(call)
        if question is None:
            return [section("Answer in chatd."), *([actions(links)] if links else ())]
        options = [
            button(f"{OPTION}{number}", label, value)
            for number, label in enumerate(question.labels)
        ]
        return [section("Press a button, or reply in this thread."), actions([*options, *links])]
    deny = button(DENY, "Deny", value, "danger")
    if is_shown_whole(call):
        return [actions([button(APPROVE, "Approve", value, "primary"), deny, *links])]
    note = section("Part of it cannot be shown here: approve it in chatd.")
    return [note, actions([deny, *links])]


def is_shown_whole(call: PendingCall) -> bool:
    """Whether Slack can show exactly what would run: text in a block of code cannot have the mark
    that ends it."""
    return may_have_link(call) and "```" not in describe_call(call).text


def call_key(chat: Chat, call: PendingCall) -> str:
    """Of the message about it. A thread may have several chats, one after the other, whose calls
    have the same ids."""
    return f"call {chat.id} {call_fingerprint(chat, call)}"


def _question_body(call: PendingCall) -> list[Block]:
    try:
        questions = read_questions(call.args)
    except ToolError:
        return [section("✋ *A question*")]
    texts: list[str] = []
    for one in questions:
        texts.append(f"✋ *{escape(one.header or 'A question')}*\n{mrkdwn(one.question)}")
        texts += [
            f"• {escape(option.label)}"
            + (f": {escape(option.description)}" if option.description else "")
            for option in one.options
        ]
    return [section(piece) for piece in split_text("\n".join(texts))][:20]


def _only_question(call: PendingCall) -> Question | None:
    try:
        questions = read_questions(call.args)
    except ToolError:
        return None
    fits = len(questions) == 1 and not questions[0].multi_select
    return questions[0] if fits else None


def chosen_label(call: PendingCall, action: str) -> str | None:
    """The option of a pressed button."""
    question, number = _only_question(call), action.removeprefix(OPTION)
    if question is None or not number.isdecimal() or int(number) >= len(question.labels):
        return None
    return question.labels[int(number)]


def decided_text(decision: str | None, who: str) -> str:
    match decision:
        case "approve":
            return f"✅ {escape(who)} approved it."
        case "deny":
            return f"⛔ {escape(who)} denied it."
        case "answer":
            return f"✅ {escape(who)} answered."
        case _:
            return "The chat no longer waits for it."


def _open(chat_url: str) -> Sequence[Block]:
    return (link_button(OPEN, "Open in chatd", chat_url),) if chat_url else ()


Origin = tuple[str, str, int | None]
"""Scheme, host and port."""


def is_slack_file_origin(origin: Origin, base: Origin) -> bool:
    """Whether the bot token may be sent there: hosts of Slack, and that of another API address."""
    scheme, host, port = origin
    is_slack = host == "slack.com" or host.endswith(".slack.com")
    return origin == base or (is_slack and (scheme, port) == ("https", 443))


def read_slack(content: bytes | str, kind: type[T]) -> T:
    """Slack names fields that have no value in some messages, as null, and leaves them out in
    others. Raises DecodeError, UnicodeError, RecursionError."""
    return msgspec.convert(_without_nulls(msgspec.json.decode(content)), kind)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {name: _without_nulls(one) for name, one in fields.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in cast("list[object]", value) if one is not None]
    return value
