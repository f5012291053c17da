"""Bodies and replies about providers and their keys. A secret is never returned, and never shown
by a body's repr.

Docstrings and descriptions here are part of the OpenAPI document.
"""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.domain.description import CREATED_AT, PROVIDER_ID, UPDATED_AT, describe
from chatd.domain.list_page import ListPage
from chatd.domain.model.protocol import ModelCapabilities
from chatd.services.models.model_bodies import DisplayName, Name, Source, VendorName
from chatd.store.model.providers import StoredKey

KEY_ID = "0193c5a5-2c11-7d0e-8f4a-1b2c3d4e5f60"

Kind = Literal[
    "anthropic",
    "azure",
    "bedrock",
    "demo",
    "google",
    "openai",
    "openai-compat",
    "openrouter",
    "vercel",
]
ApiKey = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[\x21-\x7e]+$")]
BaseUrl = Annotated[str, Meta(min_length=1, max_length=2000)]
HeaderValue = Annotated[str, Meta(max_length=8192)]
ProxyUrl = Annotated[str, Meta(min_length=1, max_length=2000)]
FilePath = Annotated[str, Meta(min_length=1, max_length=1000)]
Region = Annotated[str, Meta(min_length=1, max_length=50)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
KeyName = Annotated[str, Meta(max_length=100)]

_NAME = describe("Its name. Unique.", "anthropic")
_KIND = describe("The API that it speaks.", "anthropic")
_DISPLAY_NAME = describe("Its name for people.", "Anthropic")
_ENABLED = describe("Whether its models can be used.")
_BASE_URL = describe(
    "The address of its API, if it is not the vendor's. Kinds with OpenAI's API need the version in"
    " it, such as /v1.",
    "https://llm.example.com/v1",
)
API_KEY = describe("An API key. Stored sealed, and never returned.", "sk-ant-api03-...")
_HEADERS = describe(
    "Headers that are sent with every request and replace chatd's own. Stored sealed.",
    {"x-team": "a"},
)
_PROXY = describe("An HTTP proxy, or `none`. Stored sealed.", "http://proxy.example.com:3128")
_REGION = describe("The AWS region, for bedrock.", "eu-west-1")
_AWS = describe("AWS credentials, for bedrock. Stored sealed.")
_CA_FILE = describe(
    "A PEM file on every server with authorities that are trusted beside the machine's.",
    "/etc/chatd/ca.pem",
)
_CLIENT_CERT = describe("A PEM file on every server with chatd's certificate.", "/etc/chatd/c.pem")
_CLIENT_KEY = describe(
    "A PEM file on every server with that certificate's key.", "/etc/chatd/k.pem"
)
_CONNECT = describe("How many seconds a connection may take.", 10)
_SILENCE = describe("How many seconds the provider may send nothing.", 600)
_ANSWER = describe("How many seconds one model call may take.", 3600)
_USER_KEYS = describe("Whether users may add keys of their own, which their chats use first.")
_KEY_NAME = describe("To tell keys apart.", "team A")
_KEY = describe("The id of a key.", KEY_ID)


class AwsCredentialsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AWS credentials. Stored sealed, and never returned."""

    access_key_id: Annotated[
        str, Meta(min_length=1, max_length=200), describe("The id of the access key.", "AKIA...")
    ]
    secret_access_key: Annotated[
        str, Meta(min_length=1, max_length=500), describe("The secret of the access key.", "...")
    ]
    session_token: Annotated[
        Annotated[str, Meta(min_length=1, max_length=8192)] | None,
        describe("For temporary credentials.", "..."),
    ] = None

    def __repr__(self) -> str:
        return "AwsCredentialsBody(***)"


class CreateProviderBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new provider."""

    name: Annotated[Name, _NAME]
    kind: Annotated[Kind, _KIND]
    display_name: Annotated[DisplayName | None, _DISPLAY_NAME] = None
    enabled: Annotated[bool, _ENABLED] = True
    base_url: Annotated[BaseUrl | None, _BASE_URL] = None
    api_keys: Annotated[
        tuple[ApiKey, ...],
        Meta(max_length=20),
        describe("Keys, in the order of their use. Stored sealed.", ["sk-ant-api03-..."]),
    ] = ()
    headers: Annotated[dict[str, HeaderValue], _HEADERS] = {}
    proxy: Annotated[ProxyUrl | None, _PROXY] = None
    region: Annotated[Region | None, _REGION] = None
    aws: Annotated[AwsCredentialsBody | None, _AWS] = None
    ca_file: Annotated[FilePath | None, _CA_FILE] = None
    client_cert: Annotated[FilePath | None, _CLIENT_CERT] = None
    client_key: Annotated[FilePath | None, _CLIENT_KEY] = None
    connect_timeout_s: Annotated[Seconds | None, _CONNECT] = None
    silence_timeout_s: Annotated[Seconds | None, _SILENCE] = None
    answer_timeout_s: Annotated[Seconds | None, _ANSWER] = None
    user_keys: Annotated[bool, _USER_KEYS] = False

    def __repr__(self) -> str:
        return f"CreateProviderBody(name={self.name!r}, kind={self.kind!r})"


class UpdateProviderBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays; null removes a value, also that of a single header. A single key is
    changed by its own route. If the address changes to another host, keys, headers and AWS
    credentials are dropped unless they are in the same request."""

    name: Annotated[Name | UnsetType, _NAME] = UNSET
    display_name: Annotated[DisplayName | UnsetType | None, _DISPLAY_NAME] = UNSET
    enabled: Annotated[bool | UnsetType, _ENABLED] = UNSET
    base_url: Annotated[BaseUrl | UnsetType | None, _BASE_URL] = UNSET
    api_keys: Annotated[
        Annotated[tuple[ApiKey, ...], Meta(max_length=20)] | UnsetType,
        describe(
            "Replaces all keys for all users, in the order of their use. Stored sealed.",
            ["sk-ant-api03-..."],
        ),
    ] = UNSET
    headers: Annotated[dict[str, HeaderValue | None] | UnsetType, _HEADERS] = UNSET
    proxy: Annotated[ProxyUrl | UnsetType | None, _PROXY] = UNSET
    region: Annotated[Region | UnsetType | None, _REGION] = UNSET
    aws: Annotated[AwsCredentialsBody | UnsetType | None, _AWS] = UNSET
    ca_file: Annotated[FilePath | UnsetType | None, _CA_FILE] = UNSET
    client_cert: Annotated[FilePath | UnsetType | None, _CLIENT_CERT] = UNSET
    client_key: Annotated[FilePath | UnsetType | None, _CLIENT_KEY] = UNSET
    connect_timeout_s: Annotated[Seconds | UnsetType | None, _CONNECT] = UNSET
    silence_timeout_s: Annotated[Seconds | UnsetType | None, _SILENCE] = UNSET
    answer_timeout_s: Annotated[Seconds | UnsetType | None, _ANSWER] = UNSET
    user_keys: Annotated[bool | UnsetType, _USER_KEYS] = UNSET

    def __repr__(self) -> str:
        return "UpdateProviderBody(***)"


class CreateKeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that is used after the provider's other keys."""

    api_key: Annotated[ApiKey, API_KEY]
    name: Annotated[KeyName, _KEY_NAME] = ""

    def __repr__(self) -> str:
        return f"CreateKeyBody(name={self.name!r})"


class UpdateKeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays."""

    api_key: Annotated[ApiKey | UnsetType, API_KEY] = UNSET
    name: Annotated[KeyName | UnsetType, _KEY_NAME] = UNSET

    def __repr__(self) -> str:
        return "UpdateKeyBody(***)"


class TrialBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to test a provider with."""

    model: Annotated[
        VendorName | None,
        describe(
            "A model by its name at the provider. Without it: one that is configured, else a small"
            " one, else the first that the provider lists.",
            "claude-haiku-4-5",
        ),
    ] = None
    key_id: Annotated[
        UUID | None, describe("The key to use. Without it: the first one.", KEY_ID)
    ] = None


class KeyReply(Struct, frozen=True, kw_only=True):
    """A key, with all but its end hidden."""

    id: Annotated[UUID, _KEY]
    name: Annotated[str, _KEY_NAME]
    masked: Annotated[str, describe("The end of the key.", "…a1b2")]
    created_at: Annotated[datetime, describe("When it was added.", CREATED_AT)]


def convert_key(key: StoredKey) -> KeyReply:
    return KeyReply(id=key.id, name=key.name, masked=key.masked, created_at=key.created_at)


class DroppedSecretsReply(Struct, frozen=True, kw_only=True):
    """Secrets that were given for the former address of a provider. They are not sent to the new
    one."""

    keys: Annotated[int, describe("How many keys for all users were deleted.", 1)]
    header_names: Annotated[
        tuple[str, ...], describe("The headers whose values were deleted.", ["x-team"])
    ]
    aws_credentials: Annotated[bool, describe("Whether AWS credentials were deleted.")]
    user_keys: Annotated[
        int,
        describe(
            "How many keys of users are not used until their users add them again, or until the"
            " address is as before.",
            3,
        ),
    ]


class ProviderReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A provider as it is configured, without its secrets."""

    id: Annotated[UUID, describe("The provider's id.", PROVIDER_ID)]
    name: Annotated[str, _NAME]
    kind: Annotated[str, _KIND]
    display_name: Annotated[str, _DISPLAY_NAME]
    enabled: Annotated[bool, _ENABLED]
    has_api_key: Annotated[
        bool, describe("Whether it has a key for all users. The key is never returned.")
    ]
    source: Annotated[
        Source,
        describe("Where it is configured. Only `database` is changed over the API.", "database"),
    ]
    created_at: Annotated[datetime, describe("When it was first configured.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]
    keys: Annotated[
        tuple[KeyReply, ...], describe("Its keys for all users, in the order of their use.")
    ] = ()
    base_url: Annotated[str | None, _BASE_URL] = None
    header_names: Annotated[
        tuple[str, ...], describe("The names of its configured headers.", ["x-team"])
    ] = ()
    has_proxy: Annotated[bool, describe("Whether it has a proxy of its own.")] = False
    has_aws_credentials: Annotated[bool, describe("Whether it has AWS credentials of its own.")] = (
        False
    )
    region: Annotated[str | None, _REGION] = None
    ca_file: Annotated[str | None, _CA_FILE] = None
    client_cert: Annotated[str | None, _CLIENT_CERT] = None
    client_key: Annotated[str | None, _CLIENT_KEY] = None
    connect_timeout_s: Annotated[float | None, _CONNECT] = None
    silence_timeout_s: Annotated[float | None, _SILENCE] = None
    answer_timeout_s: Annotated[float | None, _ANSWER] = None
    user_keys: Annotated[bool, _USER_KEYS] = False
    dropped: Annotated[
        DroppedSecretsReply | None,
        describe("In the reply to a change of the address: the secrets that it dropped."),
    ] = None


class ProviderPage(ListPage[ProviderReply], frozen=True, kw_only=True):
    """A page of providers."""


class TrialReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one small call to a provider."""

    ok: Annotated[bool, describe("Whether the provider answered.")]
    model: Annotated[str, describe("The model that was called.", "claude-haiku-4-5")]
    duration_ms: Annotated[int, describe("How long the call took, in milliseconds.", 812)]
    error_kind: Annotated[str | None, describe("The kind of the failure.", "auth")] = None
    explanation: Annotated[
        str | None,
        describe(
            "The likely cause, and what to do.",
            "The provider refuses the key. Check the key, and that its account may use the model.",
        ),
    ] = None
    detail: Annotated[
        str | None, describe("The provider's own words.", "status 401: invalid x-api-key")
    ] = None


class OfferedModelReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that a provider offers."""

    model: Annotated[str, describe("Its name at the provider.", "claude-sonnet-4-5")]
    display_name: Annotated[str, describe("Its name for people.", "Claude Sonnet 4.5")]
    capabilities: Annotated[
        ModelCapabilities, describe("What it can do, as the provider tells or chatd knows.")
    ]
    configured_as: Annotated[
        tuple[str, ...], describe("The names of the models that use it.", ["sonnet"])
    ] = ()
    suggested: Annotated[
        bool, Meta(description="Whether it is the one to begin with.", examples=[True])
    ] = False


class OfferedModelPage(ListPage[OfferedModelReply], frozen=True, kw_only=True):
    """A page of the models that a provider offers."""


# Bodies and replies about keys that users bring. A secret is never returned.
#
# Docstrings and descriptions here are part of the OpenAPI document.


class UserKeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of the caller's own. It replaces an earlier one for the same provider."""

    provider: Annotated[str, describe("The name of a provider.", "anthropic")]
    api_key: Annotated[ApiKey, API_KEY]

    def __repr__(self) -> str:
        return f"UserKeyBody(provider={self.provider!r})"


class UserKeyReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A provider that takes keys of users."""

    provider: Annotated[str, describe("The provider's name.", "anthropic")]
    provider_id: Annotated[UUID, describe("The provider's id.", PROVIDER_ID)]
    display_name: Annotated[str, describe("The provider's name for people.", "Anthropic")]
    destination: Annotated[
        str,
        describe(
            "Where a key is sent: the origin of the provider's address, or `vendor` for that of"
            " its vendor.",
            "https://llm.example.com",
        ),
    ]
    key: Annotated[KeyReply | None, describe("The caller's key, if there is one.")] = None
    is_moved: Annotated[
        bool,
        describe(
            "Whether the key was given for another address and is not sent. Add it again to use it"
            " with the present one."
        ),
    ] = False


class UserKeyPage(ListPage[UserKeyReply], frozen=True, kw_only=True):
    """A page of providers that take keys of users."""
