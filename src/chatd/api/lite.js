// A page over the public API, without a build: it lists chats, follows one, sends, shows the queue
// and interrupts. All text is put into the document as text, never as HTML.
const API = "/api/v1";
const RECONNECT_MS = 3000;
const find = (id) => document.getElementById(id);
const make = (name, text = "", className = "") => {
  const element = document.createElement(name);
  element.textContent = text;
  element.className = className;
  return element;
};

let csrfToken = null;
let streams = [];
let chats = new Map();
let nextCursor = null;
let chat = emptyChat(null);
let isSignedOut = false;
// What went wrong with the last thing that a person asked for.
let notice = "";

function emptyChat(id) {
  return {
    id, status: "", error: null, retry: null, queue: [], calls: [], live: [], hasOlder: false,
    messages: new Map(), rows: new Map(), follows: true,
  };
}

// Of an address that anybody may have written: a chat's id, never another path of the API.
function idIn(text) {
  return text?.match(/^[0-9a-f-]{36}$/)?.[0] ?? null;
}

function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16)).join("-");
}

// The key of a message that is tried again stays the same until the server has answered it.
const unanswered = { key: "", sent: "" };

function keyOf(path, sent) {
  const known = `${path} ${sent}`;
  if (unanswered.sent !== known) Object.assign(unanswered, { key: randomKey(), sent: known });
  return unanswered.key;
}

async function ask(method, path, body) {
  const headers = { "content-type": "application/json" };
  if (csrfToken) headers["x-csrf-token"] = csrfToken;
  const sent = body === undefined ? null : JSON.stringify(body);
  if (body?.content) headers["idempotency-key"] = keyOf(path, sent);
  const reply = await fetch(API + path, { method, headers, body: sent });
  if (body?.content && (reply.ok || reply.status < 500)) unanswered.sent = "";
  if (reply.status === 401) showSignedOut();
  const value = reply.status === 204 ? null : await reply.json();
  if (!reply.ok) throw new Error(value.message);
  return value;
}

// Runs what a person asked for, and says what went wrong.
async function attempt(work) {
  notice = "";
  try {
    await work();
  } catch (error) {
    notice = error instanceof TypeError ? "The server cannot be reached. Try again." : error.message;
  }
  show();
}

function showSignedOut() {
  for (const stream of streams) stream.close();
  const link = make("a", "Sign in");
  link.href = "/sign-in";
  find("who").replaceChildren(link);
  isSignedOut = true;
  show();
}

