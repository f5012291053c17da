"""Workspaces as pods of a cluster: `kubernetes_backend` > `pod_plan` and `pod_state` (pure),
`cluster_api` > `cluster_access`. `pod_link` runs in the pods, from chatd's own image."""
