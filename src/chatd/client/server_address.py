"""Where a server is, and the token for it."""

from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from chatd.domain.errors import InvalidInput

API_PATH: Final = "/api/v1"


class ServerAddress(Struct, frozen=True, kw_only=True):
    """`url` is without `/api/v1`. The token is left out wherever the address is printed; it is
    empty for a caller that has signed in by a cookie."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"ServerAddress(url={self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("url", self.url)]

    @property
    def api_url(self) -> str:
        return f"{self.url.rstrip('/')}{API_PATH}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def clean_url(text: str) -> str:
    """The URL as a `ServerAddress` has it. Raises InvalidInput."""
    url = text.strip()
    if "://" not in url:
        raise InvalidInput("url", f"{url!r} must begin with http:// or https://")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput("url", "is no valid URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("url", f"{parts.scheme}://... must be http:// or https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("url", "must not contain a user or a password")
    del port
    path = parts.path.rstrip("/").removesuffix(API_PATH).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
