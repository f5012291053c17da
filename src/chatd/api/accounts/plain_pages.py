"""The plain page to sign in on, for a server whose page was not built.

The secret of a one-time link is in its fragment, which browsers do not send: a preview or a
prefetch of the link does not use it up, and no proxy logs it. The button of the page sends it.
"""

import html
from collections.abc import Mapping
from typing import Final

import msgspec

from chatd.api.request import ApiReply
from chatd.api.route import PREFIX, Page
from chatd.domain.ids import McpServerId

SIGN_IN_PATH: Final = "/sign-in"
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEAD: Final = """<!doctype html><html lang=en><meta charset=utf-8>
<meta name=viewport content='width=device-width, initial-scale=1'>
<link rel=icon href="data:,">
<style>
[hidden] { display: none !important }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
form { display: grid; gap: .8rem; max-width: 20rem }
label { display: grid; gap: .2rem }
input, button { font: inherit; padding: .4rem .6rem }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } a { color: #8bf } }
</style>"""
_SIGN_IN_PAGE: Final = f"""{PAGE_HEAD}<title>Sign in to chatd</title>
<h1>chatd</h1>
<form id=link hidden>
<p>This link signs this browser in. It works once.</p>
<button>Sign in</button>
</form>
<form id=password hidden>
<label>Username <input name=username autocomplete=username required autofocus></label>
<label>Password <input name=password type=password autocomplete=current-password required></label>
<button>Sign in</button>
</form>
<p id=oidc hidden><a href='/api/v1/auth/oidc/start'>Sign in with <span></span></a></p>
<p id=setup hidden></p>
<p id=error role=alert></p>
<noscript>This page needs JavaScript.</noscript>
<script src='{SIGN_IN_PATH}/sign-in.js'></script></html>
"""
_SIGN_IN_SCRIPT: Final = f"""const find = (id) => document.getElementById(id);
const show = async () => {{
  const hasLink = location.hash.length > 1;
  find("link").hidden = !hasLink;
  find("error").textContent = "";
  if (hasLink) {{
    find("password").hidden = true;
    return;
  }}
  if (new URLSearchParams(location.search).has("problem"))
    find("error").textContent =
      "The sign-in at the provider did not work. Begin again, or ask an administrator.";
  const methods = await (await fetch("{PREFIX}/auth/methods")).json();
  find("password").hidden = !methods.password;
  if (methods.oidc) {{
    find("oidc").hidden = false;
    find("oidc").querySelector("span").textContent = methods.oidc;
  }}
  const setup = await (await fetch("{PREFIX}/setup")).json();
  find("setup").hidden = !setup.needed;
  find("setup").textContent = setup.message || "";
}};
const send = async (path, body) => {{
  const reply = await fetch("{PREFIX}" + path, {{
    method: "POST",
    headers: {{"content-type": "application/json"}},
    body: JSON.stringify(body),
  }});
  if (reply.ok) location.replace("/");
  else find("error").textContent = (await reply.json()).message;
}};
find("link").addEventListener("submit", (event) => {{
  event.preventDefault();
  send("/auth/link", {{secret: location.hash.slice(1)}});
}});
find("password").addEventListener("submit", (event) => {{
  event.preventDefault();
  const {{username, password}} = event.target.elements;
  send("/auth/login", {{username: username.value, password: password.value}});
}});
addEventListener("hashchange", show);
show();
"""


class SignInPages:
    @property
    def pages(self) -> Mapping[str, Page]:
        return {
            f"{SIGN_IN_PATH}/sign-in.js": self.sign_in_script,
        }

    async def sign_in(self) -> ApiReply:
        return html_page(_SIGN_IN_PAGE)

    async def sign_in_script(self) -> ApiReply:
        return _script(_SIGN_IN_SCRIPT)


def html_page(text: str, policy: str = PAGE_POLICY) -> ApiReply:
    return ApiReply(
        body=text.encode(),
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": policy, "x-frame-options": "DENY"},
    )


def _script(text: str) -> ApiReply:
    return ApiReply(body=text.encode(), media_type="text/javascript; charset=utf-8")


# The page on which a browser comes back from the authorization server of an MCP server.
#
# It tells the window that opened it, and closes; without one it goes on to the user's connections.
# A failure stays to be read. It takes no text as markup.

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
