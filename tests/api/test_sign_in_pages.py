"""The page to sign in on: what it loads, and what other sites cannot do with it."""

import re

import pytest

from tests.support.api.server import ApiServer


@pytest.mark.parametrize("path", ["/sign-in", "/lite", "/"])
async def test_a_page_loads_only_scripts_of_this_server_and_cannot_be_framed(
    server: ApiServer, path: str
) -> None:
    page = await server.open_page(path)
    assert page.status == 200
    policy = page.headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    text = page.content.decode()
    scripts = re.findall(r"<script src=['\"]([^'\"]+)['\"]", text)
    assert scripts
    assert "<script>" not in text
    for script in scripts:
        loaded = await server.open_page(script)
        assert loaded.headers["content-type"] == "text/javascript; charset=utf-8"
        assert "://" not in loaded.content.decode()


async def test_opening_the_page_uses_no_link(server: ApiServer) -> None:
    server.sent.clear()
    await server.open_page("/sign-in")
    assert server.sent == []
