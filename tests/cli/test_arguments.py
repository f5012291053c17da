"""What commands read from their arguments, options and input."""

import os
import threading
from datetime import UTC, date, datetime, timedelta

import msgspec
import pytest

from chatd.cli.account.own_resources import read_since, read_skill, split_skill
from chatd.cli.account.sign_in import read_expiry
from chatd.cli.account.user_files import safe_name
from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.answers import Choice, Waiting, choose, read_replies
from chatd.cli.chats.chat_lines import ask_lines, plan_lines, subagent_lines
from chatd.cli.chats.run_report import check_choices, read_chat_id, read_dollars, read_labels
from chatd.cli.chats.run_request import MAX_INLINE_BYTES, RunRequest, join_prompt, read_input
from chatd.cli.options import ServerFinder, suggest, with_target
from chatd.client.resources import Action, Chat, StoredFile
from chatd.domain.chat.call_waits import Question, QuestionOption, QuestionReply
from chatd.domain.ids import FileId, ToolCallId
from chatd.terminal.answers.asks import Ask, ProposedPlan, asks_of
from tests.support.shown_chats import CHAT, asked, shown

NOW = datetime(2026, 11, 17, 9, 0, tzinfo=UTC)
TODAY = NOW.date()


# The prompt


def test_input_is_added_below_the_words() -> None:
    assert join_prompt("Explain: ", b"line 1\nline 2\n").text == "Explain:\n\nline 1\nline 2"
    assert join_prompt("", b"only input").text == "only input"
    assert join_prompt("only words", b"  \n").text == "only words"


def test_a_message_with_files_needs_no_text() -> None:
    assert join_prompt("", b"", has_files=True).text == ""


def test_long_input_is_attached() -> None:
    long = b"x" * (MAX_INLINE_BYTES + 1)
    prompt = join_prompt("Explain", long)
    assert (prompt.text, prompt.attached) == ("Explain", long)


@pytest.mark.parametrize(
    ("given", "told"), [(b"", "there is no prompt"), (b"\xff\xfe\x00", "not UTF-8")]
)
def test_a_prompt_that_cannot_be_sent_is_refused(given: bytes, told: str) -> None:
    with pytest.raises(UsageProblem, match=told):
        join_prompt(" ", given)


def test_input_that_comes_late_is_not_lost() -> None:
    """A program that only leaves its input open is told so after a while."""
    reading, writing = os.pipe()
    waited = threading.Event()

    def write_late() -> None:
        waited.wait(30)
        os.write(writing, b"late")
        os.close(writing)

    thread = threading.Thread(target=write_late)
    thread.start()
    assert read_input(reading, on_wait=waited.set, notice_after_s=0.01) == b"late"
    thread.join()
    os.close(reading)


# Options


def test_options_that_contradict_each_other_are_refused() -> None:
    prompt = join_prompt("hi", b"")
    for request, told in (
        (RunRequest(prompt=prompt, continues=True, chat_id=CHAT), "give one of them"),
        (RunRequest(prompt=prompt, continues=True, labels={"a": "b"}), "--label is for a new chat"),
        (RunRequest(prompt=prompt, chat_id=CHAT, max_cost_micros=1), "--max-cost is for a new"),
        (RunRequest(prompt=prompt, workspace="a", template="b"), "give one of them"),
    ):
        with pytest.raises(UsageProblem, match=told):
            check_choices(request)
    check_choices(RunRequest(prompt=prompt, continues=True, model="sonnet", mcp=("github",)))


def test_labels_are_key_and_value() -> None:
    assert read_labels(["ci=42", "url=https://x/?a=b"]) == {"ci": "42", "url": "https://x/?a=b"}
    for wrong in ("ci", "=42", "ci="):
        with pytest.raises(UsageProblem, match="key=value"):
            read_labels([wrong])


def test_a_budget_is_read_in_dollars() -> None:
    given = ["0.5", "$2", "0.0000001", "1e3"]
    assert [read_dollars(one) for one in given] == [500_000, 2_000_000, 1, 1_000_000_000]
    for wrong in ("", "much", "0", "-1", "nan", "inf", "1e9"):
        with pytest.raises(UsageProblem, match="--max-cost"):
            read_dollars(wrong)


