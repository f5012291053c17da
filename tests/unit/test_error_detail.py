"""The detail of a provider's error: what is quoted, clipped and redacted."""

import msgspec
import pytest

from chatd.domain.model.classify import classify_fault
from chatd.domain.model.failures import MAX_DETAIL_CHARS, body_detail, error_detail, redact_urls
from chatd.domain.model.protocol import ProviderFault


def quoted(message: str = "request failed", **facts: object) -> str | None:
    return error_detail(msgspec.structs.replace(ProviderFault(message=message), **facts))


@pytest.mark.covers("errors-13")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"error":{"message":"inner"},"message":"outer"}', "inner"),
        ('{"message":"outer"}', "outer"),
        ('{"error":"plain"}', "plain"),
        ('{"error":{"message":"  "},"message":"outer"}', "outer"),
        ('{"error":["odd"],"message":"outer"}', "outer"),
        ('{"detail":"Not Found"}', "Not Found"),
        ('{"Message":"not authorized to perform"}', "not authorized to perform"),
        ('{"message":"outer","detail":"more"}', "outer"),
        ('{"detail":[{"msg":"field required"}]}', "request failed"),
        ('{"error":{"code":1}}', "request failed"),
        ("first line\nsecond line", "first line"),
        ("\n\n  first line  \n", "first line"),
        ("<html><body>502</body></html>", "request failed"),
        ("   ", "request failed"),
        ("", "request failed"),
        (None, "request failed"),
        ("{not json", "request failed"),
        ('{"message":"cut off', "request failed"),
        ("[1, 2]", "request failed"),
        ('26\r\n{"error":{"message":"in chunks"}}\r\n0\r\n', "in chunks"),
        ("b\r\nplain words\r\n0\r\n", "plain words"),
        ('data: {"error":{"message":"an event"}}', "an event"),
    ],
)
def test_the_most_specific_message_in_a_body_is_quoted(
    body: str | None, expected: str | None
) -> None:
    assert quoted(body=body) == expected


@pytest.mark.covers("errors-13")
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            'POST "https://x.example/v1": 400 Bad Request {"error":{"message":"no such field"}}',
            "no such field",
        ),
        (
            'POST "https://api.example.com/{id}/x": 400 Bad Request {"message":"braces"}',
            "braces",
        ),
        (
            'POST "https://api.example.com/v1": 400 Bad Request',
            'POST "https://api.example.com/v1": 400 Bad Request',
        ),
        ("failed: {not json}", "failed: {not json}"),
        ("<html>", None),
        ("", None),
    ],
)
def test_a_json_message_inside_the_text_of_an_error_is_found(
    message: str, expected: str | None
) -> None:
    assert quoted(message) == expected


@pytest.mark.covers("errors-13")
def test_a_text_of_many_braces_is_searched_up_to_a_limit() -> None:
    assert quoted("{" * 100_000) is not None


@pytest.mark.covers("errors-14")
def test_a_detail_is_bounded() -> None:
    detail = quoted(body=f'{{"message":"{"x" * 2000}"}}')
    assert detail is not None
    assert len(detail) == MAX_DETAIL_CHARS
    assert detail.endswith("…")


@pytest.mark.covers("errors-14")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at https://me:pass@h.example/p?key=1#f now", "at https://h.example/p now"),
        ('to "https://h.example/p?key=AIzaSecret"', 'to "https://h.example/p"'),
        ("http://h.example:8080/a", "http://h.example:8080/a"),
        ("Incorrect API key provided: sk-proj-abc123***xyz.", "Incorrect API key provided: [key]"),
        ("key AIzaSyA1234567890abcdef", "key [key]"),
        ("id AKIAIOSFODNN7EXAMPLE", "id [key]"),
        ("Authorization: Bearer abc.def-123", "Authorization: [key]"),
        ("host:h\nx-amz-security-token:IQoJ/b3+J==\n", "host:h\nx-amz-security-token:[key]\n"),
        (r"host:h\nx-amz-security-token:IQoJ\nb", r"host:h\nx-amz-security-token:[key]\nb"),
        (f"token chatd_3f2a9c0d1e5b_{'s' * 43}.", "token [key]."),
        (f"token chatd_runner_3f2a9c0d1e5b_{'s' * 43}.", "token [key]."),
        ("task-force and sk-1 stay", "task-force and sk-1 stay"),
    ],
)
def test_secrets_are_removed(text: str, expected: str) -> None:
    assert redact_urls(text) == expected


@pytest.mark.covers("errors-14")
def test_secrets_are_removed_from_bodies_too() -> None:
    assert body_detail('{"message":"see https://u:p@x.example/?k=1"}') == "see https://x.example/"
    assert body_detail("see https://u:p@x.example/?k=1") == "see https://x.example/"


def test_a_surrogate_in_a_body_is_replaced() -> None:
    assert body_detail('{"message":"a\\ud800b"}') == "a\ufffdb"


@pytest.mark.covers("errors-14")
def test_the_raw_text_of_an_authentication_error_is_never_shown() -> None:
    plain = classify_fault(ProviderFault(message="token s3cr3t is unauthorized"))
    assert (plain.kind, plain.error.detail) == ("auth", None)
    refused = ProviderFault(
        message="token s3cr3t", status_code=401, body='{"error":{"message":"Key expired."}}'
    )
    assert classify_fault(refused).error.detail == "Key expired."
