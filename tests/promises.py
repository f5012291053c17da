"""The promises to users, and how far tests cover them.

A test names the promises it holds: `@pytest.mark.promise("P3")`. A promise without a test says why
in `not_yet`; `so_far` names the tested part. `tests/unit/test_behaviour_index.py` checks both.
"""

from msgspec import Struct


class Promise(Struct, frozen=True, kw_only=True):
    id: str
    text: str
    so_far: str | None = None
    not_yet: str | None = None


PROMISES = (
    Promise(
        id="P1",
        text="Nothing is lost: what was accepted is stored; a message is in history once, in the"
        " queue once, or refused with a reason.",
    ),
    Promise(
        id="P2",
        text="Nothing is stuck: a chat that does not wait for a person moves by itself, whatever"
        " died.",
    ),
    Promise(
        id="P3",
        text="One writer: two workers can never both write to a chat; a stale one is refused.",
    ),
    Promise(
        id="P4",
        text="A stop keeps what was said: partial text and calls are saved before the next"
        " message, unanswered calls get an error result.",
    ),
    Promise(
        id="P5",
        text="Shutdown is not a stop: a chat is never left waiting unanswered; its step commits,"
        " or it is pending and another replica takes it within a second.",
        so_far="handing over between replicas; not the time it takes",
    ),
    Promise(
        id="P6",
        text="A killed worker is replaced in seconds: under 3 s when another replica lives, under"
        " 35 s when a host is cut off.",
        so_far="that it is replaced; how fast is for the bench to say",
    ),
    Promise(
        id="P7",
        text="A command runs once: a new worker takes up the command that still runs, and a tool"
        " whose outcome cannot be known says so.",
    ),
    Promise(
        id="P8",
        text="The stream is a function of the database: after a reconnect anywhere a client's"
        " state equals a fresh read.",
    ),
    Promise(
        id="P9",
        text="Order: messages by id, a call's result before the next user or assistant message,"
        " the queue first in first out unless a person reorders it.",
    ),
    Promise(
        id="P10",
        text="The model is paid once: an answer is committed before its tools run, so a crash"
        " runs tools again and not the model. An answer that is cut off goes on from its text where"
        " the model can.",
    ),
    Promise(
        id="P11",
        text="Spend is counted for every model call, and limited before each and while it streams.",
    ),
    Promise(
        id="P12",
        text="No user sees another user's chat: what a user may not read is reported as not found.",
        so_far="the API, its streams and the tools; there are no files of chats yet",
    ),
    Promise(
        id="P13",
        text="Secrets stay in: no key appears in an answer, log, trace, environment or workspace.",
        so_far="keys of providers, agents and MCP servers, and tokens of users for MCP servers",
    ),
    Promise(
        id="P14",
        text="A dead workspace never hangs a chat: every step before the model call is bounded.",
    ),
    Promise(
        id="P15",
        text="Bad input gets a clear error and changes nothing.",
    ),
    Promise(
        id="P16",
        text="No set-up: `make serve` on a fresh machine gives a working server, a page and a demo"
        " agent, without a key and without a database to install.",
        so_far="a server and a model that answers; there is no page yet",
    ),
)
