"""A server of local workspaces as a process, which a test can kill or run under any account.

It replies to each line: to `start ID BUILD` with the isolation level, to `run COMMAND` with the
output of the command in the workspace that was started last.
"""

import asyncio
import json
import sys
from pathlib import Path
from uuid import UUID

from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import DemoSeed, TemplateSpec
from chatd.workspaces.local.local_backend import LocalConfig
from tests.support.local_rig import HOST, LocalRig, RunningWorkspace


async def main() -> None:
    rig = LocalRig(LocalConfig(data_dir=Path(sys.argv[1]), host_id=HOST))
    running: RunningWorkspace | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, _, rest = line.strip().partition(" ")
        answer: object = None
        if word == "start":
            name, build = rest.split()
            spec = TemplateSpec(seed=DemoSeed())
            running = await rig.start(spec, again=WorkspaceId(UUID(name)), build=int(build))
            answer = running.agent.isolation
        elif word == "run" and running is not None:
            answer = await rig.output_of(running, rest)
        elif word == "delete" and running is not None:
            await rig.delete(running.workspace.id, build=99)
        elif word == "end":
            await rig.close()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
