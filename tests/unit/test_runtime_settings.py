"""Settings that are changed over the API: patches and what they tell a model."""

import pytest

from chatd.domain.deployment.runtime_settings import (
    MAX_AUDITED_CHARS,
    MAX_PROMPT_BYTES,
    DeploymentPatch,
    DeploymentSettings,
    UserPatch,
    UserSettings,
    patched,
    shown_fields,
)
from chatd.domain.errors import InvalidInput
from chatd.domain.prompt.instructions import DEFAULT_SYSTEM_PROMPT, strip_invisible
from chatd.services.operation.runtime_settings import deployment_prompt

BEFORE = DeploymentSettings(system_prompt="Be kind.", include_default_prompt=False)


@pytest.mark.parametrize(
    ("patch", "after"),
    [
        (DeploymentPatch(), BEFORE),
        (DeploymentPatch(version=3), BEFORE),
        (
            DeploymentPatch(system_prompt=""),
            DeploymentSettings(system_prompt="", include_default_prompt=False),
        ),
        (
            DeploymentPatch(include_default_prompt=True),
            DeploymentSettings(system_prompt="Be kind.", include_default_prompt=True),
        ),
        (
            DeploymentPatch(system_prompt="a\u200bb\r\n\n\n\nc  \n"),
            DeploymentSettings(system_prompt="ab\n\nc", include_default_prompt=False),
        ),
    ],
)
def test_a_patch_changes_the_fields_that_it_names(
    patch: DeploymentPatch, after: DeploymentSettings
) -> None:
    assert patched(BEFORE, patch) == after


def test_a_prompt_has_a_maximum_size_after_cleaning() -> None:
    longest = "é" * (MAX_PROMPT_BYTES // 2)
    assert patched(UserSettings(), UserPatch(custom_prompt=longest + "\n" * 99)).custom_prompt
    with pytest.raises(InvalidInput, match="custom_prompt: must have at most 131072 bytes"):
        patched(UserSettings(), UserPatch(custom_prompt=longest + "é"))


@pytest.mark.parametrize(
    ("settings", "prompt"),
    [
        (DeploymentSettings(), DEFAULT_SYSTEM_PROMPT),
        (BEFORE, "Be kind."),
        (DeploymentSettings(include_default_prompt=False), ""),
        (DeploymentSettings(system_prompt="Be kind."), f"{DEFAULT_SYSTEM_PROMPT}\n\nBe kind."),
    ],
)
def test_a_new_chat_begins_with_the_built_in_prompt_and_the_administrators_text(
    settings: DeploymentSettings, prompt: str
) -> None:
    assert deployment_prompt(settings) == prompt


def test_the_built_in_prompt_needs_no_cleaning() -> None:
    assert strip_invisible(DEFAULT_SYSTEM_PROMPT) == DEFAULT_SYSTEM_PROMPT


def test_an_audit_record_shows_long_texts_clipped() -> None:
    after = patched(BEFORE, DeploymentPatch(system_prompt="x" * 10_000))
    shown = {
        "system_prompt": "Be kind.",
        "include_default_prompt": False,
        "sharing_enabled": True,
        "public_links": False,
        "public_link_days": 30,
        "answer_links": False,
        "memory": True,
        "experiments": (),
        "debug_recording": "off",
    }
    assert shown_fields(BEFORE) == shown
    assert shown_fields(after)["system_prompt"] == "x" * (MAX_AUDITED_CHARS - 1) + "…"
