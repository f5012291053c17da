"""Which messages play a script of the demo model, and which get the plain answer."""

import pytest

from chatd.providers.demo_provider import find_script

REQUESTS = {
    "tell me a long story": (
        "Tell me a long story",
        "Tell me a long story about a dragon",
        "please write a long answer.",
        "Could you tell me a long story, please?",
    ),
    "fix the failing test": (
        "fix the failing test",
        "Please fix the failing test",
        "Can you fix the failing test in basket.py?",
        "repair the failing tests!",
    ),
    "review this with subagents": (
        "Review this with subagents",
        "please review my code with two agents.",
        "Check the tests with subagents",
        "use subagents",
    ),
    "use the desktop": ("use the desktop", "Please use your mouse", "click a button"),
    "open a window and click it": ("Open a window and click it",),
    "review the tests for gaps": ("Review the tests for gaps",),
    "look for risky code, and change nothing": ("Look for risky code, and change nothing",),
    "run a command": ("run a command", "use a tool", "List files.", "Can you list my files?"),
    "show me an error": ("show me an error", "Fail twice."),
    "show me a permanent error": ("show me a permanent error", "show me a fatal error"),
    "think about it": ("Think about it.", "think", "think aloud"),
    "show me a table": (
        "show me a table",
        "show me a list",
        "Show me some Markdown!",
        "show me code",
    ),
    "cite your sources": ("cite your sources", "Cite sources."),
    "answer fast": ("answer fast", "answer quickly", "answer fast: hello"),
}
EVERYDAY = """
How long is the Nile?
Why does my program fail?
Hello
What can you do?
Tell me a story
How long does a long story take to write?
What do you think?
I think so
I thought about it
What is the reason for this?
Is there a table free tonight?
My table has four legs. Why does it wobble?
What is the dress code?
What does this function return?
Which source of water is near?
Why is my computer so slow?
How fast is a cheetah?
A quick question
Is this an error in my tax form?
Show me an error in this proof
What does error 500 mean?
I failed my exam
Can I fail twice and still pass?
Do you have a list of museums?
Make a list of things to buy
List the capitals of Europe
Where are my files?
What tools do I need to change a tyre?
Which command starts the server?
Should I run a marathon?
I run a company
How do I fix a flat tyre?
Fix it
How do I fix the failing test in my project?
The failing test is annoying
Why would you refuse to answer?
Please translate: the long way home
Write a long email to my boss
Search for a restaurant
What is a fatal error?
Explain the code of Hammurabi
continue
No, the other one.
"""


@pytest.mark.parametrize(
    ("message", "request_"),
    [(message, request) for request, messages in REQUESTS.items() for message in messages],
)
def test_a_clear_request_plays_its_script(message: str, request_: str) -> None:
    script = find_script(message)
    assert script is not None
    assert script.request == request_


@pytest.mark.parametrize("message", [*EVERYDAY.strip().splitlines(), "", " ", "..."])
def test_any_other_message_gets_the_plain_answer(message: str) -> None:
    assert find_script(message) is None
