"""NATS' protocol cut anywhere, addresses with every part, and no password in what is shown."""

from pathlib import Path

import pytest

from chatd.cli.operator.debug_bundle import Scrubber, known_secrets
from chatd.domain.errors import InvalidInput
from chatd.settings.schema import ServerSettings, Settings, redact_notifications
from chatd.store.database.nats import (
    MAX_NATS_HINT_BYTES,
    MAX_NATS_LINE_BYTES,
    NatsFault,
    NatsParser,
    parse_nats_url,
)

TRANSCRIPT = (
    b'INFO {"max_payload":1048576}\r\n+OK\r\nPONG\r\nMSG chatd 1 5\r\nhello\r\nPING\r\n'
    b"MSG chatd 1 0\r\n\r\nMSG chatd 1 reply 4\r\n\r\n\r\n\r\n"
    b"MSG chatd 1 2000\r\n" + b"PING\r\n" * 333 + b"xx\r\nMSG chatd 1 2\r\nok\r\n"
    b"-ERR 'Slow Consumer'\r\n"
)
OPERATIONS = [
    (b"INFO", b'{"max_payload":1048576}'),
    (b"PONG", b""),
    (b"MSG", b"hello"),
    (b"PING", b""),
    (b"MSG", b""),
    (b"MSG", b"\r\n\r\n"),
    (b"MSG", b"ok"),
    (b"-ERR", b"'Slow Consumer'"),
]


def test_a_payload_that_is_too_long_for_a_hint_is_skipped() -> None:
    assert len(b"PING\r\n" * 333 + b"xx") == 2000 > MAX_NATS_HINT_BYTES
    assert NatsParser().feed(TRANSCRIPT) == OPERATIONS


def test_every_cut_of_the_bytes_gives_the_same_operations() -> None:
    for cut in range(len(TRANSCRIPT)):
        parser = NatsParser()
        found = [*parser.feed(TRANSCRIPT[:cut]), *parser.feed(TRANSCRIPT[cut:])]
        assert found == OPERATIONS, cut


def test_single_bytes_give_the_same_operations() -> None:
    parser = NatsParser()
    assert [one for byte in TRANSCRIPT for one in parser.feed(bytes([byte]))] == OPERATIONS


@pytest.mark.parametrize(
    "sent",
    [
        b"MSG chatd 1\r\n",
        b"MSG chatd 1 -5\r\n",
        b"MSG chatd 1 " + b"9" * 400 + b"\r\n",
        b"INFO " + b"x" * MAX_NATS_LINE_BYTES + b"\r\n",
        b"x" * (MAX_NATS_LINE_BYTES + 1),
    ],
    ids=["no size", "a negative size", "a huge size", "a long line", "a line without an end"],
)
def test_what_is_not_the_protocol_is_refused(sent: bytes) -> None:
    with pytest.raises(NatsFault):
        NatsParser().feed(sent)


def test_many_messages_in_one_read_are_no_long_line() -> None:
    message = b"MSG chatd 1 5\r\nhello\r\n"
    count = 2 * MAX_NATS_LINE_BYTES // len(message)
    assert len(NatsParser().feed(message * count)) == count


def test_an_address_has_servers_a_user_and_a_subject() -> None:
    config = parse_nats_url("tls://ada:p%40ss%2Fword@a.example.com,[::1]:4333/prod.chatd")
    assert [server.shown for server in config.servers] == [
        "tls://a.example.com:4222",
        "tls://[::1]:4333",
    ]
    assert (config.user, config.password, config.token) == ("ada", "p@ss/word", None)
    assert config.subject == "prod.chatd"
    assert all(server.tls for server in config.servers)


def test_a_user_without_a_password_is_a_token_and_a_host_is_enough() -> None:
    config = parse_nats_url("nats://s3cret@nats")
    assert (config.user, config.password, config.token) == (None, None, "s3cret")
    bare = parse_nats_url("nats://nats")
    assert (bare.user, bare.password, bare.token, bare.subject) == (None, None, None, "chatd")


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "address",
    [
        "nats://",
        "nats://ada:hunter2@",
        "nats://ada:hunter2@:4222",
        "nats://ada:hunter2@host:port",
        "nats://ada:hunter2@host:99999",
        "nats://ada:hunter2@host,",
        "nats://ada:hunter2@host?x=1",
        "nats://ada:hunter2@host/a b",
        "nats://ada:hunter2@host/chatd.>",
        "nats://ada:hunter2@host/.chatd",
        "http://ada:hunter2@host",
    ],
)
def test_a_wrong_address_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"server\.notifications: expected") as refused:
        parse_nats_url(address)
    assert "hunter2" not in str(refused.value)


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "address",
    ["nats://ada:hunter2@host", "nats://hunter2@host", "tls://a:hun,ter2/hunter2@x@host"],
)
def test_no_password_is_shown(address: str) -> None:
    assert redact_notifications(address).endswith("://***@host")
    assert "hunter2" not in repr(parse_nats_url(address))


def test_postgresql_is_shown_as_it_is() -> None:
    assert redact_notifications("postgresql") == "postgresql"


@pytest.mark.promise("P13")
@pytest.mark.parametrize("login", ["ada:hunter2%21@", "hunter2%21@"])
def test_a_debug_bundle_leaves_out_the_password_in_both_of_its_forms(login: str) -> None:
    server = ServerSettings(notifications=f"nats://{login}nats:4222")
    scrub = Scrubber(known_secrets(Settings(data_dir=Path("/nowhere"), server=server), {}))
    scrubbed = scrub(f"a line with {server.notifications}, and NATS refuses hunter2!")
    assert "hunter2" not in scrubbed
    assert "refuses" in scrubbed
