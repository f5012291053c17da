"""Replies about templates.

They never contain values of a template's environment, or its script. Docstrings and descriptions
here are part of the OpenAPI document.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Struct

from chatd.domain.description import CREATED_AT, TEMPLATE_ID, UPDATED_AT, VERSION_ID, describe
from chatd.domain.list_page import ListPage
from chatd.domain.workspace.entities import (
    Network,
    Parameter,
    ResourceLimits,
    TemplateId,
    VersionId,
)


class TemplateItem(Struct, frozen=True, kw_only=True):
    """A template in a list."""

    id: Annotated[TemplateId, describe("The template's id.", TEMPLATE_ID)]
    name: Annotated[str, describe("Its name.", "python")]
    display_name: Annotated[str, describe("Its name for people.", "Python")]
    description: Annotated[str, describe("What it is for.", "Python with pytest")]
    icon: Annotated[str, describe("The address of its icon.", "/icon/python.svg")]
    backend: Annotated[str, describe("What builds its workspaces.", "local")]
    origin: Annotated[
        Literal["builtin", "settings", "user"], describe("Where it comes from.", "settings")
    ]
    active_version_id: Annotated[
        VersionId, describe("The version that new workspaces get.", VERSION_ID)
    ]
    agents_allowed: Annotated[bool, describe("Whether chats may create workspaces from it.")]
    deprecated: Annotated[bool, describe("Whether it can no longer be used for new workspaces.")]
    default_ttl_s: Annotated[
        int, describe("How long an unused workspace runs, in seconds; 0: without limit.", 28800)
    ]
    activity_bump_s: Annotated[int, describe("By how many seconds use extends that.", 3600)]
    max_ttl_s: Annotated[
        int, describe("The longest run, in seconds, whatever the use; 0: without limit.", 0)
    ]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]


class TemplatePage(ListPage[TemplateItem], frozen=True, kw_only=True):
    """A page of templates."""


class TemplateReply(TemplateItem, frozen=True, kw_only=True):
    """A template with its parameters."""

    readme: Annotated[str, describe("Its documentation, in Markdown.", "# Python")]
    parameters: Annotated[tuple[Parameter, ...], describe("What a workspace can choose.")]
    seed: Annotated[
        Literal["empty", "git", "directory", "demo"],
        describe("What the home directory starts with.", "git"),
    ]
    network: Annotated[Network, describe("Whether its workspaces reach the network.", "none")]
    limits: Annotated[ResourceLimits, describe("The limits of its workspaces; 0 is no limit.")]
    env: Annotated[
        tuple[str, ...],
        describe("The names of its environment variables, never their values.", ["PIP_INDEX_URL"]),
    ]
    has_startup_script: Annotated[bool, describe("Whether a script runs at each start.")]
    startup_timeout_s: Annotated[
        float, describe("How long that script may run, in seconds.", 300.0)
    ]
    directory: Annotated[str, describe("The directory in which tools start.", "~/app")]
