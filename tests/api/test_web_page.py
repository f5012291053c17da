"""The page as files: what is served under which address, how it is cached, and what is refused."""

import asyncio
import gzip
import os
import re
from base64 import b64encode
from collections.abc import AsyncGenerator
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace
from yarl import URL

from chatd.api.web_page import PageFile, reply_file
from tests.support.api.server import ApiOptions, ApiReply, ApiServer, serve_api

DOCUMENT = '<!doctype html><title>chatd</title><script src="/assets/index-1.js"></script>'
SCRIPT = "export const built = 1;\n" * 50
ADDRESSES = [
    "/",
    "/c/0198",
    "/new",
    "/search",
    "/settings/general",
    "/admin/models/7",
    "/embed/c/0198",
]


@pytest.fixture
def page_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "page"
    write_page(directory, DOCUMENT, {"assets/index-1.js": SCRIPT})
    return directory


@pytest.fixture
async def page(dsn: str, page_dir: Path) -> AsyncGenerator[ApiServer]:
    async with serve_api(dsn, ApiOptions(page_dir=page_dir)) as server:
        yield server


def write_page(directory: Path, document: str, more: dict[str, str]) -> None:
    public = {"icon.svg": "<svg/>", "manifest.webmanifest": "{}", "theme.js": "1;"}
    public["diagram.html"] = "<script></script>"
    public["shared.html"] = "<title>Shared chat</title>"
    for name, text in {**public, **more, ".source-hash": "abc", "index.html": document}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if len(text) > 1000:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text.encode()))


async def get(server: ApiServer, path: str, method: str = "GET", **headers: str) -> ApiReply:
    """Without a credential, and with the path as it is written."""
    sent = {"accept-encoding": "identity"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    address = URL(f"http://127.0.0.1:{server.port}{path}", encoded=True)
    async with asyncio.timeout(30), server.http.request(method, address, headers=sent) as response:
        found = {name.lower(): value for name, value in response.headers.items()}
        return ApiReply(status=response.status, headers=found, content=await response.read())


@pytest.mark.parametrize("path", ADDRESSES)
async def test_every_address_of_the_page_gives_its_document(page: ApiServer, path: str) -> None:
    found = await get(page, path)
    assert (found.status, found.content.decode()) == (200, DOCUMENT)
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert found.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/p", "/p/", "/shared.html"])
async def test_the_page_of_public_links_is_strict_and_not_for_search_engines(
    page: ApiServer, path: str
) -> None:
    found = await get(page, path)
    assert (found.status, found.content.decode()) == (200, "<title>Shared chat</title>")
    assert found.headers["x-robots-tag"] == "noindex, nofollow"
    assert found.headers["referrer-policy"] == "no-referrer"
    policy = found.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (await get(page, "/p/secret")).status == 404


async def test_without_a_built_page_a_public_link_says_so(dsn: str, tmp_path: Path) -> None:
    async with serve_api(dsn, ApiOptions(page_dir=tmp_path)) as server:
        found = await get(server, "/p")
    assert (found.status, b"not built" in found.content) == (404, True)


async def test_the_page_may_load_only_from_its_server_and_cannot_be_framed(page: ApiServer) -> None:
    headers = (await get(page, "/")).headers
    policy = dict(
        rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";")
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "media-src": "'self'",
        "font-src": "'self'",
        "connect-src": "'self'",
        "manifest-src": "'self'",
        "worker-src": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-src": "'self' blob: http://*.localhost:*",
    }
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_the_frame_of_diagrams_may_write_styles_and_load_nothing_but_its_scripts(
    page: ApiServer,
) -> None:
    headers = (await get(page, "/diagram.html")).headers
    assert headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
    assert "x-frame-options" not in headers


async def test_an_asset_is_kept_for_ever_and_sent_compressed_to_a_browser_that_takes_it(
    page: ApiServer,
) -> None:
    plain = await get(page, "/assets/index-1.js")
    zipped = await get(page, "/assets/index-1.js", accept_encoding="br, gzip;q=0.8")
    for found in (plain, zipped):
        assert (found.status, found.content.decode()) == (200, SCRIPT)
        assert found.headers["content-type"] == "text/javascript; charset=utf-8"
        assert found.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert found.headers["vary"] == "accept-encoding"
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert int(zipped.headers["content-length"]) < len(SCRIPT) / 4
    assert plain.headers["etag"] != zipped.headers["etag"]


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br, zstd", "br"),
        ("gzip, deflate", "gzip"),
        ("br;q=0, gzip", "gzip"),
        ("*", "br"),
        ("identity", None),
    ],
)
def test_a_browser_gets_the_smallest_body_that_it_takes(
    accepted: str, encoding: str | None
) -> None:
    bodies = {None: b"plain", "gzip": b"zipped", "br": b"smallest"}
    file = PageFile(
        media_type="text/css", body=b"plain", gzip=b"zipped", brotli=b"smallest", etag="e"
    )
    scope = {"type": "http", "headers": [(b"accept-encoding", accepted.encode())]}
    reply = reply_file(scope, file, "default-src 'none'")
    assert reply.body == bodies[encoding]
    assert reply.headers.get("content-encoding") == encoding
    assert reply.headers["vary"] == "accept-encoding"


