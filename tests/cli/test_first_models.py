"""docs/first-model.md: every command that connects a vendor or a local server, up to the first
answer, against a strict fake of that wire. Only the address is another one."""

import asyncio
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import pytest
from msgspec import Struct

from tests.support.command_line import ServerProcess
from tests.support.providers import anthropic, bedrock, gemini, openai_responses
from tests.support.providers.openai_chat import DONE, FakeChat, FakeCompatible, chunk
from tests.support.providers.server import FakeServer, RecordedRequest, Reply

PAGE = Path(__file__).parents[2] / "docs" / "first-model.md"
COMMANDS: Final = {
    shlex.split(command)[3]: shlex.split(command)[1:]
    for command in re.findall(r"^\|.*`(chatd providers add [^`]+)`", PAGE.read_text(), re.MULTILINE)
}
CHAT_TEXT: Final = b"".join((chunk(content="Hello!"), chunk(finish="stop"), DONE))
OPENAI_KEY: Final = openai_responses.KEY


class Vendor(Struct, kw_only=True):
    """`fake` refuses what the real one refuses. `path` is that of the vendor's own address, where
    the command names none; the fake has its wire at `wire`. `says` is what `reply` contains."""

    fake: type[FakeServer] = FakeCompatible
    reply: bytes = CHAT_TEXT
    says: str = "Hello!"
    path: str = ""
    wire: str = "/v1"
    key: str = ""
    models: tuple[str, ...] = ("qwen3-8b",)

    def listing(self) -> object:
        if self.fake is gemini.FakeGemini:
            method = ["generateContent"]
            return {"models": [{"name": f"models/{m}", "supportedGenerationMethods": method}
                               for m in self.models]}  # fmt: skip
        return {"data": [{"id": name} for name in self.models]}


def anthropic_text(fake: anthropic.FakeAnthropic) -> bytes:
    fake.script_text("Hello!")
    return b"".join(step for step in fake.scripted.pop().steps if isinstance(step, bytes))


RESPONSES = openai_responses.stream("text")
VENDORS: Final[Mapping[str, Vendor]] = {
    "anthropic": Vendor(
        fake=anthropic.FakeAnthropic,
        reply=anthropic_text(anthropic.FakeAnthropic()),
        key=anthropic.KEY,
        wire="",
        models=("claude-opus-5", "claude-haiku-4-5"),
    ),
    "openai": Vendor(
        fake=openai_responses.FakeResponses,
        reply=RESPONSES,
        says="The sky is blue",
        path="/v1",
        key=OPENAI_KEY,
        models=("gpt-5.5", "text-embedding-3-large"),
    ),
    "google": Vendor(
        fake=gemini.FakeGemini,
        reply=gemini.stream("text"),
        says="The sky looks",
        key=gemini.KEY,
        wire="",
        models=("gemini-3-flash-preview",),
    ),
    "openrouter": Vendor(path="/api/v1", key=OPENAI_KEY, models=("openai/gpt-5.5",)),
    "vercel": Vendor(fake=FakeChat, path="/v1", key=OPENAI_KEY, models=("openai/gpt-5.5",)),
    "azure": Vendor(fake=FakeChat, key=OPENAI_KEY),
    "bedrock": Vendor(
        fake=bedrock.FakeBedrock,
        reply=anthropic_text(bedrock.FakeBedrock()),
        key=bedrock.BEARER,
        wire="",
    ),
    "NAME": Vendor(fake=FakeChat, key=OPENAI_KEY),
    **{name: Vendor() for name in ("ollama", "llama", "vllm", "lmstudio", "sglang")},
}


class Front(FakeServer):
    """A vendor at its own path, which gives everything that it accepts the same answer."""

    vendor = Vendor()
    refusals = FakeServer()
    prefix = ""

    def answer(self, request: RecordedRequest) -> Reply:
        assert request.path.startswith(self.prefix), request.path
        path = self.vendor.wire + request.path.removeprefix(self.prefix)
        if request.method == "GET":
            assert urlsplit(path).path.endswith("/models"), path
            body = msgspec.json.encode(self.vendor.listing())
            return Reply(headers={"content-type": "application/json"}, steps=(body,))
        refused = self.refusals.refuse(replace(request, path=path))
        return refused or Reply(steps=(self.vendor.reply,))


def test_every_command_of_the_page_is_tried() -> None:
    assert COMMANDS.keys() == VENDORS.keys()


@pytest.mark.parametrize("name", VENDORS)
async def test_a_command_of_the_page_leads_to_a_first_answer(
    server: ServerProcess, name: str
) -> None:
    vendor, words = VENDORS[name], list(COMMANDS[name])
    async with Front.running() as front:
        front.vendor, front.refusals = vendor, vendor.fake()
        front.content_type = vendor.fake.content_type
        if "--base-url" in words:
            place = words.index("--base-url") + 1
            front.prefix = urlsplit(words[place]).path
            words[place] = front.url + front.prefix
        else:
            front.prefix = vendor.path
            words += ["--base-url", front.url + front.prefix]
        words = ["house" if word == "NAME" else word for word in words]
        variable = words[words.index("--key-env") + 1] if "--key-env" in words else "NO_KEY"
        if vendor.key and variable == "NO_KEY":
            words += ["--key-env", variable]
        env = {variable: vendor.key}
        added = await asyncio.to_thread(server.call, *words, env=env)
        assert added.code == 0, added
        assert f"{words[2]} works: " in added.err
        model = added.out.strip()
        answered = await server.run("run", "-m", model, "Say hello in one word.")
        assert answered.code == 0, answered
        assert vendor.says in answered.out
        assert not vendor.key or vendor.key not in added.out + added.err
