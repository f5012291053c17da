"""The page on which a browser comes back from the authorization server of an MCP server.

It tells the window that opened it, and closes; without one it goes on to the user's connections. A
failure stays to be read. It takes no text as markup.
"""

import html
from typing import Final

import msgspec

from chatd.api.accounts.pages import PAGE_HEAD
from chatd.api.request import ApiReply
from chatd.domain.ids import McpServerId

_SCRIPT_PATH: Final = "/sign-in/mcp-connected.js"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SCRIPT: Final = """const result = JSON.parse(document.body.dataset.result);
if (window.opener) {
  window.opener.postMessage(result, location.origin);
  if (result.ok) window.close();
} else if (result.ok) {
  location.replace("/settings/connections");
}
"""


def connected_page(server_id: McpServerId, name: str, cookie: str) -> ApiReply:
    return _page(server_id, f"You are connected to {name}.", 200, cookie, ok=True)


def failed_page(server_id: McpServerId, reason: str, status: int, cookie: str) -> ApiReply:
    return _page(server_id, reason, status, cookie, ok=False)


async def connected_script() -> ApiReply:
    return ApiReply(body=_SCRIPT.encode(), media_type="text/javascript; charset=utf-8")


PAGES: Final = {_SCRIPT_PATH: connected_script}


def _page(server_id: McpServerId, text: str, status: int, cookie: str, *, ok: bool) -> ApiReply:
    message = {"type": "mcp-oauth2-complete", "serverID": str(server_id), "ok": ok}
    data = html.escape(msgspec.json.encode(message).decode(), quote=True)
    title = "Connected" if ok else "Not connected"
    body = (
        f"{PAGE_HEAD}<title>{title}</title><body data-result='{data}'>"
        f"<h1>{title}</h1><p>{html.escape(text, quote=True)}</p>"
        "<p>You can close this window, or go"
        " <a href='/settings/connections'>back to your connections</a>.</p>"
        f"<script src='{_SCRIPT_PATH}'></script></html>\n"
    )
    return ApiReply(
        status=status,
        body=body.encode(errors="replace"),
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": _POLICY, "x-frame-options": "DENY"},
        cookies=(cookie,),
    )
