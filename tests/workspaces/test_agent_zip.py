"""The agent as one file: the same bytes every time, and no code of the server."""

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

from chatd.workspaces.local.kit import agent_zip


def sources() -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(agent_zip())) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_zip_is_always_the_same() -> None:
    assert agent_zip() == agent_zip()


def test_the_agent_needs_nothing_but_the_standard_library() -> None:
    for name, text in sources().items():
        for node in ast.walk(ast.parse(text, name)):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, name
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in modules:
                is_ours = module == "chatd.agent" or module.startswith("chatd.agent.")
                assert is_ours or module.split(".")[0] in sys.stdlib_module_names, (name, module)


def test_the_agent_has_the_syntax_of_python_3_9() -> None:
    """Syntax only: the next test checks names."""
    for name, text in sources().items():
        ast.parse(text, name, feature_version=(3, 9))


def test_the_agent_uses_nothing_that_came_after_python_3_9() -> None:
    too_new = {
        "asyncio.timeout",
        "asyncio.timeout_at",
        "asyncio.TaskGroup",
        "asyncio.Runner",
        "asyncio.Barrier",
        "datetime.UTC",
        "itertools.pairwise",
        "itertools.batched",
        "contextlib.chdir",
        "hashlib.file_digest",
        "enum.StrEnum",
        "typing.assert_never",
        "typing.Self",
        "sys.stdlib_module_names",
    }
    for name, text in sources().items():
        for node in ast.walk(ast.parse(text, name)):
            used: set[str] = set()
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used = {f"{node.value.id}.{node.attr}"}
            elif isinstance(node, ast.ImportFrom):
                used = {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                used = {f"{word.arg}=" for word in node.keywords if node.func.id == "zip"}
                used |= {
                    f"dataclass({word.arg})"
                    for word in node.keywords
                    if node.func.id == "dataclass" and word.arg in ("slots", "kw_only")
                }
            assert not used & {*too_new, "strict=", "dataclass(slots)", "dataclass(kw_only)"}, name


def test_an_agent_with_an_invalid_configuration_reports_it(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("{}")
    config.chmod(0o644)
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(agent_zip())
    words = [sys.executable, "-I", str(agent), "--config", str(config)]
    open_to_all = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert open_to_all.returncode == 1
    assert b"only its owner" in open_to_all.stderr
    assert config.exists()
    config.chmod(0o600)
    wrong = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert (wrong.returncode, b"home is required" in wrong.stderr) == (1, True)
    assert not config.exists()
