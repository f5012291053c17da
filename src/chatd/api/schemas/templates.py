"""Replies about templates.

They never contain values of a template's environment, or its script. Docstrings and descriptions
here are part of the OpenAPI document.
"""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from chatd.api.schemas.lists import ListPage
from chatd.domain.workspace.entities import (
    Network,
    Parameter,
    ResourceLimits,
    TemplateId,
    VersionId,
)


class TemplateItem(Struct, frozen=True, kw_only=True):
    """`agents_allowed`: chats may create workspaces from it. A `deprecated` template cannot be
    used for new workspaces."""

    id: TemplateId
    name: str
    display_name: str
    description: str
    icon: str
    backend: str
    origin: Literal["builtin", "settings", "user"]
    active_version_id: VersionId
    agents_allowed: bool
    deprecated: bool
    default_ttl_s: int
    activity_bump_s: int
    max_ttl_s: int
    created_at: datetime
    updated_at: datetime


class TemplatePage(ListPage[TemplateItem], frozen=True, kw_only=True):
    """A page of templates."""


class TemplateReply(TemplateItem, frozen=True, kw_only=True):
    """`env` has names only. A limit of 0 means no limit."""

    readme: str
    parameters: tuple[Parameter, ...]
    seed: Literal["empty", "git", "directory", "demo"]
    network: Network
    limits: ResourceLimits
    env: tuple[str, ...]
    has_startup_script: bool
    startup_timeout_s: float
    directory: str
