"""Where a provider's keys are sent. A key is bound to the destination that it was given for, and is
sent to no other: an administrator who changes an address cannot read the keys of users."""

import re
from typing import Final

VENDOR: Final = "vendor"
"""The address of the provider's vendor, which no administrator chooses."""
NO_PROXY: Final = "none"
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_ORIGIN: Final = re.compile(r"(https?)://([^/?#]+)", re.IGNORECASE)


def origin_of(address: str) -> str:
    """Scheme, host and port, in one form. An address of another form stays whole: two different
    hosts never have one origin."""
    text = re.sub(r"[\t\r\n]", "", address).strip()
    if (found := _ORIGIN.match(text)) is None:
        return text
    scheme, host = found[1].lower(), found[2].rpartition("@")[2].lower()
    return f"{scheme}://{host.removesuffix(_DEFAULT_PORTS[scheme])}"


def proxy_origin(proxy: str | None) -> str | None:
    """Without its password."""
    return None if proxy is None or proxy == NO_PROXY else origin_of(proxy)


def key_destination(base_url: str | None, proxy: str | None, ca_file: str | None) -> str:
    """`proxy` is an origin. A proxy reads the keys of a plain address; of an encrypted one only if
    an administrator also names an authority that is trusted."""
    origin = VENDOR if not base_url else origin_of(base_url)
    if proxy is None or (ca_file is None and not origin.startswith("http:")):
        return origin
    return f"{origin} through {proxy}" + ("" if ca_file is None else f" trusting {ca_file}")
