"""What has changed in the repositories that a chat has touched, as its agent tells it."""

from msgspec import Struct


class Repository(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As it stands now. `removed`: it was there before and is no more."""

    repo_root: str
    branch: str = ""
    remote_origin: str = ""
    unified_diff: str = ""
    removed: bool = False


class GitChanges(Struct, frozen=True, kw_only=True, tag_field="type", tag="changes"):
    """Put each repository in, or in place of the one with that root."""

    scanned_at: str
    repositories: tuple[Repository, ...]
