"""A self-signed server certificate. Its key protects nothing."""

import ssl
from pathlib import Path

_PEM = """\
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIDYZAYZdxkHediKp8PH0XjT7jbzjROcgiD18XyXRi+xN
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBWzCCAQ2gAwIBAgIUJdEOnpHJ5rl4ZCJrZTIOaMLlP/owBQYDK2VwMBQxEjAQ
BgNVBAMMCWxvY2FsaG9zdDAgFw0yNjExMTUyMjM0MjRaGA8yMTI2MTAyMjIyMzQy
NFowFDESMBAGA1UEAwwJbG9jYWxob3N0MCowBQYDK2VwAyEAbJICgzepljfgplkA
oDMkJB7rdIOmqst41CHAmtSBgrajbzBtMB0GA1UdDgQWBBTWoF8SOQDbzOTwnsjl
qTzpMCq/nTAfBgNVHSMEGDAWgBTWoF8SOQDbzOTwnsjlqTzpMCq/nTAPBgNVHRMB
Af8EBTADAQH/MBoGA1UdEQQTMBGCCWxvY2FsaG9zdIcEfwAAATAFBgMrZXADQQAG
CtDDpEg8ofwIQI0+T9FoP0ChkKA9gAx86+f8tGX7/Yqj6VUEx9f++NcNd78F5Kir
POPDUiu0BQHjIE1/fSwF
-----END CERTIFICATE-----
"""


def self_signed(directory: Path) -> ssl.SSLContext:
    pem = directory / "server.pem"
    pem.write_text(_PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


LOCKED_KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhSaBv7xqrVOwICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEECBbewkB9pll+FwtbLTPOzAEgZDI
fDcAWY6XiijP8uZA1oaveOchkTJuVkVFKWs1qrLCB9kDytMA+KEgz4KGjpilrBO7
Fbl6gPJ55t5YAC6/htWreVU332/nQODUdM2F37AEctVMenwroIJv+NbZExDEGErE
pvDcn9iT9OG6WnMwHpCfJkKMUoj2KlbRsyaJM7TgxjFxxPlp2U8ivPG2TvdvBok=
-----END ENCRYPTED PRIVATE KEY-----
"""
