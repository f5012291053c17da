"""Signatures of S3 requests: AWS Signature Version 4 with the rules of S3. Pure."""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

_ALGORITHM: Final = "AWS4-HMAC-SHA256"


class S3Credentials(Struct, frozen=True, kw_only=True):
    region: str
    access_key_id: str
    secret_access_key: str

    def __repr__(self) -> str:
        return f"S3Credentials(region={self.region!r}, access_key_id={self.access_key_id!r})"


def s3_signature_headers(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes,
    credentials: S3Credentials,
    at: datetime,
) -> dict[str, str]:
    """The headers to add. `url` is encoded as sent and has no query; `headers`, with names in lower
    case, are signed too; `at` is in UTC."""
    target = urlsplit(url)
    digest = hashlib.sha256(body).hexdigest()
    time = at.strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-date": time, "x-amz-content-sha256": digest}
    signed = dict(sorted({"host": target.netloc, **headers, **added}.items()))
    names = ";".join(signed)
    lines = "".join(f"{name}:{value.strip()}\n" for name, value in signed.items())
    canonical = f"{method}\n{target.path or '/'}\n\n{lines}\n{names}\n{digest}"
    scope = f"{time[:8]}/{credentials.region}/s3/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"{_ALGORITHM}\n{time}\n{scope}\n{hashed}"
    signature = hmac.digest(_key(credentials, scope), to_sign.encode(), "sha256").hex()
    credential = f"{credentials.access_key_id}/{scope}"
    authorization = (
        f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return {**added, "authorization": authorization}


def _key(credentials: S3Credentials, scope: str) -> bytes:
    key = b"AWS4" + credentials.secret_access_key.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