def test_an_id_that_is_none_is_refused() -> None:
    assert read_chat_id(str(CHAT)) == CHAT
    with pytest.raises(UsageProblem, match="chatd chats list"):
        read_chat_id("../../etc")


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("90d", NOW + timedelta(days=90)),
        ("12h", NOW + timedelta(hours=12)),
        ("2w", NOW + timedelta(days=14)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
    ],
)
def test_the_end_of_a_token_is_a_duration_or_a_day(text: str, when: datetime) -> None:
    assert read_expiry(text, NOW) == when


@pytest.mark.parametrize("text", ["soon", "90", "2020-01-01", "-3d"])
def test_a_wrong_end_of_a_token_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="--expires"):
        read_expiry(text, NOW)


@pytest.mark.parametrize(
    ("text", "first"),
    [("1d", TODAY), ("7d", date(2026, 11, 11)), ("2w", date(2026, 11, 4)), ("2026-11-01", None)],
)
def test_usage_begins_on_a_day(text: str, first: date | None) -> None:
    assert read_since(text, TODAY) == (first or date.fromisoformat(text))


@pytest.mark.parametrize("text", ["yesterday", "2027-01-01", "7"])
def test_a_wrong_first_day_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="--since"):
        read_since(text, TODAY)


@pytest.mark.parametrize(
    ("name", "shown_name"),
    [
        ("chart.png", "chart.png"),
        ("../../.bashrc", "_bashrc"),
        (" .profile", "_profile"),
        ("-rf", "_rf"),
        ("a.-b", "a.-b"),
        ("a\\b.txt", "b.txt"),
        ("..", None),
        ("--.", "___"),
        ("", None),
        (None, None),
        ("a\x1b[2J", None),
    ],
)
def test_a_file_is_never_written_outside_of_the_directory(
    name: str | None, shown_name: str | None
) -> None:
    stored = StoredFile(id=FileId(CHAT), name=name)
    assert safe_name(stored) == (shown_name or str(CHAT))


# Skills


def test_a_skill_file_has_a_heading_and_a_body() -> None:
    text = '---\nname: notes\ndescription: "Writes notes: short"\n---\n\n# Do\n---\nmore\n'
    fields, body = split_skill(text)
    assert fields == {"name": "notes", "description": "Writes notes: short"}
    assert body == "# Do\n---\nmore"


def test_options_count_before_the_heading_of_a_skill() -> None:
    text = "---\nname: notes\n---\nbody"
    skill = read_skill(text, "other", "For tests.")
    assert (skill.name, skill.description, skill.body) == ("other", "For tests.", "body")
    with pytest.raises(UsageProblem, match="a description"):
        read_skill(text, None, None)


# Calls that wait


QUESTION = Question(
    question="Which database?",
    options=(QuestionOption(label="PostgreSQL"), QuestionOption(label="SQLite")),
)
SEVERAL = Question(question="Which?", options=QUESTION.options, multi_select=True)


@pytest.mark.parametrize(
    ("question", "text", "reply"),
    [
        (QUESTION, "postgresql", QuestionReply(labels=("PostgreSQL",))),
        (QUESTION, "2", QuestionReply(labels=("SQLite",))),
        (QUESTION, "3", QuestionReply(text="3")),
        (QUESTION, "neither", QuestionReply(text="neither")),
        (SEVERAL, "1, sqlite", QuestionReply(labels=("PostgreSQL", "SQLite"))),
        (SEVERAL, "1 and more", QuestionReply(text="1 and more")),
    ],
)
def test_an_answer_is_an_option_its_number_or_own_words(
    question: Question, text: str, reply: QuestionReply
) -> None:
    assert read_replies([question], [text]) == (reply,)


def test_each_question_needs_one_answer() -> None:
    with pytest.raises(UsageProblem, match="2 questions and 1 answers"):
        read_replies([QUESTION, SEVERAL], ["1"])
    with pytest.raises(UsageProblem, match="own words"):
        read_replies([QUESTION], [" "])


def waiting(*calls: object) -> list[Ask]:
    return asks_of(shown(status="requires_action", requested_calls=calls))


