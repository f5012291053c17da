"""MCP servers of the settings: what is accepted, and where their secrets are."""

from pathlib import Path

import msgspec
import pytest

from chatd.services.mcp_servers import declared_servers
from chatd.settings.schema import McpServerEntry, Settings, SettingsError

KEYED = {
    "slug": "notes",
    "url": "https://notes.example.com/mcp",
    "auth": "api_key",
    "api_key_header": "X-Api-Key",
    "api_key_env": "NOTES_KEY",
}


def settings_with(*entries: object) -> Settings:
    servers = msgspec.convert(entries, tuple[McpServerEntry, ...])
    return Settings(data_dir=Path("/nonexistent"), mcp_servers=servers)


@pytest.mark.promise("P13")
def test_a_secret_of_the_settings_is_in_no_row_and_not_shown() -> None:
    settings = settings_with(KEYED)
    (found,) = declared_servers(settings, {"NOTES_KEY": "marker-key"})
    assert found.secrets.api_key == "marker-key"
    assert (found.row.sealed_secrets, found.row.source) == (None, "settings")
    assert b"marker" not in msgspec.json.encode(found.row)
    assert "marker" not in f"{found!r} {settings!r}"


def test_the_id_follows_from_the_slug() -> None:
    env = {"NOTES_KEY": "k"}
    (one,), (other,) = (declared_servers(settings_with(KEYED), env) for _ in range(2))
    moved = declared_servers(settings_with({**KEYED, "slug": "other"}), env)[0]
    assert one.row.server.id == other.row.server.id != moved.row.server.id


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"slug": "a", "url": "ftp://x"}], "mcp_servers 'a': url: must be"),
        ([{"slug": "a", "url": "https://x", "auth": "api_key"}], "api_key: is needed"),
        ([{"slug": "workspace", "url": "https://x"}], "slug: names the servers of workspaces"),
        ([KEYED], "NOTES_KEY: this environment variable is not set"),
        ([{"slug": "a", "url": "https://x"}] * 2, "there are two with this slug"),
        (
            [
                {
                    "slug": "a",
                    "url": "https://x",
                    "auth": "oauth2",
                    "oauth": {
                        "client_id": "c",
                        "authorization_url": "https://login.example.com/a",
                        "token_url": "http://login.example.com/t",
                    },
                }
            ],
            "not encrypted",
        ),
    ],
)
def test_a_wrong_entry_is_named(entries: list[object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        declared_servers(settings_with(*entries), {})
