"""When tools/page_build.py builds the page; its node and npm are programs that note their calls."""

import os
from pathlib import Path

import pytest

from tools.page_build import PageNotBuilt, build_page, page_of, source_hash

NPM = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$1" in
ci) mkdir -p node_modules; touch node_modules/.package-lock.json ;;
run) test ! -e broken || { echo "x.ts is wrong"; exit 1; }
     mkdir -p ../src/chatd/page; echo built > ../src/chatd/page/index.html ;;
esac
"""


class PageTree:
    """A repository with a page, and a PATH with the given version of Node or without it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, node: str | None) -> None:
        self.root = root
        self.said: list[str] = []
        self._calls = root / "calls"
        programs = root / "bin"
        for directory in (programs, root / "ui" / "src"):
            directory.mkdir(parents=True)
        if node is not None:
            self._write("bin/node", f"#!/bin/sh\necho {node}\n")
            self._write("bin/npm", NPM)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin" if node else str(programs))
        monkeypatch.setenv("CALLS", str(self._calls))
        self._write("ui/package-lock.json", "{}")
        os.utime(root / "ui" / "package-lock.json", (1, 1))
        for name in ("package.json", "src/app.tsx", "src/app.test.tsx"):
            self._write(f"ui/{name}", name)

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)

    def build(self, mode: str = "auto") -> list[str]:
        """The commands of npm that this build ran."""
        before = len(self.calls)
        build_page(self.root, mode, self.said.append)
        return self.calls[before:]

    @property
    def calls(self) -> list[str]:
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [" ".join(line.split()[:1]) for line in lines]

    @property
    def is_built(self) -> bool:
        return (page_of(self.root) / "index.html").exists()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageTree:
    return PageTree(tmp_path, monkeypatch, "v20.19.4")


def test_a_build_happens_once_until_a_source_changes(tree: PageTree) -> None:
    assert tree.build() == ["ci", "run"]
    assert tree.is_built
    assert tree.build() == []
    (tree.root / "ui" / "src" / "app.tsx").write_text("changed")
    assert tree.build() == ["run"], "the packages are those of the lock file"


@pytest.mark.parametrize("name", ["src/app.test.tsx", "README.md", "node_modules/x.js", ".cache"])
def test_what_is_not_part_of_the_page_builds_nothing(tree: PageTree, name: str) -> None:
    tree.build()
    (tree.root / "ui" / name).write_text("changed")
    assert tree.build() == []


def test_a_newer_lock_file_installs_the_packages_again(tree: PageTree) -> None:
    tree.build()
    (tree.root / "ui" / "package-lock.json").write_text('{"new": true}')
    os.utime(tree.root / "ui" / "package-lock.json", (2**33, 2**33))
    assert tree.build() == ["ci", "run"]


def test_a_renamed_source_is_a_change(tree: PageTree) -> None:
    before = source_hash(tree.root)
    source = tree.root / "ui" / "src" / "app.tsx"
    source.rename(source.with_name("page.tsx"))
    assert source_hash(tree.root) != before


def test_a_failed_build_says_why_and_is_tried_again(tree: PageTree) -> None:
    (tree.root / "ui" / "broken").touch()
    assert tree.build() == ["ci", "run"]
    assert "x.ts is wrong" in tree.said[-1]
    assert "the lite page" in tree.said[-1]
    assert tree.build() == ["run"]
    with pytest.raises(PageNotBuilt, match=r"x\.ts is wrong"):
        tree.build("require")


@pytest.mark.parametrize("node", [None, "v18.20.0", "v20.18.9", "nonsense"])
def test_without_a_recent_node_the_server_does_without_the_page_unless_it_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str | None
) -> None:
    tree = PageTree(tmp_path, monkeypatch, node)
    assert tree.build() == []
    assert "Node 20.19 or newer" in tree.said[-1]
    with pytest.raises(PageNotBuilt, match=r"Node 20\.19 or newer"):
        tree.build("require")


def test_a_page_that_came_with_the_sources_needs_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an sdist."""
    tree = PageTree(tmp_path, monkeypatch, None)
    page_of(tree.root).mkdir(parents=True)
    (page_of(tree.root) / ".source-hash").write_text(source_hash(tree.root))
    tree.build("require")
    assert tree.said == []


def test_skip_builds_nothing_and_another_word_is_refused(tree: PageTree) -> None:
    assert tree.build("skip") == []
    assert not tree.is_built
    with pytest.raises(PageNotBuilt, match="auto, require, skip"):
        tree.build("never")
