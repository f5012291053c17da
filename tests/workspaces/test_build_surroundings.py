"""Before and after a build: templates that come with the server, and the contexts that agents
report."""

import asyncio

import msgspec
import pytest

from chatd.domain.chat.states import State
from chatd.domain.workspace.agent_api import ContextResource, WorkspaceContext
from chatd.domain.workspace.template_definition import TemplateDefinition
from chatd.domain.workspace.templates import needs_own_runner, resolve_parameters
from chatd.store.database.pool import Pool
from chatd.store.workspace import bindings, builds, templates
from chatd.workspaces.agents.agent_monitor import ContextSync
from chatd.workspaces.templates import (
    BUILT_IN_TEMPLATES,
    sync_templates,
    template_rows,
)
from tests.support.clock import FakeClock
from tests.support.factories import CHAT, HARNESS
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stream_replica import Emitted, env_with
from tests.support.workspaces import (
    agent_id,
    agent_spec,
    build_id,
    finish,
    insert_template,
    insert_workspace,
    stored_context,
    workspace_id,
)


async def listed(pool: Pool) -> dict[str, tuple[str, bool]]:
    """Those that a user may choose."""
    found = await templates.list_all(pool)
    return {t.name: (t.origin, t.deprecated) for t in found if not needs_own_runner(t)}


async def test_concurrent_inserts_of_built_in_templates_store_each_once(
    pool: Pool, clock: FakeClock
) -> None:
    await asyncio.gather(*(sync_templates(pool, env_with(clock)) for _ in range(6)))
    assert await listed(pool) == {"demo": ("builtin", False), "scratch": ("builtin", False)}
    assert await pool.fetchval("SELECT count(*) FROM template_versions") == len(BUILT_IN_TEMPLATES)
    for template in await templates.list_all(pool):
        if needs_own_runner(template):
            continue
        version = present(await templates.get_version(pool, template.active_version_id))
        assert resolve_parameters(version.parameters, {}).problems == ()


async def test_a_changed_template_becomes_a_new_version(pool: Pool, clock: FakeClock) -> None:
    file = TemplateDefinition(name="mine", readme="one")
    [first] = await sync_templates(pool, env_with(clock), [file], built_in=False)
    changed = msgspec.structs.replace(file, readme="two", description="new words")
    [second] = await sync_templates(pool, env_with(clock), [changed], built_in=False)
    assert second.id == first.id
    assert second.active_version_id != first.active_version_id
    assert second.description == "new words"
    [third] = await sync_templates(pool, env_with(clock), [file], built_in=False)
    assert third.active_version_id == first.active_version_id
    assert await pool.fetchval("SELECT count(*) FROM template_versions") == 2


async def test_a_template_of_the_settings_hides_the_built_in_one_of_its_name(
    pool: Pool, clock: FakeClock
) -> None:
    own = TemplateDefinition(name="Demo", description="ours")
    await sync_templates(pool, env_with(clock), [own, TemplateDefinition(name="more")])
    assert await listed(pool) == {
        "Demo": ("settings", False),
        "more": ("settings", False),
        "scratch": ("builtin", False),
    }
    await sync_templates(pool, env_with(clock), [own])
    assert (await listed(pool))["more"] == ("settings", True)


async def test_a_users_template_keeps_its_name(pool: Pool, clock: FakeClock) -> None:
    await insert_template(pool)  # called scratch
    emitted = Emitted()
    stored = await sync_templates(pool, env_with(clock, emitted))
    assert [template.name for template in stored] == ["demo", "here", "here-machine"]
    assert emitted.counts["template_skipped"] == 1


def test_the_same_file_has_the_same_ids_everywhere() -> None:
    ids = [
        (template_rows(f, "builtin").template.id, template_rows(f, "builtin").version.id)
        for f in BUILT_IN_TEMPLATES
    ]
    assert ids == [
        (template_rows(f, "builtin").template.id, template_rows(f, "builtin").version.id)
        for f in BUILT_IN_TEMPLATES
    ]
    assert len({one for pair in ids for one in pair}) == 2 * len(BUILT_IN_TEMPLATES)
    assert template_rows(BUILT_IN_TEMPLATES[0], "settings").template.id != ids[0][0]


# Contexts


