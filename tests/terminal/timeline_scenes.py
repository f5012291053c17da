"""Chats with every kind of row, as the golden texts and the widget tests show them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw

from chatd.client.frames import read_event
from chatd.client.state import LiveAnswer, LiveEpisode, ShownChat, drop_partial_group, reduce, start
from chatd.domain.chat.messages import PublicMessage, Role
from chatd.domain.chat.parts import (
    FilePart,
    FileReferencePart,
    KnownPart,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.row import ChatError, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat.takeover import NamedWorker, TakeoverPayload
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.ids import ChatId, MessageId, ToolCallId, WorkerId
from tests.support import event_fixtures
from tests.support.outcomes import present

START: Final = datetime(2026, 1, 1, 0, 16, 36, tzinfo=UTC)
"""Four seconds before the time of a new `FakeClock`."""
CHAT: Final = ChatId(UUID("00000000-0000-4000-8000-000000000001"))
CHILD: Final = "00000000-0000-4000-8000-0000000000c1"


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def json_of(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def call(call_id: str, name: str, args: object, **more: object) -> ToolCallPart:
    part = ToolCallPart(
        tool_call_id=ToolCallId(call_id), tool_name=name, args=json_of(args), created_at=at(0)
    )
    return msgspec.structs.replace(part, **more)


def result(call_id: str, name: str, value: object, **more: object) -> ToolResultPart:
    part = ToolResultPart(
        tool_call_id=ToolCallId(call_id), tool_name=name, result=json_of(value), created_at=at(0.2)
    )
    return msgspec.structs.replace(part, **more)


class Script:
    """Messages of a chat, one after the other."""

    def __init__(self) -> None:
        self.messages: list[PublicMessage] = []

    def say(self, role: Role, *parts: KnownPart, finish: str | None = "stop") -> "Script":
        number = len(self.messages) + 1
        message = PublicMessage(
            id=MessageId(number),
            chat_id=CHAT,
            role=role,
            content=parts,
            created_at=START + timedelta(seconds=number),
            finish_reason=finish if role == "assistant" else None,
        )
        self.messages.append(message)
        return self

    def user(self, text: str, *parts: KnownPart) -> "Script":
        return self.say("user", TextPart(text=text), *parts)

    def answer(self, text: str, finish: str | None = "stop") -> "Script":
        return self.say("assistant", TextPart(text=text), finish=finish)

    def ran(self, call_id: str, name: str, args: object, value: object, **more: object) -> "Script":
        self.say("assistant", call(call_id, name, args), finish="tool-calls")
        return self.say("tool", result(call_id, name, value, **more))

    def chat(self, status: PublicStatus = "waiting", **more: object) -> ShownChat:
        shown = ShownChat(
            chat_id=CHAT, is_loaded=True, status=status, messages=tuple(self.messages), version=1
        )
        return msgspec.structs.replace(shown, **more)


def live(*parts: KnownPart, version: int = 9) -> LiveAnswer:
    episode = LiveEpisode(history_version=version, attempt=1)
    return LiveAnswer(episode=episode, seq=len(parts), parts=parts)


DIFF: Final = """--- a/src/ledger/dispatch.py
+++ b/src/ledger/dispatch.py
@@ -18,4 +18,5 @@
 async def drain(pool, n=100):
-    rows = await pool.fetch(CLAIM, n)
-    for row in rows:
-        await send(row)
+    async with pool.tx() as tx:
+        rows = await tx.fetch(CLAIM, n)
+        for row in rows:
+            await send(row, key=row["id"])
"""
PYTEST: Final = (
    "    assert sent == Counter({e.id: 1 for e in events})\n"
    "\x1b[31mE   AssertionError: 17 of 500 events were sent twice\x1b[0m\n"
    "\x1b[1m1 failed\x1b[0m, 11 passed in 3.94s"
)
MARKDOWN: Final = """## What changed

While the soak test runs, here is **what was wrong** and what *changed*, in `dispatch.py`:

| case | before | after |
|:-----|-------:|------:|
| p95 | 3.1 s | 0.8 s |
| duplicates of a webhook that was sent during a deploy | 17 | 0 |

- [x] reproduce in a test
- [ ] watch the next deploy
  1. in staging
  2. in production

> Nothing stops a second dispatcher.

```python
async def drain(pool, n=100):
    async with pool.tx() as tx:
        return len(await tx.fetch(CLAIM, n))  # holds them
```

