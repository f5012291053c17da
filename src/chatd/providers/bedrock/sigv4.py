"""AWS Signature Version 4. Pure."""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from msgspec import Struct

from chatd.providers.config import AwsCredentials

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_UNRESERVED: Final = "-_.~"
_SIGNED: Final = ("content-type", "host")


class SigningScope(Struct, frozen=True, kw_only=True):
    """The region, service and time of a signature. `at` is in UTC."""

    region: str
    service: str
    at: datetime

    @property
    def time(self) -> str:
        return self.at.strftime("%Y%m%dT%H%M%SZ")

    @property
    def date(self) -> str:
        return self.at.strftime("%Y%m%d")

    @property
    def text(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def signature_headers(
    *,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    credentials: AwsCredentials,
    scope: SigningScope,
    method: str = "POST",
) -> dict[str, str]:
    """The headers to add. `url` is encoded as sent; header names are lower case."""
    added = {"x-amz-date": scope.time}
    if credentials.session_token is not None:
        added["x-amz-security-token"] = credentials.session_token.reveal()
    signed = {
        name: " ".join(value.split())
        for name, value in sorted({"host": urlsplit(url).netloc, **headers, **added}.items())
        if name in _SIGNED or name.startswith("x-amz-")
    }
    names = ";".join(signed)
    lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
    content = hashlib.sha256(body).hexdigest()
    canonical = f"{method}\n{_address(url)}\n{lines}\n{names}\n{content}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"{_ALGORITHM}\n{scope.time}\n{scope.text}\n{digest}"
    signature = hmac.new(_key(credentials, scope), to_sign.encode(), hashlib.sha256).hexdigest()
    authorization = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{scope.text},"
        f" SignedHeaders={names}, Signature={signature}"
    )
    return {**added, "authorization": authorization}


def _address(address: str) -> str:
    """Canonical path and query, one line each."""
    url = urlsplit(address)
    # All services except S3 sign the path encoded a second time.
    path = quote(url.path or "/", safe="/" + _UNRESERVED)
    pairs = sorted(
        (quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED))
        for name, value in parse_qsl(url.query, keep_blank_values=True)
    )
    return path + "\n" + "&".join(f"{name}={value}" for name, value in pairs)


def _key(credentials: AwsCredentials, scope: SigningScope) -> bytes:
    key = b"AWS4" + credentials.secret_access_key.reveal().encode()
    for part in (scope.date, scope.region, scope.service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