def context(version: int, *texts: str, **columns: object) -> WorkspaceContext:
    resources = tuple(
        ContextResource(kind="instruction_file", source=f"/{at}", status="ok", content=text, size=3)
        for at, text in enumerate(texts)
    )
    row = WorkspaceContext(
        version=version,
        hash="|".join(texts) or "-",
        directory="/w",
        os="linux",
        resources=resources,
    )
    return msgspec.structs.replace(row, **columns)


async def a_chat_in_a_workspace(pool: Pool) -> None:
    await insert_workspace(pool)
    both = builds.BuildResult(status="succeeded", agents=(agent_spec(1), agent_spec(2)))
    await finish(pool, both)
    await insert_seed(pool, Seed(state=State.W))
    await bindings.bind(pool, HARNESS, CHAT, expected=None, workspace_id=workspace_id(1))
    await bindings.save_bound_agent(
        pool, HARNESS, CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    )


async def test_a_chat_uses_its_pinned_context_until_it_pins_another(
    pool: Pool, clock: FakeClock
) -> None:
    await a_chat_in_a_workspace(pool)
    contexts = ContextSync(pool, env_with(clock))
    assert await contexts.pinned(CHAT, agent_id(1)) is None
    first = context(1, "a", "b", "half \ud800")
    assert await contexts.store(agent_id(1), first, initial=True)
    pinned = present(await contexts.pinned(CHAT, agent_id(1)))
    assert [r.content for r in pinned.context.resources] == ["a", "b", "half \ufffd"]
    assert not pinned.dirty
    second = context(2, "a2")
    assert await contexts.store(agent_id(1), second, initial=False)
    kept = await contexts.pinned(CHAT, agent_id(1))
    assert kept == msgspec.structs.replace(pinned, dirty=True)
    assert await bindings.pin_context(pool, HARNESS, CHAT, agent_id(1), replace=True)
    renewed = present(await contexts.pinned(CHAT, agent_id(1)))
    assert (renewed.context, renewed.dirty) == (second, False)


async def test_an_older_context_does_not_replace_a_newer_one(pool: Pool, clock: FakeClock) -> None:
    await a_chat_in_a_workspace(pool)
    contexts = ContextSync(pool, env_with(clock))
    assert await contexts.store(agent_id(1), context(5, "five"), initial=False)
    assert not await contexts.store(agent_id(1), context(5, "again"), initial=False)
    assert not await contexts.store(agent_id(1), context(4, "four"), initial=False)
    assert await stored_context(pool, agent_id(1)) == context(5, "five")
    assert await contexts.store(agent_id(1), context(1, "reborn"), initial=True)
    assert await stored_context(pool, agent_id(1)) == context(1, "reborn")
    assert not await contexts.store(agent_id(77), context(1, "x"), initial=True)


async def test_a_context_that_is_too_large_is_not_stored(pool: Pool, clock: FakeClock) -> None:
    await a_chat_in_a_workspace(pool)
    emitted = Emitted()
    contexts = ContextSync(pool, env_with(clock, emitted))
    await contexts.store(agent_id(1), context(1, "good"), initial=True)
    assert not await contexts.store(agent_id(1), context(2, "x" * 300_000), initial=False)
    assert emitted.counts["context_rejected"] == 1
    assert await stored_context(pool, agent_id(1)) == context(1, "good")


@pytest.mark.covers("instructions-1")
async def test_the_context_of_another_agent_is_pinned_once_it_is_stored(
    pool: Pool, clock: FakeClock
) -> None:
    await a_chat_in_a_workspace(pool)
    contexts = ContextSync(pool, env_with(clock))
    await contexts.store(agent_id(1), context(1, "one", "more"), initial=True)
    await contexts.pinned(CHAT, agent_id(1))
    assert present(await contexts.pinned(CHAT, agent_id(2))).agent_id == agent_id(1)
    await contexts.store(agent_id(2), context(1, "two"), initial=True)
    spoken = present(await contexts.pinned(CHAT, agent_id(2)))
    assert (spoken.agent_id, spoken.context) == (agent_id(2), context(1, "two"))


async def test_chats_of_one_agent_can_pin_concurrently(pool: Pool, clock: FakeClock) -> None:
    await a_chat_in_a_workspace(pool)
    contexts = ContextSync(pool, env_with(clock))
    await contexts.store(agent_id(1), context(1, "one"), initial=True)
    pinned = await asyncio.gather(*(contexts.pinned(CHAT, agent_id(1)) for _ in range(6)))
    assert {p.context.hash for p in pinned if p is not None} == {"one"}
