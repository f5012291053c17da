"""Options that several commands share, with their help texts."""

from pathlib import Path
from typing import Annotated, Final

import typer

from chatd.settings.keys import setting_keys

_KEYS: Final = setting_keys()

# Of commands that are a server, or work on its database

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read settings from this file [else CHATD_CONFIG, ./chatd.toml, "
        "~/.config/chatd/chatd.toml]",
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        _KEYS["data_dir"].flag,
        metavar="DIR",
        help=f"{_KEYS['data_dir'].help} [else ~/.local/share/chatd; as root /var/lib/chatd]",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(_KEYS["database.url"].flag, metavar="URL", help=_KEYS["database.url"].help),
]
Host = Annotated[
    str | None,
    typer.Option(
        _KEYS["server.host"].flag,
        metavar="ADDRESS",
        help=f"{_KEYS['server.host'].help} [127.0.0.1]",
    ),
]
Port = Annotated[
    str | None,
    typer.Option(
        _KEYS["server.port"].flag,
        metavar="NUMBER",
        help=f"{_KEYS['server.port'].help} [7870]",
    ),
]

# Of commands that talk to a server: see `target`

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The server [else CHATD_URL, the profile, the server of the data directory]",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Read the token from this file [else CHATD_TOKEN, CHATD_TOKEN_FILE, the profile, the"
        " administrator's in the data directory]",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Use this sign-in of chatd login [else CHATD_PROFILE, the last one]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]
