"""Gitea and Forgejo: what their webhooks have otherwise than those of GitHub. Their API is that of
`github.GitHubApi`."""

from chatd.domain.deployment.repositories import HostEvent
from chatd.git_hosts.github import (
    EVENT_BODY,
    checks_event,
    comment_event,
    opened_event,
    relabeled_event,
    status_event,
)


def read_event(name: str, body: bytes) -> HostEvent | None:
    """None: chatd does nothing at such an event. Raises msgspec.DecodeError."""
    found = EVENT_BODY.decode(body)
    match name, found.action:
        case ("issue_comment" | "pull_request_comment", "created"):
            return comment_event(found)
        case ("issues" | "pull_request", "opened"):
            return opened_event(found)
        case ("issues" | "issue_label" | "pull_request" | "pull_request_label", "label_updated"):
            return relabeled_event(found)
        case ("workflow_run", "completed"):
            return checks_event(found)
        case ("status", _):
            return status_event(found)
        case _:
            return None
