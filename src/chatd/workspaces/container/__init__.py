"""Workspaces as containers of Docker or Podman: `container_backend` > `container_setup` >
`container_plan` (pure), `container_kit`, `engine_api`. `container_init` runs inside."""
