"""Encrypts messages of web push (RFC 8291, aes128gcm) and signs them for the push service (VAPID,
RFC 8292). Pure but for random numbers."""

import os
from typing import Final
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from chatd.domain.push import PUSH_TTL_S, SubscriptionKeys, encode_base64url

RECORD_BYTES: Final = 4096
SALT_BYTES: Final = 16
TOKEN_LIFETIME_S: Final = 12 * 3600
_CURVE: Final = ec.SECP256R1()
_LAST_RECORD: Final = b"\x02"


class PushSigner:
    """The key by which push services know this deployment. Browsers subscribe with its public
    half, so another key would end all subscriptions."""

    def __init__(self, pem: str) -> None:
        key = load_pem_private_key(pem.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self.public_key: Final = encode_base64url(_point(key.public_key()))

    def headers(self, endpoint: str, contact: str, now_s: int) -> dict[str, str]:
        """The token is for the service of this endpoint only."""
        pieces = urlsplit(endpoint)
        claims = {
            "aud": f"{pieces.scheme}://{pieces.netloc}",
            "exp": now_s + TOKEN_LIFETIME_S,
            "sub": contact,
        }
        head = encode_base64url(msgspec.json.encode({"typ": "JWT", "alg": "ES256"}))
        signed = f"{head}.{encode_base64url(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(SHA256())))
        signature = encode_base64url(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return {
            "authorization": f"vapid t={signed}.{signature}, k={self.public_key}",
            "content-encoding": "aes128gcm",
            "content-type": "application/octet-stream",
            "ttl": str(PUSH_TTL_S),
            "urgency": "normal",
        }


def new_signing_key() -> str:
    key = ec.generate_private_key(_CURVE)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def encrypt_push(
    payload: bytes,
    keys: SubscriptionKeys,
    *,
    salt: bytes | None = None,
    sender: ec.EllipticCurvePrivateKey | None = None,
) -> bytes:
    """One record, which only the browser can read. `salt` and `sender` are random but in tests."""
    salt = salt or os.urandom(SALT_BYTES)
    sender = sender or ec.generate_private_key(_CURVE)
    receiver = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, keys.p256dh)
    public = _point(sender.public_key())
    info = b"WebPush: info\x00" + keys.p256dh + public
    material = _derive(keys.auth, sender.exchange(ec.ECDH(), receiver), info, 32)
    key = _derive(salt, material, b"Content-Encoding: aes128gcm\x00", 16)
    nonce = _derive(salt, material, b"Content-Encoding: nonce\x00", 12)
    sealed = AESGCM(key).encrypt(nonce, payload + _LAST_RECORD, None)
    return salt + RECORD_BYTES.to_bytes(4, "big") + bytes([len(public)]) + public + sealed


def _derive(salt: bytes, material: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(material)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