def test_a_file_that_is_compressed_in_one_way_only_still_varies_by_browser() -> None:
    file = PageFile(media_type="text/css", body=b"plain", gzip=None, brotli=b"b", etag="e")
    assert reply_file({"headers": []}, file, "policy").headers["vary"] == "accept-encoding"


@pytest.mark.parametrize("refusal", ["gzip;q=0", "br", "identity", "gzip;q=abc", ""])
async def test_a_browser_that_refuses_gzip_gets_the_plain_file(
    page: ApiServer, refusal: str
) -> None:
    found = await get(page, "/assets/index-1.js", accept_encoding=refusal)
    assert "content-encoding" not in found.headers
    assert int(found.headers["content-length"]) == len(SCRIPT)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/icon.svg", "image/svg+xml"),
        ("/manifest.webmanifest", "application/manifest+json"),
        ("/theme.js", "text/javascript; charset=utf-8"),
    ],
)
async def test_a_file_without_a_hash_in_its_name_is_asked_for_again_by_its_etag(
    page: ApiServer, path: str, kind: str
) -> None:
    first = await get(page, path)
    assert (first.status, first.headers["content-type"]) == (200, kind)
    assert first.headers["cache-control"] == "no-cache"
    again = await get(page, path, if_none_match=f'"other", W/{first.headers["etag"]}')
    assert (again.status, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert (await get(page, path, if_none_match='"other"')).status == 200


async def test_head_is_answered_without_the_body_and_other_methods_are_refused(
    page: ApiServer,
) -> None:
    for path in ("/", "/assets/index-1.js"):
        got, head = await get(page, path), await get(page, path, "HEAD")
        assert (head.status, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]
        refused = await get(page, path, "POST")
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../index.html",
        "/assets/..%2Findex.html",
        "/assets/%2e%2e/%2e%2e/__init__.py",
        "/..%2f__init__.py",
        "/assets//index-1.js",
        "/assets/index-1.js.gz",
        "/assets/index-2.js",
        "/assets",
        "/.source-hash",
        "/assets/%00",
        "/nothing",
        "/nothing/at/all",
        "/api/v2/chats",
        "/api",
        "/docs/nothing",
    ],
)
async def test_only_the_listed_files_are_served(page: ApiServer, path: str) -> None:
    found = await get(page, path)
    assert found.status == 404
    assert found.json["code"] == "not_found"
    assert found.headers["cache-control"] == "no-store"


async def test_the_page_needs_no_credential_but_data_does(page: ApiServer) -> None:
    assert (await get(page, "/c/0198")).status == 200
    assert (await get(page, "/api/v1/chats")).status == 401


async def test_notes_of_the_build_and_strange_files_are_not_served(
    dsn: str, page_dir: Path
) -> None:
    (page_dir / "notes.py").write_text("secret")
    (page_dir / "assets" / ".hidden.js").write_text("secret")
    async with serve_api(dsn, ApiOptions(page_dir=page_dir)) as server:
        for path in ("/notes.py", "/assets/.hidden.js"):
            assert (await get(server, path)).status == 404


async def test_a_new_build_is_served_while_the_server_runs_and_never_mixed_with_the_old_one(
    page: ApiServer, page_dir: Path
) -> None:
    assert (await get(page, "/")).content.decode() == DOCUMENT
    for path in (page_dir / "index.html", page_dir / "assets" / "index-1.js"):
        path.unlink()
    assert (await get(page, "/")).content.decode() == DOCUMENT, "a build is in progress"
    assert (await get(page, "/assets/index-1.js")).content.decode() == SCRIPT
    newer = DOCUMENT.replace("index-1", "index-2")
    write_page(page_dir, newer, {"assets/index-2.js": "2;"})
    os.utime(page_dir / "index.html", ns=(1, 1))
    assert (await get(page, "/")).content.decode() == newer
    assert (await get(page, "/assets/index-2.js")).content == b"2;"


