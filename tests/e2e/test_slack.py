"""Slack with `chatd serve` as processes: a server that is killed in the middle of an answer is
replaced, and the thread has one answer."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession

from tests.e2e.test_two_replicas import ask
from tests.support.chaos.servers import AUTH, Installation, server
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate
from tests.support.slack_api import (
    APP_TOKEN,
    BOT,
    BOT_TOKEN,
    DIRECT,
    FakeSlack,
    running_slack,
)

# Real processes, on a machine that may be busy. A lease of 15 seconds ends.
pytestmark = pytest.mark.timeout(150)


def slack_env(slack: FakeSlack) -> Mapping[str, str]:
    return {
        "CHATD_SLACK_API_URL": slack.url,
        "CHATD_SLACK_PRIVATE_ADDRESSES": "true",
        "CHATD_CHATS_TITLES": "false",
    }


async def link(http: ClientSession, slack: FakeSlack) -> None:
    """The administrator says by a code that Ada is the same person."""
    status, made = await ask(http, "POST", "/slack-links/code")
    assert status == 201, made
    await slack.say(f"link {made['code']}", channel=DIRECT)
    await slack.until(lambda: any("You are *admin*" in one.text for one in slack.posted()))
    _, listed = await ask(http, "GET", "/slack-links")
    assert BOT_TOKEN not in str(listed)


@pytest.mark.promise("P1", "P6", "P10")
async def test_a_server_that_is_killed_in_mid_answer_leaves_one_answer_in_the_thread(
    dsn: str, tmp_path: Path
) -> None:
    slack, gate = FakeSlack(), Gate()
    async with FakeCompatible.running() as vendor, running_slack(slack):
        vendor.script(chunk(content="The "), gate)
        for text in ("The whole answer.", "The second."):
            vendor.script(chunk(content=text), chunk(finish="stop"), DONE)
        shared = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path)
        env = slack_env(slack)
        async with (
            server(shared, **env) as first,
            ClientSession(first.url, headers=AUTH) as here,
        ):
            fields = {"name": "Acme", "bot_token": BOT_TOKEN, "app_token": APP_TOKEN}
            status, made = await ask(here, "POST", "/slack-connections", fields)
            assert status == 201, made
            await slack.until(lambda: bool(slack.sockets))
            await link(here, slack)
            thread = await slack.say(f"<@{BOT}> please answer")
            await gate.reached.wait()
            await slack.until(lambda: bool(slack.posted(thread)))
            async with server(shared, **env) as second:
                first.kill()
                await slack.until(
                    lambda: "✅ Done." in [one.shown() for one in slack.posted(thread)],
                    within_s=90,
                )
                answers = [one.shown() for one in slack.posted(thread)]
                assert answers == ["✅ Done.", "The whole answer."]
                # The second server is connected now.
                await slack.say("and then?", thread=thread)
                await slack.until(
                    lambda: slack.posted(thread)[-1].shown() == "The second.", within_s=60
                )
                async with ClientSession(second.url, headers=AUTH) as there:
                    _, listed = await ask(there, "GET", "/slack-connections")
                (shown,) = msgspec.convert(listed["items"], list[dict[str, object]])
                assert shown["connected_at"] is not None
                assert BOT_TOKEN not in str(listed)
