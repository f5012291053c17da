"""Settings that are changed over the API while the server runs: of the deployment, of each user;
and
unfinished features that an administrator can switch on.

Every change is a patch: fields that it does not name stay. The settings of `chatd.toml` are others;
they need a restart.
"""

from collections.abc import Collection
from typing import Annotated, Final, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, replace

from chatd.domain.chat_views.public_links import MAX_LINK_DAYS
from chatd.domain.errors import Conflict, Forbidden, InvalidInput
from chatd.domain.memory import MemoryChoice
from chatd.domain.prompt.instructions import strip_invisible
from chatd.domain.text import clip

EXPERIMENTS: Final[dict[str, str]] = {}
"""Their names, and what each does. None today."""


def check_experiments(names: Collection[str]) -> tuple[str, ...]:
    """In order and once each. Raises InvalidInput that names an unknown one."""
    for name in names:
        if name not in EXPERIMENTS:
            known = ", ".join(sorted(EXPERIMENTS)) or "none"
            text = f"{name!r} is no experiment of this version; there are {known}"
            raise InvalidInput("experiments", text)
    return tuple(sorted(set(names)))


def active_experiments(names: Collection[str]) -> tuple[str, ...]:
    """Those of the stored names that this version knows."""
    return tuple(sorted(name for name in names if name in EXPERIMENTS))


MAX_PROMPT_BYTES: Final = 131_072
PROMPT_BODY_BYTES: Final = 262_144
MAX_AUDITED_CHARS: Final = 500

DebugMode = Literal["off", "allow_users", "forced"]
DEBUG_MODE_TEXT: Final = (
    "Whether requests and answers of model calls are recorded for debugging: `off`, in the chats of"
    " users that enable it (`allow_users`), or in all chats (`forced`)."
)

GENERAL_MODEL_TEXT: Final = (
    "The model of your subagents of type `general`, by name. Empty: as the deployment says, or the"
    " model of the chat that starts them."
)
EXPLORE_MODEL_TEXT: Final = "The same for subagents of type `explore`."
COMPUTER_USE_MODEL_TEXT: Final = "The same for subagents of type `computer_use`."

PUBLIC_LINKS_TEXT: Final = (
    "Whether users may make links by which everyone reads a chat without an account. False also"
    " ends the links that there are, and so does `sharing_enabled`; true restores them."
)
PUBLIC_LINK_DAYS_TEXT: Final = "The longest life of a new public link, in days."
ANSWER_LINKS_TEXT: Final = (
    "Whether notifications of calls that wait for approval have a link by which the call is"
    " answered once without a session. False also ends the links that there are."
)
MEMORY_TEXT: Final = (
    "Whether users may have notes that are told to the models of their chats. False tells none and"
    " takes no new ones; those that there are stay, and can be read and deleted."
)
MEMORY_CHOICE_TEXT: Final = (
    "`off`: models are told none of your notes. `notes`: they are told those that are switched on."
    " `proposals`: they may also propose new ones, which you accept or dismiss."
)
DEFAULT_PUBLIC_LINK_DAYS: Final = 30

ModelName = Annotated[str, Meta(max_length=200)]
PromptText = Annotated[str, Meta(max_length=PROMPT_BODY_BYTES)]


class DeploymentSettings(Struct, frozen=True, kw_only=True):
    """`system_prompt` begins every new chat; the built-in prompt comes before it if
    `include_default_prompt` is true. `sharing_enabled`: users may share chats, and read what is
    shared with them. `public_links`: they may also make links for everyone, for at most
    `public_link_days`.
    `answer_links`: notifications have links that answer one call. `memory`: users may have notes.
    `experiments` are names of unfinished features that are switched on."""

    system_prompt: str = ""
    include_default_prompt: bool = True
    sharing_enabled: bool = True
    public_links: bool = False
    public_link_days: int = DEFAULT_PUBLIC_LINK_DAYS
    answer_links: bool = False
    memory: bool = True
    experiments: tuple[str, ...] = ()
    debug_recording: DebugMode = "off"


class UserSettings(Struct, frozen=True, kw_only=True):
    """`custom_prompt` is told to the model in all chats of the user. `memory`: which notes models
    are told. `debug_recording` counts only while the deployment lets users choose. The models are
    those of subagents by their type, by name; empty: as the deployment says."""

    custom_prompt: str = ""
    memory: MemoryChoice = "notes"
    debug_recording: bool = False
    general_model: str = ""
    explore_model: str = ""
    computer_use_model: str = ""


class DeploymentPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of the settings of all users; what is not given stays."""

    system_prompt: (
        Annotated[
            PromptText,
            Meta(
                description="Begins every new chat, after the built-in prompt. Empty: nothing.",
                examples=["Answer in British English."],
            ),
        ]
        | UnsetType
    ) = UNSET
    include_default_prompt: (
        Annotated[
            bool,
            Meta(description="Whether new chats begin with the built-in prompt.", examples=[True]),
        ]
        | UnsetType
    ) = UNSET
    sharing_enabled: (
        Annotated[
            bool,
            Meta(
                description=(
                    "Whether users may share chats. False also ends what is shared; true restores"
                    " it."
                ),
                examples=[True],
            ),
        ]
        | UnsetType
    ) = UNSET
    public_links: (
        Annotated[bool, Meta(description=PUBLIC_LINKS_TEXT, examples=[True])] | UnsetType
    ) = UNSET
    public_link_days: (
        Annotated[
            int,
            Meta(ge=1, le=MAX_LINK_DAYS, description=PUBLIC_LINK_DAYS_TEXT, examples=[30]),
        ]
        | UnsetType
    ) = UNSET
    answer_links: (
        Annotated[bool, Meta(description=ANSWER_LINKS_TEXT, examples=[True])] | UnsetType
    ) = UNSET
    memory: Annotated[bool, Meta(description=MEMORY_TEXT, examples=[True])] | UnsetType = UNSET
    experiments: (
        Annotated[
            tuple[Annotated[str, Meta(max_length=100)], ...],
            Meta(
                max_length=100,
                description=(
                    "The unfinished features to switch on, by the names in"
                    " `available_experiments`; all others are off."
                ),
                examples=[[]],
            ),
        ]
        | UnsetType
    ) = UNSET
    debug_recording: (
        Annotated[DebugMode, Meta(description=DEBUG_MODE_TEXT, examples=["allow_users"])]
        | UnsetType
    ) = UNSET
    version: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="Refuse the change if the document has another version.",
                examples=[3],
            ),
        ]
        | UnsetType
    ) = UNSET


class UserPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of the caller's settings; what is not given stays."""

    custom_prompt: (
        Annotated[
            PromptText,
            Meta(
                description="Told to the model in all your chats. Empty: nothing.",
                examples=["I work on the billing team. Prefer short answers."],
            ),
        ]
        | UnsetType
    ) = UNSET
    memory: (
        Annotated[MemoryChoice, Meta(description=MEMORY_CHOICE_TEXT, examples=["proposals"])]
        | UnsetType
    ) = UNSET
    debug_recording: (
        Annotated[
            bool,
            Meta(
                description="Record requests and answers of the model calls of your chats.",
                examples=[True],
            ),
        ]
        | UnsetType
    ) = UNSET
    general_model: (
        Annotated[ModelName, Meta(description=GENERAL_MODEL_TEXT, examples=["sonnet"])] | UnsetType
    ) = UNSET
    explore_model: (
        Annotated[ModelName, Meta(description=EXPLORE_MODEL_TEXT, examples=["haiku"])] | UnsetType
    ) = UNSET
    computer_use_model: (
        Annotated[ModelName, Meta(description=COMPUTER_USE_MODEL_TEXT, examples=["opus"])]
        | UnsetType
    ) = UNSET
    version: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="Refuse the change if the document has another version.",
                examples=[3],
            ),
        ]
        | UnsetType
    ) = UNSET


D = TypeVar("D", DeploymentSettings, UserSettings)


def patched(document: D, patch: DeploymentPatch | UserPatch) -> D:
    """The document with the fields that the patch names. Raises InvalidInput."""
    changes = {
        name: clean_prompt(name, value) if isinstance(value, str) else value
        for name, value in asdict(patch).items()
        if value is not UNSET and name != "version"
    }
    if "experiments" in changes:
        changes["experiments"] = check_experiments(changes["experiments"])
    return replace(document, **changes)


def check_debug_choice(mode: DebugMode, patch: UserPatch) -> None:
    """Raises Forbidden or Conflict if the user has no choice."""
    if patch.debug_recording is UNSET:
        return
    if mode == "forced":
        raise Conflict("Model calls of all chats are recorded.", code="debug_forced")
    if mode == "off" and patch.debug_recording:
        text = "Model calls are not recorded. An administrator can allow it in the settings."
        raise Forbidden(text, code="debug_off")


def clean_prompt(field: str, text: str) -> str:
    """Without invisible characters and surplus blank space. Raises InvalidInput."""
    cleaned = strip_invisible(text)
    if len(cleaned.encode()) > MAX_PROMPT_BYTES:
        raise InvalidInput(field, f"must have at most {MAX_PROMPT_BYTES} bytes")
    return cleaned


def shown_fields(document: DeploymentSettings) -> dict[str, object]:
    """What an audit record shows of the settings: long texts are clipped."""
    return {
        name: clip(value, MAX_AUDITED_CHARS) if isinstance(value, str) else value
        for name, value in asdict(document).items()
    }
