"""Builds the page and the documentation, and puts Swagger UI and a note of what was built into the
wheel. Run by hatchling.

The same sources with the same SOURCE_DATE_EPOCH make the same bytes: the note has that time, or
the time of the commit, and never that of the build.

The page is built as tools/page_build.py says. Swagger UI comes from the package that carries its
files; an editable install needs none of that: chatd finds the package itself.
"""

import hashlib
import json
import os
import subprocess
from datetime import UTC, datetime
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "flask_swagger_ui"
PLACE = "chatd/api/swagger_ui"
NOTE_PLACE = "chatd/build.json"
SITE = "mkdocs-material~=9.8"
SHA256 = {
    "swagger-ui-bundle.js": "3f6abf70480db7e07914df4c98a77385f22ea585eaf457a3e6415ba0eae2d167",
    "swagger-ui.css": "c3cfe8248c4b0b89673600fb829924eafbac6de4bc4b2b06f5f5243483074d0a",
    "LICENSE": "f3bafbe10a72b3d49c57ec1b7128abd1868d4c2fa0995858d909cb60898a7746",
}


class ChatdHook(BuildHookInterface[BuilderConfig]):
    _directory: TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """What builds the documentation, for a build in an environment of its own: pip install ."""
        with_help = self.target_name == "wheel" and os.environ.get("CHATD_UI", "auto") != "skip"
        return [SITE] if with_help else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        mode = os.environ.get("CHATD_UI", "auto")
        root, warn = Path(self.root), self.app.display_warning
        tool(root, "page_build").build_page(root, mode, warn)
        tool(root, "help_build").build_help(root, mode, warn)
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"].update(swagger_ui_files())
            self._directory = TemporaryDirectory()
            note = Path(self._directory.name) / "build.json"
            note.write_text(json.dumps(build_note(Path(self.root)), sort_keys=True) + "\n")
            build_data["force_include"][str(note)] = NOTE_PLACE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del build_data, artifact_path
        if version == "standard" and self._directory is not None:
            self._directory.cleanup()


def build_note(root: Path) -> dict[str, str]:
    """The commit and its day, as far as they are known; CHATD_COMMIT names the commit where there
    is no repository. A change that is not committed is marked."""
    commit, at = os.environ.get("CHATD_COMMIT", ""), os.environ.get("SOURCE_DATE_EPOCH", "")
    if (root / ".git").exists():
        commit = commit or git(root, "rev-parse", "--short=12", "HEAD")
        if commit and git(root, "status", "--porcelain", "--untracked-files=no"):
            commit += ", changed"
        at = at or git(root, "log", "-1", "--format=%ct")
    # Zero stands for no date: the default of an image's build.
    day = datetime.fromtimestamp(int(at), UTC).date().isoformat() if at not in ("", "0") else ""
    return {"commit": commit, "date": day}


def git(root: Path, *arguments: str) -> str:
    """Nothing if there is no git, or it refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def tool(root: Path, name: str) -> ModuleType:
    """A module beside this one. While hatchling runs it, tools is no package on its path."""
    spec = spec_from_file_location(name, root / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def swagger_ui_files() -> dict[str, str]:
    """The place in the wheel of each file."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{PACKAGE} is not installed; pyproject.toml names its version.")
    directory = Path(spec.submodule_search_locations[0]) / "dist"
    for name, expected in SHA256.items():
        found = hashlib.sha256((directory / name).read_bytes()).hexdigest()
        if found != expected:
            raise ValueError(f"{name} of {PACKAGE} is not the file that was checked: {found}")
    return {str(directory / name): f"{PLACE}/{name}" for name in SHA256}
