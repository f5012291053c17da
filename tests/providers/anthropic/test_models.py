"""Facts about Claude models by name."""

import pytest

from chatd.providers.anthropic.anthropic_models import UNKNOWN_CLAUDE, claude_facts


@pytest.mark.parametrize(
    ("model", "family", "version"),
    [
        ("claude-instant-1.2", "", (2, 0)),
        ("claude-v2", "", (2, 0)),
        ("claude-2.1", "", (2, 0)),
        ("claude-3-opus-20240229", "opus", (3, 0)),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", "sonnet", (3, 5)),
        ("anthropic/claude-3.7-sonnet", "sonnet", (3, 7)),
        ("claude-opus-4-20250514", "opus", (4, 0)),
        ("claude-opus-4-0", "opus", (4, 0)),
        ("claude-opus-4-1-20250805", "opus", (4, 1)),
        ("us.anthropic.claude-opus-4-6-v1", "opus", (4, 6)),
        ("anthropic/claude-4.7-opus", "opus", (4, 7)),
        ("Claude-Opus-4.8", "opus", (4, 8)),
        ("claude-mythos-preview", "mythos", (4, 7)),
        ("claude-opus-5", "opus", (5, 0)),
        ("claude-opus-5@20260801", "opus", (5, 0)),
        ("global.anthropic.claude-haiku-5-5-v1:0", "haiku", (5, 5)),
        ("claude-sonnet-6-10", "sonnet", (6, 10)),
        ("gpt-5", UNKNOWN_CLAUDE.family, UNKNOWN_CLAUDE.version),
        ("", UNKNOWN_CLAUDE.family, UNKNOWN_CLAUDE.version),
    ],
)
def test_family_and_version_are_read_from_the_name(
    model: str, family: str, version: tuple[int, int]
) -> None:
    found = claude_facts(model)
    assert (found.family, found.version) == (family, version)


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        ("claude-2.1", ()),
        ("claude-3-5-sonnet-latest", ()),
        ("claude-3-7-sonnet-latest", ("budget",)),
        ("claude-opus-4-5", ("budget",)),
        ("claude-opus-4-6", ("budget", "effort")),
        ("claude-mythos-preview", ("effort", "hidden")),
        ("claude-opus-4-8", ("effort", "hidden")),
        ("claude-sonnet-5", ("effort", "hidden", "unasked")),
        ("claude-opus-5-5", ("effort", "hidden", "unasked", "bound")),
        ("claude-fable-5", ("effort", "hidden", "unasked")),
        ("claude-fable-5-1", ("effort", "hidden", "unasked", "bound")),
    ],
)
def test_each_generation_has_its_thinking_settings(model: str, thinking: tuple[str, ...]) -> None:
    claude = claude_facts(model)
    assert claude.can_think is bool(thinking)
    assert claude.has_thinking_budget is ("budget" in thinking)
    assert claude.has_adaptive_thinking is ("effort" in thinking)
    assert claude.hides_thinking is ("hidden" in thinking)
    assert claude.thinks_by_default is ("unasked" in thinking)
    assert claude.binds_thinking is ("bound" in thinking)
    assert claude.can_force_tools is ("bound" not in thinking)


@pytest.mark.parametrize(
    ("model", "off"),
    [
        ("claude-opus-4-8", "omit"),
        ("claude-opus-5", "disabled"),
        ("claude-sonnet-5", "disabled"),
        ("claude-haiku-5-5", "disabled"),
        ("claude-sonnet-5-5", "between_tools"),
        ("claude-opus-5-5", "impossible"),
        ("claude-fable-5", "impossible"),
        ("claude-mythos-5-1", "impossible"),
    ],
)
def test_each_generation_disables_thinking_in_its_way(model: str, off: str) -> None:
    assert claude_facts(model).thinking_off == off


@pytest.mark.parametrize(
    ("model", "anthropic", "bedrock"),
    [
        ("claude-3-5-sonnet-20241022", "computer_20241022", "computer_20241022"),
        ("claude-3-7-sonnet-latest", "computer_20250124", "computer_20250124"),
        ("claude-sonnet-4-5", "computer_20250124", "computer_20250124"),
        ("claude-opus-4-5", "computer_20251124", "computer_20251124"),
        ("claude-fable-5", "computer_20251124", "computer_20251124"),
        ("claude-fable-5-1", "computer_toolset_20260801", "computer_20251124"),
        ("claude-sonnet-5-5", "computer_toolset_20260801", "computer_20251124"),
        ("claude-opus-6", "computer_toolset_20260801", "computer_20251124"),
    ],
)
def test_each_generation_has_its_computer_tool(model: str, anthropic: str, bedrock: str) -> None:
    assert claude_facts(model).computer_tool("anthropic").type == anthropic
    assert claude_facts(model).computer_tool("bedrock").type == bedrock


@pytest.mark.parametrize(
    ("model", "most", "caches", "schemas"),
    [
        ("claude-3-opus-20240229", 4096, "no", "no"),
        ("claude-3-5-haiku-latest", 8192, "yes", "no"),
        ("claude-3-7-sonnet-latest", 32_000, "yes", "no"),
        ("claude-opus-4-1", 32_000, "yes", "no"),
        ("claude-sonnet-4-5", 32_000, "yes", "yes"),
        ("anything", 32_000, "yes", "yes"),
    ],
)
def test_other_facts_of_a_generation(model: str, most: int, caches: str, schemas: str) -> None:
    claude = claude_facts(model)
    assert claude.default_max_tokens == most
    assert claude.has_prompt_cache is (caches == "yes")
    assert claude.has_output_schemas is (schemas == "yes")
