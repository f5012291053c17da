"""A workspace in a directory, with tools that answer like the real ones.

Just enough for the demo model: real files, real commands.
"""

import asyncio
from pathlib import Path

import msgspec
from msgspec import Raw

from chatd.domain.model.protocol import ToolSpec

_SCHEMAS = {
    "execute": {"command": {"type": "string"}},
    "read_file": {"path": {"type": "string"}},
    "write_file": {"path": {"type": "string"}, "content": {"type": "string"}},
    "edit_files": {"files": {"type": "array", "description": "path, edits: old_text, new_text"}},
    "list_templates": dict[str, object](),
    "create_workspace": {"template_id": {"type": "string"}, "name": {"type": "string"}},
    "start_workspace": dict[str, object](),
}

Object = dict[str, object]


def tool(name: str) -> ToolSpec:
    schema = {"type": "object", "properties": _SCHEMAS.get(name, {})}
    return ToolSpec(
        name=name, description=f"The {name} tool.", input_schema=Raw(msgspec.json.encode(schema))
    )


ALL_TOOLS = tuple(tool(name) for name in _SCHEMAS)


class ToolRefusal(Exception):
    """The tool's answer is an error."""


class FileToolRunner:
    """`exists`: there is a workspace; `stopped`: it does not run. `broken` tools always fail.
    `failed_build` is what `create_workspace` answers."""

    def __init__(
        self,
        place: Path,
        *,
        exists: bool = True,
        stopped: bool = False,
        broken: frozenset[str] = frozenset(),
        failed_build: str = "",
    ) -> None:
        self.place = place
        self.exists = exists
        self.stopped = stopped
        self.broken = broken
        self.failed_build = failed_build
        self.calls: list[str] = []

    async def run(self, name: str, args: Object) -> tuple[str, bool]:
        """The result's text, and whether it is an error."""
        self.calls.append(name)
        if name == "create_workspace" and self.failed_build:
            return self.failed_build, False
        try:
            return msgspec.json.encode(await self._run(name, args)).decode(), False
        except ToolRefusal as refused:
            return str(refused), True

    async def _run(self, name: str, args: Object) -> Object:
        if name in self.broken:
            raise ToolRefusal(f"{name} is broken")
        match name:
            case "list_templates":
                return {"templates": [{"id": "t1", "name": "plain"}], "count": 1}
            case "create_workspace":
                if args["template_id"] != "t1":
                    raise ToolRefusal("template not found")
                self.exists = True
                return {"created": True, "workspace_name": str(args["name"])}
            case "start_workspace":
                self.stopped = False
                return {"started": True}
            case _ if self.stopped:
                raise ToolRefusal(
                    "The workspace has no running agent. Start it with start_workspace."
                )
            case _ if not self.exists:
                raise ToolRefusal("The chat has no workspace. Use create_workspace first.")
            case "execute":
                return await self._execute(str(args["command"]))
            case "write_file":
                return _write(Path(str(args["path"])), str(args["content"]))
            case "read_file":
                return _read(Path(str(args["path"])))
            case "edit_files":
                return self._edit(args)
            case _:
                raise ToolRefusal(f"Tool not found: {name}")

    async def _execute(self, command: str) -> Object:
        process = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            command,
            cwd=self.place,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        code = process.returncode
        return {"success": code == 0, "output": output.decode(), "exit_code": code}

    def _edit(self, args: Object) -> Object:
        wanted = msgspec.convert(args["files"], list[_FileEdit])
        for entry in wanted:
            path = Path(entry.path)
            text = path.read_text()
            for edit in entry.edits:
                if text.count(edit.old_text) != 1:
                    raise ToolRefusal("old_text was not found")
                text = text.replace(edit.old_text, edit.new_text)
            path.write_text(text)
        return {"ok": True, "files": [{"path": entry.path} for entry in wanted]}


def _write(path: Path, content: str) -> Object:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return {"ok": True}


def _read(path: Path) -> Object:
    content = path.read_text()
    return {"content": content, "lines_read": content.count("\n")}


class _Edit(msgspec.Struct, forbid_unknown_fields=True):
    old_text: str
    new_text: str


class _FileEdit(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    edits: list[_Edit]
