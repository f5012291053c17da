"""What the demo model says at length. Words only; when to say them is for the scenes."""

from typing import Final

WELCOME: Final = """\
Hello! You are talking to **chatd**, and I am its demo model: I need no key and no network, and I \
play from a script. Everything around me is the real thing. This message went into a PostgreSQL \
database before you saw that it was sent, and my answer is written down as I speak.

You said:

{quote}

Here is what you can try with me:

| Say | and I will |
|---|---|
| `think about it` | show my reasoning before I answer |
| `show me code` or `a table` | answer in Markdown |
| `a long answer` | talk until you stop me |
| `slow` or `fast` | change my pace |
| `an error` | fail twice, so that you see chatd try again |
| `run a command` or `list files` | use a tool, in a workspace of this chat |
| `fix the failing test` | work like an agent: find a bug, mend it, run the tests |

And here is what you can do to *me*, while I speak:

- **Stop following** and come back: the answer went on without you.
- **Interrupt me** (`POST .../interrupt`): what I had said so far is kept.
- **Send another message**: it waits its turn, joins in, or interrupts, by its `busy_behavior`.
- **Kill the server** with `kill -9` and start it again: the chat goes on where it was.

The README has a line of curl for each of these.

When you have seen enough, add a real model: declare it and its provider in `chatd.toml`, as \
docs/models.md shows, and start chatd again.
"""

AGAIN: Final = """\
You said:

{quote}

I only play scripts, so I have no opinion on that. These words make me do something: \
**fix the failing test**, **tool**, **list files**, **think**, **code**, **table**, **long**, \
**slow**, **fast**, **error**. For real answers, declare a real model in `chatd.toml`.
"""

THOUGHTS: Final = """\
The person wants to see me think. Let me do it properly.

First, what is asked: an answer with some reasoning before it. Second, what I know: I am a demo \
model, so whatever I conclude was written down beforehand. Third, what would still be useful: to \
show that reasoning arrives as a part of its own and is kept apart from the answer.

A small puzzle will do. Three boxes are labelled "apples", "pears" and "mixed", and every label is \
wrong. Which box do I open to find out all three? If I take a fruit from the box labelled "mixed", \
it cannot be mixed, so that one fruit names the whole box. The other two then follow.
"""

THOUGHT_ANSWER: Final = """\
Open the box labelled **mixed** and take out one fruit.

1. Every label is wrong, so this box is *not* mixed: one fruit tells what is in it.
2. Say it is an apple. Then the box labelled "pears" can hold neither pears nor (any more) apples, \
so it is the mixed one.
3. The box labelled "apples" is left with the pears.

Above this answer is my reasoning, as a part of its own.
"""

CODE: Final = """\
Here is a small function, with its test:

```python
def chunks(items: list[int], size: int) -> list[list[int]]:
    \"\"\"The items in groups of `size`; the last may be shorter.\"\"\"
    if size < 1:
        raise ValueError("size must be at least 1")
    return [items[at : at + size] for at in range(0, len(items), size)]


def test_the_last_group_may_be_shorter() -> None:
    assert chunks([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]
```

And how to run it:

```sh
python3 -m pytest -q chunks.py
```

Inline code such as `chunks([1, 2, 3], 2)` stays in its line.
"""

MARKDOWN: Final = """\
## A table

| part of chatd | what it does | where it lives |
|---|---|---|
| domain | decides | in pure functions |
| store | remembers | in PostgreSQL |
| engine | works | in workers that may die |
| stream | tells viewers what changed | on every replica |

## A list

1. Send a message.
2. Follow the answer.
   - Leave in the middle and come back.
   - Nothing is lost.
3. Send the next one.

- [x] tables
- [x] lists
- [ ] world peace

## And the rest

> A quotation, with **bold**, *italic*, ~~struck~~ and `code` in it.

A [link](https://example.org), a rule below, and a formula in words: *e* to the *i* pi is -1.

---

That is all.
"""

ITEMS: Final = """\
Things to try in the first five minutes:

1. Ask me to **fix the failing test** and watch the tool calls.
2. Leave while I am speaking, and come back with the last `id:` that you saw.
3. Send a second message while I am busy with the first.
4. Interrupt me, then say **continue**.
5. Ask for **an error** and see how chatd waits and tries again.
6. Follow the same chat from two terminals.
7. Edit your first message: the chat goes on from there.
"""

CHAPTERS: Final = """\
Nothing is lost
A request that was answered is in the database. A message is in history exactly once, or waits in \
the queue exactly once, or was refused with a reason. There is no fourth case.

Nothing is stuck
A chat that is not waiting for a person moves by itself, whatever has died. Its row says what \
should happen and who does it; when that worker is gone, another reads the row.

One writer
Two workers can never both write to a chat. Each write names the version it was decided on, and a \
lost race writes nothing at all. A stale worker notices and goes silent.

Stop means stop
Stopping ends the turn at once and keeps what was said. Calls that were not answered get an answer \
that says so, because a model that finds a call without a result is lost.

A command runs once
After a crash a new worker finds the command that is still running in the workspace, by the id of \
the call, and waits for it instead of starting it a second time.

The stream is a function of the database
Disconnect anywhere, reconnect to any replica with the last version you have seen, and what you \
then hold equals a fresh read. Live parts may be missed, durable ones never.

The model is paid once
An answer is committed before its tools run. A crash runs tools again, never the model, and a \
deploy lets the step in flight finish.

Secrets stay in
Keys never appear in an answer, a log, a trace, a tool's environment or a workspace. Whoever may \
not read a chat is told that there is none.
"""
