"""GitHub, GitLab and Gitea: their APIs and webhooks.

`host_api` has the Protocol and its errors, `signatures` the proof that a delivery is the host's;
`github` and `gitea` share a wire, `gitlab` has its own.
"""
