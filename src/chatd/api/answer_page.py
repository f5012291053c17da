"""The small page of a link in a notification: one call, and two buttons. It needs no session and no
build. All that it shows comes from `POST /public/call`; loading it changes nothing.
"""

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from chatd.api.accounts.plain_pages import html_page
from chatd.api.request import ApiReply
from chatd.api.route import PREFIX, Page
from chatd.domain.deployment.answer_links import ANSWER_PATH

_STYLE: Final = """
:root { color-scheme: light dark; --bg: #fbfbf9; --surface: #f2f2ee; --border: #dadad3;
  --control: #85857b; --fg: #1b1c1e; --muted: #55585f; --accent: #3f3cbb; --on-accent: #fff;
  --danger: #b3261e }
@media (prefers-color-scheme: dark) { :root { --bg: #0f1113; --surface: #17191d; --border: #2b2f36;
  --control: #6d747f; --fg: #ecedef; --muted: #a2a8b2; --accent: #a7b0ff; --on-accent: #12132b;
  --danger: #ff8f86 } }
* { box-sizing: border-box }
[hidden] { display: none !important }
body { margin: 0; min-height: 100dvh; background: var(--bg); color: var(--fg);
  font: 16px/1.5 system-ui, sans-serif }
main { max-width: 36rem; margin: 0 auto; padding: 1.5rem 1.25rem 2rem; display: grid; gap: 1rem }
h1 { margin: 0; font-size: 1.25rem; overflow-wrap: anywhere }
p { margin: 0 }
.muted { color: var(--muted); overflow-wrap: anywhere }
pre { margin: 0; padding: .75rem 1rem;
  background: var(--surface); border: 1px solid var(--border); border-radius: 10px;
  font: 14px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
form { display: grid; grid-template-columns: 1fr 1fr; gap: .75rem }
button { min-height: 48px; font: inherit; font-weight: 600; color: var(--fg); background: var(--bg);
  border: 1px solid var(--control); border-radius: 10px; cursor: pointer }
button[value=approve] { background: var(--accent); color: var(--on-accent);
  border-color: transparent }
button:disabled { opacity: .6; cursor: default }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
a { color: var(--accent) }
#error { color: var(--danger) }
"""
_PAGE: Final = f"""<!doctype html><html lang=en><meta charset=utf-8>
<meta name=viewport content='width=device-width, initial-scale=1'>
<meta name=robots content='noindex, nofollow'>
<link rel=icon href="data:,">
<title>Answer a call</title>
<style>{_STYLE}</style>
<main>
<h1 id=heading tabindex=-1>One moment</h1>
<p id=chat class=muted></p>
<pre id=text hidden></pre>
<p id=reason class=muted></p>
<form id=form hidden><button name=decision value=deny>Deny</button><button name=decision
 value=approve>Approve</button></form>
<p id=error role=alert></p>
<p><a id=open href='/'>Open the chat</a></p>
<noscript>This page needs JavaScript.</noscript>
</main>
<script src='{ANSWER_PATH}.js'></script></html>
"""
_SCRIPT: Final = f"""const find = (id) => document.getElementById(id);
const VERBS = {{approve: "approved", deny: "denied", answer: "answered"}};
let isBusy = false;
const show = (call) => {{
  const isWaiting = call.state === "waiting";
  const at = call.answered_at ? ", " + new Date(call.answered_at).toLocaleString() : "";
  find("heading").textContent = isWaiting
    ? `Allow ${{call.tool}}?`
    : call.state === "answered"
      ? `This call was ${{VERBS[call.decision]}}${{at}}.`
      : "The chat no longer waits for this call.";
  document.title = find("heading").textContent;
  find("chat").textContent = call.title;
  find("text").hidden = !isWaiting || call.text === "";
  find("text").textContent = call.text;
  find("reason").textContent = isWaiting ? call.reason : "";
  find("form").hidden = !isWaiting;
  find("open").href = call.chat_path;
}};
const ask = async (path, body) => {{
  if (isBusy) return;
  isBusy = true;
  find("error").textContent = "";
  for (const one of document.querySelectorAll("button")) one.disabled = true;
  try {{
    const reply = await fetch("{PREFIX}" + path, {{
      method: "POST",
      credentials: "omit",
      headers: {{"content-type": "application/json"}},
      body: JSON.stringify({{secret: location.hash.slice(1), ...body}}),
    }});
    const told = await reply.json();
    if (reply.ok) show(told);
    else {{
      find("error").textContent = told.message;
      if (reply.status === 404) {{
        find("heading").textContent = "Nothing to answer";
        find("form").hidden = true;
        find("text").hidden = true;
      }}
    }}
  }} catch {{
    find("error").textContent = "The server does not answer. Try again: an answer counts once.";
  }} finally {{
    isBusy = false;
    for (const one of document.querySelectorAll("button")) one.disabled = false;
  }}
  find("heading").focus();
}};
find("form").addEventListener("submit", (event) => {{
  event.preventDefault();
  ask("/public/call/answer", {{decision: event.submitter.value}});
}});
const load = () => ask("/public/call", {{}});
addEventListener("hashchange", load);
load();
"""
_DIGEST: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = (
    f"default-src 'none'; script-src 'self'; style-src 'sha256-{_DIGEST}'; img-src data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def _page() -> ApiReply:
    return html_page(_PAGE, _POLICY)


async def _script() -> ApiReply:
    return ApiReply(body=_SCRIPT.encode(), media_type="text/javascript; charset=utf-8")


ANSWER_PAGES: Final[Mapping[str, Page]] = {ANSWER_PATH: _page, f"{ANSWER_PATH}.js": _script}