async def test_a_page_beyond_the_limits_is_not_read(
    dsn: str, page_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.api.web_page.MAX_PAGE_BYTES", 100)
    async with serve_api(dsn, ApiOptions(page_dir=page_dir)) as server:
        assert "chatd lite" in (await get(server, "/")).content.decode()


async def test_without_a_built_page_every_address_gives_the_lite_page(server: ApiServer) -> None:
    for path in (*ADDRESSES, "/lite"):
        text = (await get(server, path)).content.decode()
        assert "chatd lite" in text
        assert "data-built" not in text
    assert "works once" in (await get(server, "/sign-in")).content.decode()
    for path in ("/assets/index-1.js", "/theme.js"):
        assert (await get(server, path)).status == 404


async def test_the_page_signs_people_in_itself_and_a_plain_page_does_where_it_was_not_built(
    server: ApiServer, page: ApiServer
) -> None:
    assert (await get(page, "/sign-in")).content.decode() == DOCUMENT
    plain = (await get(server, "/sign-in")).content.decode()
    assert "Sign in to chatd" in plain
    assert "/sign-in/sign-in.js" in plain


async def test_the_lite_page_links_to_the_other_pages_and_knows_of_the_full_one(
    page: ApiServer,
) -> None:
    found = await get(page, "/lite", accept_encoding="gzip")
    assert found.headers["content-encoding"] == "gzip"
    text = found.content.decode()
    assert "data-built=true" in text
    links = set(re.findall(r'(?:href|src)="(/[^"]*)"', text))
    assert {"/", "/docs", "/healthz", "/readyz", "/metrics", "/lite.js"} <= links
    for link in links:
        assert (await get(page, link)).status == 200


async def test_the_lite_page_is_small_and_runs_only_its_own_script_and_style(
    page: ApiServer,
) -> None:
    document, script = await get(page, "/lite"), await get(page, "/lite.js")
    assert len(document.content) + len(script.content) < 20_000
    policy = document.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert re.search(r"style-src 'sha256-[^']{44}';", policy)
    assert "innerHTML" not in script.content.decode()


@pytest.mark.promise("P13")
async def test_only_the_embedded_chat_may_be_shown_in_a_frame_and_by_named_sites(
    dsn: str, page_dir: Path
) -> None:
    options = ApiOptions(page_dir=page_dir)
    async with serve_api(dsn, options) as server:
        own = await get(server, "/embed/c/0198")
        assert "frame-ancestors 'self';" in own.headers["content-security-policy"]
        for path in ("/", "/c/0198", "/sign-in", "/assets/index-1.js"):
            found = await get(server, path)
            assert "frame-ancestors 'none'" in found.headers["content-security-policy"]
            assert found.headers["x-frame-options"] == "DENY"
    origins = ("https://intranet.example.com",)
    async with serve_api(dsn, replace(options, frame_origins=origins)) as server:
        found = await get(server, "/embed/c/0198")
        policy = found.headers["content-security-policy"]
        assert "frame-ancestors 'self' https://intranet.example.com;" in policy
        assert "x-frame-options" not in found.headers, "it cannot name a site"
        assert (
            "frame-ancestors 'none'" in (await get(server, "/")).headers["content-security-policy"]
        )


# The documentation

HELP = "<!doctype html><title>Help</title><script>theme()</script><script src=assets/a.js></script>"


@pytest.fixture
async def documented(dsn: str, tmp_path: Path) -> AsyncGenerator[ApiServer]:
    directory = tmp_path / "help"
    more = {"assets/a.js": SCRIPT, "install.html": HELP, "search/search_index.json": "{}"}
    write_page(directory, HELP, more)
    async with serve_api(dsn, ApiOptions(help_dir=directory)) as server:
        yield server


async def test_the_documentation_is_served_with_the_scripts_of_its_documents_only(
    documented: ApiServer,
) -> None:
    for path, text in {
        "/help/": HELP,
        "/help/install.html": HELP,
        "/help/assets/a.js": SCRIPT,
        "/help/search/search_index.json": "{}",
    }.items():
        found = await get(documented, path)
        assert (found.status, found.content.decode()) == (200, text), path
    allowed = b64encode(sha256(b"theme()").digest()).decode()
    policy = (await get(documented, "/help/install.html")).headers["content-security-policy"]
    assert f"script-src 'self' 'sha256-{allowed}';" in policy
    assert "unsafe" not in policy


async def test_the_documentation_has_one_address_and_no_other_files(documented: ApiServer) -> None:
    address = f"http://127.0.0.1:{documented.port}/help"
    async with documented.http.get(address, allow_redirects=False) as moved:
        assert (moved.status, moved.headers["location"]) == (308, "/help/")
    for path in ("/help/none.html", "/help/.source-hash", "/help/../icon.svg", "/help/%2e%2e/x"):
        assert (await get(documented, path)).status == 404, path


async def test_without_the_documentation_it_says_how_to_build_it(page: ApiServer) -> None:
    found = await get(page, "/help/")
    assert found.status == 404
    assert "make site" in found.content.decode()