See [the manual](https://www.postgresql.org/docs/) and ![a chart](https://x.test/c.png). <b>HTML</b>
"""
QUESTIONS: Final = {
    "questions": [
        {
            "question": "Where should archived invoices go?",
            "options": [{"label": "A second schema"}, {"label": "Object storage"}],
        },
        {"question": "What happens to their PDFs?", "options": ["Keep them", "Delete them"]},
    ]
}


def _work() -> Script:
    script = Script()
    script.ran("s", "chat_summarized", {}, {"summary": "Two **sends**.", "context_tokens": 148_000})
    script.user(
        "Since Tuesday's deploy some customers get the same webhook twice. Find out why, fix it,"
        " and add a test that fails without the fix.",
        FilePart(media_type="text/csv", file_id="f", name="deliveries-tue.csv"),
        FileReferencePart(
            file_name="src/app.py", start_line=3, end_line=4, content="def total(xs):\n    return 1"
        ),
    )
    script.say(
        "assistant",
        ReasoningPart(
            text="I should look at the dispatcher.", created_at=at(0), completed_at=at(6)
        ),
    )
    for number, name in enumerate(("dispatch.py", "claims.sql", "test_dispatch.py")):
        read = {"content": "1\timport asyncio", "total_lines": 80, "lines_read": 80 - number}
        script.ran(f"r{number}", "read_file", {"path": f"/w/src/{name}"}, read)
    script.ran(
        "g",
        "execute",
        {"command": 'rg -n "claim_batch" src tests'},
        {"success": True, "exit_code": 0, "output": "src/a.py:1: claim", "wall_duration_ms": 80},
    )
    script.ran(
        "t",
        "execute",
        {"command": "pytest tests/test_dispatch.py -q"},
        {"success": False, "exit_code": 1, "output": PYTEST, "wall_duration_ms": 4200},
    )
    script.answer("The test reproduces it: two dispatchers, 500 events, **17 duplicates**.")
    script.ran(
        "e0",
        "edit_files",
        {"files": [{"path": "src/claims.sql"}]},
        {"error": "The text to replace was found 2 times, in lines 8 and 31."},
        is_error=True,
    )
    script.ran(
        "d",
        "execute",
        {"command": "docker compose up -d postgres"},
        {
            "error": "stopped",
            "interrupted": True,
            "running": True,
            "wall_duration_ms": 12_000,
            "output": "Pulling",
        },
    )
    script.user("No containers here. And keep the `Idempotency-Key` header.")
    script.ran(
        "e",
        "edit_files",
        {"files": [{"path": "src/ledger/dispatch.py"}]},
        {"ok": True, "files": [{"path": "src/ledger/dispatch.py", "diff": DIFF}]},
    )
    script.user("Call the new test `test_overlap`.")
    return script


def _tools() -> Script:
    script = Script().user("Show every tool.")
    text = "# Fixed\n\n- Webhooks are sent once.\n"
    script.ran("w", "write_file", {"path": "/w/CHANGES.md", "content": text}, {"ok": True})
    script.ran("gr", "grep", {"pattern": "claim"}, {"matches": ["a.py:1", {"path": "b.py"}]})
    script.ran(
        "ls", "list_directory", {"path": "/w"}, {"error": "no such directory"}, is_error=True
    )
    processes = [
        {"command": "sleep 9", "running": True},
        {"command": "make", "running": False, "exit_code": 2},
    ]
    script.ran("pl", "process_list", {}, {"processes": processes})
    script.ran("ps", "process_signal", {"process_id": "p-7", "signal": "kill"}, {"success": True})
    script.ran(
        "bg",
        "execute",
        {"command": "python -m soak &", "model_intent": "soak test"},
        {"success": True, "running": True, "background_process_id": "p-7", "output": "round 7"},
    )
    script.ran(
        "mcp",
        "github__create_issue",
        {"title": "Slow receivers", "body": "…"},
        {"output": "Created #41"},
        mcp_server_config_id="github",
    )
    image = {"mime_type": "image/png", "data": "iVBORw0KGgo="}
    script.ran("img", "browser__screenshot", {"url": "https://x.test"}, image, is_media=True)
    script.ran("un", "of_a_later_release", {"depth": 3, "deep": {"a": [1]}}, {"ok": True, "n": 4})
    pages = [{"url": "https://www.postgresql.org/docs/", "title": "SELECT"}]
    script.ran("web", "web_search", {"query": "postgres skip locked"}, {"results": pages})
    script.ran("sk", "read_skill", {"name": "release-notes"}, {"body": "Write **notes**."})
    attached = {"file_id": "f", "name": "report.pdf", "media_type": "application/pdf", "size": 8192}
    script.ran("at", "attach_file", {"path": "/w/report.pdf"}, attached)
    workspace = {"created": True, "workspace_name": "ledger-api-7f3c"}
    script.ran("ws", "create_workspace", {"template_id": "x"}, workspace)
    script.ran(
        "deny",
        "execute",
        {"command": "git push --force"},
        {"error": "The user denied this call, so it did not run. The reason: never force."},
        is_error=True,
    )
    script.ran("plan", "propose_plan", {"path": "PLAN.md"}, {"file_id": "f", "path": "PLAN.md"})
    return script


def _agents() -> Script:
    script = Script().user("Ask three agents.")
    title = "Find other callers of claim_batch"
    spawned = {"chat_id": CHILD, "title": title, "status": "running"}
    script.ran("sp", "spawn_agent", {"prompt": "Look for callers."}, spawned)
    report = {"chat_id": CHILD, "title": title, "report": "There are **two** callers."}
    script.ran("wa", "wait_agent", {"chat_id": CHILD}, report)
    said = {"chat_id": CHILD, "title": title}
    script.ran("me", "message_agent", {"chat_id": CHILD, "message": "And the tests?"}, said)
    script.ran("in", "interrupt_agent", {"chat_id": CHILD}, said)
    listed = [{"chat_id": CHILD, "title": title, "status": "waiting"}]
    return script.ran("li", "list_agents", {}, {"agents": listed})


def _asked() -> Script:
    script = Script().user("Ask me.")
    answers = [{"chosen": ["A second schema"]}, {"text": "Ask Ada."}]
    script.ran("q1", "ask_user_question", QUESTIONS, {"answers": answers})
    return script.say("assistant", call("q2", "ask_user_question", QUESTIONS), finish="tool-calls")


def _worker(number: int) -> NamedWorker:
    return NamedWorker.of(WorkerId(UUID(int=number << 112)))


TAKEOVER: Final = TakeoverPayload(
    worker=_worker(5),
    lost_worker=_worker(40_000),
    after_ms=2100,
    noticed_by="lock_gone",
    missed_renewals=2,
    message_id=MessageId(2),
    resumed_calls=1,
    repeats_answer=False,
    version=7,
)
RETRY: Final = RetryState(
    attempt=2,
    delay_ms=8000,
    error="The provider is limiting the rate of requests.",
    kind="rate_limit",
    status_code=429,
    detail="too many requests",
    retrying_at=START + timedelta(seconds=8),
)
FAILED: Final = ChatError(
    message="Main gateway refused the API key.", kind="auth", status_code=401, detail="invalid key"
)
_SOURCES: Final = (
    SourcePart(url="https://docs.python.org/3/", title="Python"),
    SourcePart(url="https://x.test/a"),
)
_RUNNING: Final = call("run", "execute", {"command": "make test"})
_TAIL: Final = ToolResultPart(
    tool_call_id=ToolCallId("run"), tool_name="execute", result_delta="line 1\nline 2\n"
)
_ASK: Final = RequestedCall(tool_call_id=ToolCallId("q2"), tool_name="ask", kind="question")
_APPROVE: Final = RequestedCall(
    tool_call_id=ToolCallId("run"), tool_name="execute", kind="approval", reason="Pushes need care."
)
_WRITING: Final = ToolCallPart(
    tool_call_id=ToolCallId("wr"),
    tool_name="write_file",
    args_delta='{"path":"/w/a.py","content":"import asyncio\\n\\nasync def dr',
)


def _short() -> Script:
    return Script().user("Look at it.").say("assistant", _RUNNING, finish="tool-calls")


SCENES: Final[Mapping[str, ShownChat]] = {
    "work": _work().chat(has_older=True, takeover=TAKEOVER),
    "tools": _tools().chat(),
    "agents": _agents().chat(),
    "asked": _asked().chat("requires_action", requested_calls=(_ASK,)),
    "approval": _short().chat("requires_action", requested_calls=(_APPROVE,)),
    "markdown": Script()
    .user("Report.")
    .say("assistant", TextPart(text=MARKDOWN), *_SOURCES, finish="length")
    .chat(),
    "running": _short().chat("running", live=live(_TAIL)),
    "writing": Script().user("Go.").chat("running", live=live(ReasoningPart(text="Hm."), _WRITING)),
    "answering": Script().user("Go.").chat("running", live=live(TextPart(text="It **wor"))),
    "retry": Script().user("Go.").chat("running", retry=RETRY),
    "failed": Script().user("Go.").chat("error", error=FAILED),
    "held": Script().user("Go.").chat("error", error=ChatError(message="", kind="queue_held")),
    "pending": Script().user("Go.").chat("pending"),
    "working": Script().user("Go.").chat("running"),
    "stopping": Script().user("Go.").chat("interrupting"),
    "stopped": Script().user("Go.").answer("The claim has to", finish=None).chat(),
    "compacting": Script().user("Go.").chat("running", live=live(call("s", "chat_summarized", {}))),
}


def states_of(path: Path) -> list[ShownChat]:
    """Every state that a recorded chat had."""
    log = event_fixtures.load(path)
    received = start(msgspec.convert(log.chat_id, ChatId))
    states: list[ShownChat] = []
    for connection in log.connections:
        received = drop_partial_group(received)
        for raw in connection:
            received = reduce(received, present(read_event(bytes(raw))))
            states.append(received.shown)
    return states
