"""The settings shown in the documentation of workspaces are valid."""

import re
import tomllib
from pathlib import Path

import msgspec

from chatd.domain.workspace.entities import GitSeed, ResourceLimits, TemplateSpec
from chatd.domain.workspace.template_definition import TemplateDefinition, find_template_problems
from chatd.settings.loader import ConfigFile, load_settings

PAGE = Path(__file__).parents[2] / "docs" / "workspaces.md"


def test_the_documented_templates_are_valid() -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, TemplateDefinition] = {}
    for example in examples:
        assert tomllib.loads(example)
        file = ConfigFile(path=Path("/etc/chatd.toml"), text=example)
        settings = load_settings(file, {}, {}, data_dir=Path("/nonexistent"))
        [template] = msgspec.convert(settings.templates, tuple[TemplateDefinition, ...])
        assert not find_template_problems(template)
        found[template.name] = template
    assert found["node"].backend == "container"
    assert isinstance(found["shop"].spec.seed, GitSeed)
    assert [parameter.name for parameter in found["shop"].parameters] == ["branch"]


def test_the_documentation_lists_all_limits() -> None:
    table = PAGE.read_text().partition("## Limits")[2].partition("## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(ResourceLimits.__struct_fields__)
    assert ResourceLimits() == TemplateSpec().limits
