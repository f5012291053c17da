"""The agent as one file: always the same bytes, and nothing of the server in it."""

import ast
import io
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

from chatd.workspaces.bundle import build_bundle, bundle


def sources() -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(bundle())) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_bundle_is_made_once_and_is_always_the_same(tmp_path: Path) -> None:
    first = build_bundle(tmp_path / "new")
    before = first.stat()
    assert build_bundle(tmp_path / "new") == first
    after = first.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert build_bundle(tmp_path / "other").read_bytes() == first.read_bytes() == bundle()
    assert stat.S_IMODE(before.st_mode) == 0o644
    assert [path.name for path in (tmp_path / "new").iterdir()] == [first.name]


def test_a_damaged_bundle_is_made_anew(tmp_path: Path) -> None:
    path = build_bundle(tmp_path)
    path.write_bytes(b"half")
    assert build_bundle(tmp_path) == path
    assert path.read_bytes() == bundle()


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


def test_the_agent_can_be_read_by_an_older_python() -> None:
    """Syntax only: the names that are too new are for the next test."""
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


def test_an_agent_without_a_configuration_says_so(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("{}")
    config.chmod(0o644)
    words = [sys.executable, "-I", str(build_bundle(tmp_path)), "--config", str(config)]
    open_to_all = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert open_to_all.returncode == 1
    assert b"only its owner" in open_to_all.stderr
    assert config.exists()
    config.chmod(0o600)
    wrong = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert (wrong.returncode, b"home is required" in wrong.stderr) == (1, True)
    assert not config.exists()
