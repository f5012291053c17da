"""Replies with settings that are changed over the API. Their patches are in the domain."""

from typing import Annotated

from msgspec import Meta, Struct

from chatd.domain.deployment.runtime_settings import (
    DEBUG_MODE_TEXT,
    EXPLORE_MODEL_TEXT,
    GENERAL_MODEL_TEXT,
    DebugMode,
)
from chatd.domain.description import describe

DocumentVersion = Annotated[
    int, Meta(description="Counts the changes of this document.", examples=[3])
]


Experiments = Annotated[
    tuple[str, ...],
    Meta(description="Names of the unfinished features that are switched on.", examples=[[]]),
]


class RetentionDays(Struct, frozen=True, kw_only=True):
    """How long this server keeps what, in days; 0: for ever. From its settings file."""

    auto_archive: Annotated[int, describe("Idle chats are archived after so many days.", 90)] = 0
    archived_chats: Annotated[
        int, describe("Archived chats are deleted after so many days.", 365)
    ] = 0
    deleted_messages: Annotated[
        int, describe("Messages that an edit deleted are emptied after so many days.", 30)
    ] = 0
    usage: Annotated[
        int, describe("Records of single model calls are deleted after so many days.", 400)
    ] = 0
    debug_records: Annotated[
        int, describe("Debug records of model calls are deleted after so many days.", 30)
    ] = 0
    audit_log: Annotated[
        int, describe("Entries of the audit log are deleted after so many days.", 400)
    ] = 0
    workspaces: Annotated[
        int,
        describe(
            "Records of deleted workspaces and old builds are deleted after so many days.", 90
        ),
    ] = 0


class DeploymentSettingsReply(Struct, frozen=True, kw_only=True):
    """The settings of this deployment that are changed over the API."""

    version: DocumentVersion
    system_prompt: Annotated[
        str,
        Meta(
            description="Begins every new chat, after the built-in prompt.",
            examples=["Answer in British English."],
        ),
    ]
    include_default_prompt: Annotated[
        bool,
        Meta(description="Whether new chats begin with the built-in prompt.", examples=[True]),
    ]
    sharing_enabled: Annotated[
        bool,
        Meta(
            description="Whether users may share chats and read what is shared with them.",
            examples=[True],
        ),
    ]
    experiments: Experiments
    available_experiments: Annotated[
        dict[str, str],
        Meta(description="Names of unfinished features, and what each does.", examples=[{}]),
    ]
    debug_recording: Annotated[
        DebugMode, Meta(description=DEBUG_MODE_TEXT, examples=["allow_users"])
    ]
    default_system_prompt: Annotated[
        str, Meta(description="The built-in prompt.", examples=["You are an engineer who ..."])
    ]
    retention: Annotated[
        RetentionDays, describe("How long things are kept. Changed in the settings file.")
    ]


class UserSettingsReply(Struct, frozen=True, kw_only=True):
    """Your own settings."""

    version: DocumentVersion
    custom_prompt: Annotated[
        str,
        Meta(
            description="Told to the model in all your chats.",
            examples=["I work on the billing team. Prefer short answers."],
        ),
    ]
    experiments: Experiments
    debug_recording: Annotated[
        bool,
        Meta(
            description="Record the model calls of your chats, if `debug_mode` lets you choose.",
            examples=[True],
        ),
    ]
    debug_mode: Annotated[DebugMode, Meta(description=DEBUG_MODE_TEXT, examples=["allow_users"])]
    general_model: Annotated[str, Meta(description=GENERAL_MODEL_TEXT, examples=["sonnet"])]
    explore_model: Annotated[str, Meta(description=EXPLORE_MODEL_TEXT, examples=["haiku"])]
