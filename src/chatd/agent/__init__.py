"""The program inside a workspace: files, git, processes, terminals, MCP servers. No third-party
package.

`server/` takes requests over a Unix socket; `effect_guards` makes each effect happen once and for
one owner of the chat; `files/`, `git/` (snapshots for diffs), `processes/` (commands, terminals)
and `context/` (instruction files, skills, MCP servers of the workspace) do the work.
"""
