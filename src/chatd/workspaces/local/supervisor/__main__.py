"""Run the supervisor: `python -m chatd.workspaces.local.supervisor`."""

from chatd.workspaces.local.supervisor.service import main

main()