// EventSource reconnects by itself, with the last id, unless the server refused it.
function follow(path, handlers, onState) {
  const stream = { close: () => { stream.closed = true; stream.source.close(); } };
  const open = () => {
    if (stream.closed) return;
    const source = new EventSource(API + path);
    stream.source = source;
    source.onopen = () => onState("open");
    source.onerror = (event) => {
      // The event `error` of a chat comes here too, with data.
      if (event.data !== undefined) return;
      onState("waiting");
      if (source.readyState !== EventSource.CLOSED || stream.closed) return;
      fetch(API + "/auth/me").then((reply) => {
        if (reply.status === 401) showSignedOut();
        else setTimeout(open, RECONNECT_MS);
      }, () => setTimeout(open, RECONNECT_MS));
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
    source.addEventListener("end", (event) => {
      const { code, message } = JSON.parse(event.data);
      if (code === "signed_out") showSignedOut();
      if (code === "not_found") { stream.close(); notice = message; show(); }
    });
  };
  open();
  streams.push(stream);
  return stream;
}

// ---- the list of chats

async function listChats() {
  const page = await ask("GET", "/chats?source=all&limit=50");
  chats = new Map(page.items.map((one) => [one.id, one]));
  nextCursor = page.next_cursor;
  showChats();
}

async function listMore() {
  const page = await ask("GET", `/chats?source=all&limit=50&cursor=${encodeURIComponent(nextCursor)}`);
  for (const one of page.items) chats.set(one.id, one);
  nextCursor = page.next_cursor;
  showChats();
}

function changeChat({ kind, chat: changed }) {
  if (changed.parent_chat_id) return;
  if (kind === "deleted" || changed.archived) chats.delete(changed.id);
  else if (chats.has(changed.id)) chats.set(changed.id, changed);
  else chats = new Map([[changed.id, changed], ...chats]);
  showChats();
}

function removeChat({ chat_id }) {
  chats.delete(chat_id);
  showChats();
}

function showChats() {
  const rows = [...chats.values()].map((one) => {
    const link = make("a", one.title || "Untitled");
    link.href = `#${one.id}`;
    if (one.id === chat.id) link.setAttribute("aria-current", "page");
    link.append(make("small", (one.is_owner === false ? `of ${one.owner_username}, ` : "") + one.status + (one.queue_len ? `, ${one.queue_len} queued` : "")));
    const row = make("li");
    row.append(link);
    return row;
  });
  const focused = document.activeElement?.getAttribute("href");
  find("chats").replaceChildren(...rows);
  if (focused?.startsWith("#")) find("chats").querySelector(`a[href="${focused}"]`)?.focus();
  find("more").hidden = nextCursor === null;
  find("title").textContent = chat.id === null ? "New chat" : chats.get(chat.id)?.title || "Chat";
}

// ---- one chat

let chatStream = null;

function openChat(id) {
  chatStream?.close();
  streams = streams.filter((one) => one !== chatStream);
  chatStream = null;
  chat = emptyChat(id);
  notice = "";
  find("messages").replaceChildren();
  showChats();
  show();
  if (id === null) return find("text").focus();
  const opened = chat;
  const on = (change) => (event) => {
    if (chat !== opened) return;
    change(event);
    scheduleShow();
  };
  chatStream = follow(`/chats/${id}/events`, {
    status: on((event) => Object.assign(chat, { status: event.status.status, error: null, calls: [] })),
    message: on((event) => setMessage(event.message)),
    messages_deleted: on((event) => event.ids.forEach(dropMessage)),
    history_reset: on(() => [...chat.messages.keys()].forEach(dropMessage)),
    preview_reset: on(() => { chat.live = []; }),
    message_part: on((event) => addLive(event.message_part.part)),
    queue_update: on((event) => { chat.queue = event.queued_messages; }),
    retry: on((event) => { chat.retry = event.retry; }),
    error: on((event) => { chat.error = event.error; }),
    action_required: on((event) => { chat.calls = event.action_required.tool_calls; }),
    version: on((event) => { if (event.has_older) chat.hasOlder = true; }),
  }, on((state) => { chat.connection = state; }));
}

function setMessage(message) {
  dropMessage(message.id);
  chat.messages.set(message.id, message);
  const row = messageRow(message);
  const later = [...chat.rows.keys()].filter((id) => id > message.id).sort((a, b) => a - b)[0];
  find("messages").insertBefore(row, later === undefined ? null : chat.rows.get(later));
  chat.rows.set(message.id, row);
}

function dropMessage(id) {
  chat.rows.get(id)?.remove();
  chat.rows.delete(id);
  chat.messages.delete(id);
}

// Text continues the last part of its kind; the pieces of a call and of its result have its id.
function addLive(part) {
  const last = chat.live.at(-1);
  const isText = part.type === "text" || part.type === "reasoning";
  if (isText && last?.type === part.type) { last.text += part.text; return; }
  const same = !isText && chat.live.find(
    (one) => one.type === part.type && one.tool_call_id === part.tool_call_id && part.tool_call_id);
  if (!same) { chat.live.push({ ...part }); return; }
  const args = (same.args_delta ?? "") + (part.args_delta ?? "");
  const result = (same.result_delta ?? "") + (part.result_delta ?? "");
  Object.assign(same, part, { args_delta: args, result_delta: result });
}

function messageRow(message) {
  const row = make("article", "", message.role);
  const names = { user: "You", assistant: "Model", tool: "Tools", system: "Notice" };
  row.append(make("h3", names[message.role] ?? message.role), ...message.content.map(partRow));
  return row;
}

function partRow(part) {
  if (part.type === "text") return make("pre", part.text);
  if (part.type === "notice") return make("p", part.text);
  if (part.type === "reasoning") return folded("Reasoning", part.text);
  if (part.type === "tool-call") {
    return folded(`Call: ${part.tool_name}`, part.args === undefined ? part.args_delta : pretty(part.args));
  }
  if (part.type === "tool-result") {
    const result = part.result === undefined ? part.result_delta : pretty(part.result);
    const row = folded(`${part.is_error ? "Failed" : "Result"}: ${part.tool_name}`, result);
    if (part.is_error) row.firstChild.className = "danger";
    return row;
  }
  if (part.type === "file") return make("p", `File: ${part.name ?? part.file_id ?? part.media_type}`);
  return folded(part.type, pretty(part));
}

function folded(summary, text) {
  const row = make("details");
  row.append(make("summary", summary), make("pre", text ?? ""));
  return row;
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

let isScheduled = false;
function scheduleShow() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => { isScheduled = false; show(); });
}