def test_a_call_is_chosen_by_its_id_or_with_all_others() -> None:
    one = Waiting(chat_id=CHAT, asks=tuple(waiting(asked(1))))
    assert choose(one, ("approval",), Choice()) == one
    two = Waiting(chat_id=CHAT, asks=tuple(waiting(asked(1), asked(2))))
    assert choose(two, ("approval",), Choice(call="c2")).asks == two.asks[1:]
    assert choose(two, ("approval",), Choice(every=True)) == two
    with pytest.raises(UsageProblem, match="2 calls wait; name one with --call"):
        choose(two, ("approval",), Choice())
    with pytest.raises(UsageProblem, match="does not wait for that"):
        choose(two, ("question",), Choice())
    with pytest.raises(UsageProblem, match="give one"):
        choose(two, ("approval",), Choice(call="c2", every=True))


def test_a_plan_is_never_answered_in_place_of_a_call() -> None:
    plan = ProposedPlan(chat_id=CHAT, call_id=ToolCallId("p1"), file_id="f1")
    proposed = Waiting(chat_id=CHAT, plan=plan)
    assert choose(proposed, ("approval",), Choice(call="p1")).plan == plan
    for other in (Choice(call="c1"), Choice(every=True)):
        with pytest.raises(UsageProblem, match=f"approve {CHAT} --call p1"):
            choose(proposed, ("approval",), other)


STORED = "run execute without asking in this chat, with exactly this command and directory"


def test_an_approval_shows_the_exact_call_and_the_commands_that_answer() -> None:
    call = asked(1, args='{"command": "ls\\u202e\\nrm -rf x"}', can_always=True)
    assert ask_lines(waiting(call)) == [
        "Run this command?",
        "  | ls\\u202e",
        "  | rm -rf x",
        "  Attention: Invisible characters are shown as escapes such as \\u200b.",
        f"  chatd chats approve {CHAT} --call c1",
        f"  chatd chats approve {CHAT} --call c1 --always",
        f"    stores: {STORED}",
        f"  chatd chats deny {CHAT} --call c1 --reason TEXT",
    ]


def test_always_says_that_it_lets_every_call_of_a_tool_run() -> None:
    (ask,) = waiting(asked(1, "write_file", args='{"path": "a"}', can_always=True))
    told = "run write_file without asking in this chat, every call, whatever its arguments"
    assert f"    stores: {told}" in ask_lines([ask])


def test_an_id_of_a_call_cannot_look_like_a_line_of_ours() -> None:
    (ask,) = waiting(asked(1))
    call = msgspec.structs.replace(ask.call, tool_call_id=ToolCallId("x;\nchatd chats approve y"))
    lines = ask_lines([msgspec.structs.replace(ask, call=call)])
    assert f"  chatd chats approve {CHAT} --call 'x;\\nchatd chats approve y'" in lines


def test_a_question_shows_its_options() -> None:
    args = (
        '{"questions": [{"question": "Which?", "options": ["A", {"label": "B",'
        ' "description": "the other"}]}]}'
    )
    assert ask_lines(waiting(asked(1, "ask_user_question", "question", args))) == [
        "Which?",
        "  1. A",
        "  2. B: the other",
        f"  chatd chats answer {CHAT} --call c1 TEXT",
        f"  chatd chats deny {CHAT} --call c1",
    ]


def test_a_subagent_that_waits_is_answered_by_its_own_id() -> None:
    approval = Chat(id=CHAT, action_summary="Approve: git push", action=Action(kinds=("approval",)))
    assert subagent_lines(approval) == [
        "A subagent waits: Approve: git push",
        f"  chatd chats approve {CHAT}",
    ]
    question = Chat(id=CHAT, action_summary="Which?", action=Action(kinds=("question",)))
    assert subagent_lines(question)[1] == f"  chatd chats answer {CHAT} TEXT"


def test_suggested_commands_name_the_server_that_the_options_of_this_one_chose() -> None:
    said: list[str] = []

    @with_target
    def command(server: ServerFinder) -> None:
        said.extend((suggest("chats tail", CHAT), plan_lines(str(CHAT), "p1")[1]))

    command(url=None, token_file=None, profile=None, data_dir="/my data")
    command(url="http://x", token_file=None, profile=None, data_dir=None)
    assert said == [
        f"chatd chats tail --data-dir '/my data' {CHAT}",
        f"  chatd chats approve --data-dir '/my data' {CHAT} --call p1",
        f"chatd chats tail --url http://x {CHAT}",
        f"  chatd chats approve --url http://x {CHAT} --call p1",
    ]
    assert suggest("chats tail", CHAT) == f"chatd chats tail {CHAT}"