function show() {
  const log = find("log");
  const isBusy = ["pending", "running", "interrupting"].includes(chat.status);
  find("live").replaceChildren(
    ...(chat.live.length ? [messageRow({ role: "assistant", content: chat.live })] : []),
  );
  setText("status", statusText());
  setText("error", notice || chat.error?.message || "");
  find("older").hidden = !chat.hasOlder;
  find("interrupt").hidden = !isBusy;
  find("queue").replaceChildren(...chat.queue.map(queueRow));
  if (chat.follows) log.scrollTop = log.scrollHeight;
}

function statusText() {
  if (isSignedOut) return "Signed out";
  if (chat.connection === "waiting") return "Reconnecting";
  if (chat.calls.length) return "Waits for the result of a tool that runs in another client";
  if (chat.retry && chat.status === "pending") return `Retrying: ${chat.retry.error?.message ?? ""}`;
  return chat.status;
}

// A live region speaks whenever it is set: so only what differs is set.
function setText(id, text) {
  if (find(id).textContent !== text) find(id).textContent = text;
}

function queueRow(queued) {
  const text = queued.content.map((part) => part.text ?? part.type).join(" ");
  const row = make("li", text);
  const button = make("button", "Remove");
  button.type = "button";
  button.setAttribute("aria-label", `Remove from the queue: ${text}`);
  button.addEventListener("click", () => attempt(
    () => ask("DELETE", `/chats/${chat.id}/queue/${queued.id}`)));
  row.append(button);
  return row;
}

// ---- what a person does

find("composer").addEventListener("submit", async (event) => {
  event.preventDefault();
  const box = find("text");
  const body = { content: [{ type: "text", text: box.value }] };
  await started;
  await attempt(async () => {
    if (chat.id === null) {
      const created = await ask("POST", "/chats", body);
      box.value = "";
      location.hash = created.id;
    } else {
      await ask("POST", `/chats/${chat.id}/messages`, body);
      box.value = "";
      chat.follows = true;
    }
    box.focus();
  });
});
find("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("composer").requestSubmit();
});
find("interrupt").addEventListener("click", () => attempt(
  () => ask("POST", `/chats/${chat.id}/interrupt`)));
find("older").addEventListener("click", () => attempt(async () => {
  const first = Math.min(...chat.messages.keys());
  const page = await ask("GET", `/chats/${chat.id}/messages?before_id=${first}`);
  chat.follows = false;
  page.items.forEach(setMessage);
  chat.hasOlder = page.has_more;
  show();
}));
find("more").addEventListener("click", () => attempt(listMore));
find("new").addEventListener("click", () => { location.hash = ""; openChat(null); });
find("log").addEventListener("scroll", () => {
  const log = find("log");
  chat.follows = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
});
addEventListener("hashchange", () => {
  const id = idIn(location.hash.slice(1));
  if (id !== chat.id) openChat(id);
});

async function start() {
  find(document.documentElement.dataset.built ? "built" : "not-built").hidden = false;
  const reply = await fetch(API + "/auth/me");
  if (!reply.ok) return showSignedOut();
  const me = await reply.json();
  csrfToken = me.csrf_token;
  const button = make("button", "Sign out");
  button.type = "button";
  button.addEventListener("click", () => attempt(async () => {
    await ask("POST", "/auth/logout");
    showSignedOut();
  }));
  find("who").replaceChildren(`Signed in as ${me.user.username} `, button);
  follow("/events", { ready: () => attempt(listChats), chat: changeChat, removed: removeChat }, () => {});
  openChat(idIn(location.hash.slice(1)) ?? idIn(location.pathname.split("/c/")[1]));
}
const started = attempt(start);
