import { act, fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApiError } from "@/api/client";
import type { Model } from "@/api/queries";
import { CHAT_ID, type ServerState, START, take } from "@/chat-state/testing";
import { editMessage, insertReference, openModelPicker } from "@/platform/actions";
import { runCommand } from "@/platform/keys";
import { setPreference } from "@/platform/preferences";
import { Toasts } from "@/platform/toasts";
import { draftOf } from "./draft";
import { unreadableFiles } from "./model-choice";
import { TestPage } from "./testing";

const idle = take(take(take(START, { do: "send", text: "hello" }), { do: "stream", text: "hi", kind: "text" }), { do: "commit" });
const busy = take(idle, { do: "send", text: "work" });
const QUEUE = `/api/v1/chats/${CHAT_ID}/queue`;

function queued(...texts: string[]): ServerState {
  return texts.reduce((state, text) => take(state, { do: "enqueue", text }), busy);
}

let page: TestPage;
const box = () => screen.getByRole<HTMLTextAreaElement>("textbox", { name: "Message" });
const sentTexts = () => page.sent.map(({ body }) => body.content.at(-1));

beforeEach(() => {
  page = new TestPage();
  setPreference("sendKey", "enter");
});
afterEach(() => vi.unstubAllGlobals());

test("Enter sends, Shift Enter begins a line, and the box is empty afterwards", async () => {
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "one{Shift>}{Enter}{/Shift}two{Enter}");
  expect(sentTexts()).toEqual([{ type: "text", text: "one\ntwo" }]);
  expect(page.sent[0]?.body.busy_behavior).toBe("queue");
  expect(box().value).toBe("");
  expect(document.activeElement).toBe(box());
});

test("with the other preference Enter begins a line and Ctrl Enter sends", async () => {
  setPreference("sendKey", "mod-enter");
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "one{Enter}two");
  expect(page.sent).toEqual([]);
  await userEvent.type(box(), "{Control>}{Enter}{/Control}");
  expect(sentTexts()).toEqual([{ type: "text", text: "one\ntwo" }]);
});

test("Enter that ends a word of an input method does not send", async () => {
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "かな");
  fireEvent.keyDown(box(), { key: "Enter", isComposing: true });
  fireEvent.keyDown(box(), { key: "Enter", keyCode: 229 });
  expect(page.sent).toEqual([]);
  fireEvent.keyDown(box(), { key: "Enter" });
  expect(page.sent).toHaveLength(1);
});

test("nothing but spaces is not sent", async () => {
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "   {Enter}");
  expect(page.sent).toEqual([]);
});

test("the button names what happens: Send to an idle chat, Queue to a busy one", async () => {
  await page.show(CHAT_ID, idle);
  expect(screen.getByRole("button", { name: "Send" })).toBeTruthy();
  expect(screen.queryByRole("button", { name: "Stop" })).toBeNull();
  await page.serve(busy);
  expect(screen.getByRole("button", { name: "Queue" })).toBeTruthy();
  expect(screen.getByRole("button", { name: "Stop" })).toBeTruthy();
});

test.each([
  ["Steer", "Steer", "steer"],
  ["Interrupt", "Interrupt", "interrupt"],
  ["Replace the turn", "Replace", "rollback"],
])("the menu's %s makes the button %s", async (item, verb, behavior) => {
  await page.show(CHAT_ID, busy);
  await userEvent.click(screen.getByRole("button", { name: "What happens when you send" }));
  await userEvent.click(screen.getByRole("menuitem", { name: new RegExp(`^${item}`) }));
  await userEvent.type(box(), "now");
  await userEvent.click(screen.getByRole("button", { name: verb }));
  expect(page.sent[0]?.body.busy_behavior).toBe(behavior);
  expect(screen.getByRole("button", { name: "Queue" })).toBeTruthy();
});

test("Alt Enter interrupts a busy chat", async () => {
  await page.show(CHAT_ID, busy);
  await userEvent.type(box(), "stop that{Alt>}{Enter}{/Alt}");
  expect(page.sent[0]?.body.busy_behavior).toBe("interrupt");
});

test("Esc stops a chat that writes, and asks twice while a tool runs", async () => {
  page.replies[`POST /api/v1/chats/${CHAT_ID}/interrupt`] = Response.json({}, { status: 200 });
  await page.show(CHAT_ID, busy);
  expect(runCommand("escape")).toBe(true);
  await vi.waitFor(() => expect(page.requests).toHaveLength(1));
  const call = { type: "tool-call" as const, tool_call_id: "c1", tool_name: "run", args: {} };
  const [last] = busy.messages.slice(-1);
  if (last === undefined) throw new Error("no message");
  await page.serve({ ...busy, messages: [...busy.messages, { ...last, id: 99, role: "assistant", content: [call] }] });
  runCommand("escape");
  expect(page.requests).toHaveLength(1);
  runCommand("escape");
  await vi.waitFor(() => expect(page.requests).toHaveLength(2));
});

test("Esc in an idle chat is left to others", async () => {
  await page.show(CHAT_ID, idle);
  expect(runCommand("escape")).toBe(false);
});

test("a draft is there again after the page was left", async () => {
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "not yet sent");
  window.dispatchEvent(new Event("pagehide"));
  expect(localStorage.getItem(`chatd.draft.${CHAT_ID}`)).toContain("not yet sent");
});

test("lines of a file go with the message as a chip", async () => {
  await page.show(CHAT_ID, idle);
  act(() => insertReference({ type: "file-reference", file_name: "src/claims.sql", start_line: 10, end_line: 10, content: "x" }));
  expect(screen.getByText("claims.sql:10")).toBeTruthy();
  await userEvent.type(box(), "why?{Enter}");
  expect(page.sent[0]?.body.content.map((part) => part.type)).toEqual(["file-reference", "text"]);
  expect(screen.queryByText("claims.sql:10")).toBeNull();
});

test("a text after an exclamation mark runs in the workspace", async () => {
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "!git status");
  expect(screen.getByText(/Runs in the chat’s workspace/)).toBeTruthy();
  await userEvent.type(box(), "{Enter}");
  expect(page.sent[0]?.body.content).toEqual([{ type: "command", command: "git status" }]);
  expect(draftOf(page.sent[0]?.body.content ?? []).text).toBe("!git status");
  await userEvent.type(box(), "!{Enter}");
  expect(page.sent[1]?.body.content).toEqual([{ type: "text", text: "!" }]);
});

test("the model and effort of a message can be chosen", async () => {
  await page.show(CHAT_ID, idle);
  await userEvent.click(await screen.findByRole("button", { name: "Model: Sable 4, effort Medium" }));
  await userEvent.click(await screen.findByRole("radio", { name: "High" }));
  await userEvent.type(screen.getByRole("searchbox", { name: "Find a model" }), "lark");
  expect(screen.queryByRole("button", { name: /^Sable 4/, pressed: true })).toBeNull();
  await userEvent.clear(screen.getByRole("searchbox", { name: "Find a model" }));
  await userEvent.keyboard("{Escape}");
  await userEvent.type(box(), "go{Enter}");
  expect(page.sent[0]?.body).toMatchObject({ reasoning_effort: "high" });
});

test("a slash lists commands, and Enter runs the chosen one", async () => {
  page.replies[`POST /api/v1/chats/${CHAT_ID}/compact`] = Response.json({}, { status: 202 });
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "/co");
  expect(screen.getByRole("option", { name: /compact/ }).getAttribute("aria-selected")).toBe("true");
  await userEvent.keyboard("{Enter}");
  expect(page.requests.map(({ path }) => path)).toEqual([`/api/v1/chats/${CHAT_ID}/compact`]);
  expect(box().value).toBe("");
});

test("Esc closes the list of commands, and a path with slashes is no command", async () => {
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "/fo{Escape}");
  expect(screen.queryByRole("listbox")).toBeNull();
  await userEvent.clear(box());
  await userEvent.type(box(), "/etc/hosts{Enter}");
  expect(sentTexts()).toEqual([{ type: "text", text: "/etc/hosts" }]);
});

test("the queue shows its messages by number", async () => {
  await page.show(CHAT_ID, queued("first", "second"));
  const rows = within(screen.getByRole("region", { name: "Queue" })).getAllByRole("listitem");
  expect(rows.map((row) => row.textContent)).toEqual([expect.stringMatching(/^1first/), expect.stringMatching(/^2second/)]);
});

test("the arrow up in an empty box edits the last queued message in its place", async () => {
  const state = queued("first", "second");
  const id = state.queue[1]?.id ?? 0;
  page.replies[`PATCH ${QUEUE}/${id}`] = Response.json({});
  await page.show(CHAT_ID, state);
  await userEvent.type(box(), "{ArrowUp}");
  const field = screen.getByRole<HTMLTextAreaElement>("textbox", { name: "Queued message" });
  expect(field.value).toBe("second");
  await userEvent.type(field, " and more{Enter}");
  expect(page.requests).toEqual([{ method: "PATCH", path: `${QUEUE}/${id}`, body: { content: [{ type: "text", text: "second and more" }] } }]);
  expect(document.activeElement).toBe(box());
});

test("an edit that comes too late goes into the composer", async () => {
  const state = queued("first");
  const id = state.queue[0]?.id ?? 0;
  page.replies[`PATCH ${QUEUE}/${id}`] = Response.json({ code: "queued_message_gone", message: "gone" }, { status: 409 });
  await page.show(CHAT_ID, state);
  await userEvent.type(box(), "{ArrowUp}");
  await userEvent.type(screen.getByRole("textbox", { name: "Queued message" }), " and more{Enter}");
  await vi.waitFor(() => expect(box().value).toBe("first and more"));
});

test("a message that is sent while it is edited leaves its new text in the composer", async () => {
  const state = queued("first");
  await page.show(CHAT_ID, state);
  await userEvent.type(box(), "{ArrowUp}");
  await userEvent.type(screen.getByRole("textbox", { name: "Queued message" }), " and more");
  await page.serve(take(state, { do: "dequeue" }));
  await vi.waitFor(() => expect(box().value).toBe("first and more"));
  expect(screen.queryByRole("textbox", { name: "Queued message" })).toBeNull();
});

test("Esc in an edited queue message leaves it as it was", async () => {
  await page.show(CHAT_ID, queued("first"));
  await userEvent.type(box(), "{ArrowUp}");
  await userEvent.type(screen.getByRole("textbox", { name: "Queued message" }), " and more{Escape}");
  expect(page.requests).toEqual([]);
  expect(screen.getByText("first")).toBeTruthy();
});

test("a queued message is moved by button and by Alt and arrow, and shown there at once", async () => {
  const state = queued("first", "second", "third");
  const [first, second, third] = state.queue.map(({ id }) => id);
  for (const id of [first, second, third]) page.replies[`POST ${QUEUE}/${id ?? 0}/move`] = Response.json({});
  await page.show(CHAT_ID, state);
  const rows = () => within(screen.getByRole("region", { name: "Queue" })).getAllByRole("listitem");
  const row = (index: number) => rows()[index] ?? document.body;
  const names = () => rows().map((one) => /^\d(\w+)Send now$/.exec(one.textContent)?.[1]);
  await userEvent.click(within(row(0)).getByRole("button", { name: "Move down" }));
  expect(page.requests.at(-1)?.body).toEqual({ before: third });
  expect(names()).toEqual(["second", "first", "third"]);
  within(row(2)).getByRole("button", { name: "Edit" }).focus();
  await userEvent.keyboard("{Alt>}{ArrowUp}{/Alt}");
  expect(page.requests.at(-1)).toMatchObject({ path: `${QUEUE}/${third ?? 0}/move`, body: { before: first } });
  expect(names()).toEqual(["second", "third", "first"]);
});

test("a queued message is sent now or removed", async () => {
  const state = queued("first");
  const id = state.queue[0]?.id ?? 0;
  page.replies[`POST ${QUEUE}/${id}/promote`] = Response.json({}, { status: 202 });
  page.replies[`DELETE ${QUEUE}/${id}`] = new Response(null, { status: 204 });
  await page.show(CHAT_ID, state);
  await userEvent.click(screen.getByRole("button", { name: "Send now" }));
  await userEvent.click(screen.getByRole("button", { name: "Remove" }));
  expect(page.requests.map(({ method, path }) => `${method} ${path}`)).toEqual([`POST ${QUEUE}/${id}/promote`, `DELETE ${QUEUE}/${id}`]);
});

test("Hold stops the answer and keeps the queue", async () => {
  page.replies[`POST /api/v1/chats/${CHAT_ID}/interrupt`] = Response.json({});
  await page.show(CHAT_ID, queued("first"));
  await userEvent.click(screen.getByRole("button", { name: "Hold" }));
  expect(page.requests.at(-1)?.body).toEqual({ queue: "hold" });
});

test("a refused message can be edited; a reached limit says how much and who can raise it", async () => {
  const body = {
    code: "usage_limit_exceeded",
    message: "limit",
    spent_micros: 10_000_000,
    limit_micros: 10_000_000,
    resets_at: new Date(Date.now() + 3_600_000).toISOString(),
  };
  page.postFailure = new ApiError(409, body);
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "too dear{Enter}");
  expect((await screen.findByRole("alert")).textContent).toMatch(/You have used \$10\.00 of \$10\.00\. It starts again at .*; an admin can raise it\./);
  await userEvent.click(screen.getByRole("button", { name: "Edit" }));
  expect(box().value).toBe("too dear");
  expect(screen.queryByRole("alert")).toBeNull();
});

test("a sent message is edited in the composer, with a warning; Esc brings the draft back", async () => {
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "my draft");
  act(() => editMessage(1));
  expect(box().value).toBe("hello");
  expect(screen.getByRole("status").textContent).toContain("will be deleted");
  act(() => void runCommand("escape"));
  expect(box().value).toBe("my draft");
  act(() => editMessage(1));
  page.replies[`PATCH /api/v1/chats/${CHAT_ID}/messages/1`] = Response.json({});
  await userEvent.type(box(), " again{Enter}");
  expect(page.requests.at(-1)).toMatchObject({ method: "PATCH", body: { content: [{ type: "text", text: "hello again" }] } });
  await vi.waitFor(() => expect(box().value).toBe("my draft"));
});

test("the first message creates the chat once, also when it is sent again", async () => {
  const keys: (string | null)[] = [];
  let isDown = true;
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    if (init.method !== "POST") return page.fetch(url, init);
    keys.push(new Headers(init.headers).get("Idempotency-Key"));
    return isDown ? Promise.reject(new TypeError("down")) : Promise.resolve(Response.json({ id: CHAT_ID, version: 1, labels: {} }, { status: 201 }));
  });
  await page.show(null);
  await userEvent.type(box(), "begin{Enter}");
  expect((await screen.findByRole("alert")).textContent).toContain("cannot be reached");
  expect(box().value).toBe("begin");
  isDown = false;
  await userEvent.type(box(), "{Enter}");
  await vi.waitFor(() => expect(window.location.pathname).toBe(`/c/${CHAT_ID}`));
  expect(keys).toHaveLength(2);
  expect(keys[0]).toBe(keys[1]);
});

test("a chat that another user shares cannot be written in", async () => {
  page.replies[`GET /api/v1/chats/${CHAT_ID}`] = Response.json({ id: CHAT_ID, version: 1, is_owner: false, owner_username: "ada" });
  await page.show(CHAT_ID);
  expect(await screen.findByText("You can read this chat. Only ada can write in it.")).toBeTruthy();
  expect(screen.queryByRole("textbox")).toBeNull();
});

test("a message that waits for the server is shown by the timeline, and by the composer only while the chat is busy", async () => {
  page.postFailure = new ApiError(0, { code: "unreachable", message: "The server cannot be reached." });
  await page.show(CHAT_ID, idle);
  await userEvent.type(box(), "later{Enter}");
  await waitFor(() => expect(box().value).toBe(""));
  expect(screen.queryByText(/Kept here/)).toBeNull();
});

test("another part of the page opens the choice of models", async () => {
  await page.show(CHAT_ID, idle);
  act(() => openModelPicker());
  expect(await screen.findByRole("searchbox", { name: "Find a model" })).toBeTruthy();
});

test("plan mode is turned on in the menu, shown, and turned off by its button", async () => {
  page.replies[`PATCH /api/v1/chats/${CHAT_ID}`] = () => Response.json({ id: CHAT_ID, version: 1, archived: false });
  await page.show(CHAT_ID, idle);
  await userEvent.click(screen.getByRole("button", { name: "Add files and choose tools" }));
  await userEvent.click(await screen.findByRole("menuitemcheckbox", { name: /Plan mode/ }));
  await userEvent.click(await screen.findByRole("button", { name: /Plan mode; press/ }));
  expect(page.requests.filter(({ method }) => method === "PATCH").map(({ body }) => body)).toEqual([{ mode: "plan" }, { mode: "off" }]);
  expect(screen.queryByRole("button", { name: /Plan mode; press/ })).toBeNull();
});

test("a new chat begins in plan mode if /plan was typed", async () => {
  page.replies["POST /api/v1/chats"] = Response.json({ id: CHAT_ID, version: 1 }, { status: 201 });
  await page.show(null);
  await userEvent.type(box(), "/plan{Enter}");
  await userEvent.type(box(), "archive invoices{Enter}");
  const [created] = page.requests.filter(({ method }) => method === "POST");
  expect(created?.body).toEqual({ content: [{ type: "text", text: "archive invoices" }], mode: "plan" });
});

test("files can be dropped anywhere on the page", async () => {
  await page.show(CHAT_ID, idle);
  const file = new File(["x"], "notes.txt", { type: "text/plain" });
  const dataTransfer = { types: ["Files"], files: [file], dropEffect: "none" };
  const isOpen = fireEvent.dragOver(document.body, { dataTransfer });
  expect(isOpen, "the browser would open the file").toBe(false);
  expect(screen.getByText("Drop files to attach them to your message")).toBeTruthy();
  expect(fireEvent.drop(document.body, { dataTransfer })).toBe(false);
  expect(screen.queryByText("Drop files to attach them to your message")).toBeNull();
  expect(screen.getByText("notes.txt")).toBeTruthy();
});

test("text that is dragged over the page is left to the browser", async () => {
  await page.show(CHAT_ID, idle);
  expect(fireEvent.dragOver(document.body, { dataTransfer: { types: ["text/plain"], files: [] } })).toBe(true);
  expect(screen.queryByText("Drop files to attach them to your message")).toBeNull();
});

test("/plan with a text sends the text in plan mode", async () => {
  await page.show(CHAT_ID, idle);
  fireEvent.change(box(), { target: { value: "/plan move the\ninvoices" } });
  fireEvent.keyDown(box(), { key: "Enter" });
  expect(sentTexts()).toEqual([{ type: "text", text: "move the\ninvoices" }]);
  expect(page.sent[0]?.body.mode).toBe("plan");
});

test("/remember keeps the text as a note and sends no message", async () => {
  page.replies["POST /api/v1/memory/notes"] = Response.json({ id: CHAT_ID, text: "x" }, { status: 201 });
  await page.show(CHAT_ID, idle);
  fireEvent.change(box(), { target: { value: "/remember I use tabs." } });
  fireEvent.keyDown(box(), { key: "Enter" });
  await waitFor(() => expect(page.requests.find(({ path }) => path === "/api/v1/memory/notes")?.body).toEqual({ text: "I use tabs." }));
  expect(page.sent).toEqual([]);
  expect(box()).toHaveProperty("value", "");
});

test("a note that is refused comes back into the box", async () => {
  page.replies["POST /api/v1/memory/notes"] = Response.json({ code: "too_many_notes", message: "You have 50 notes." }, { status: 409 });
  await page.show(CHAT_ID, idle);
  fireEvent.change(box(), { target: { value: "/remember I use tabs." } });
  fireEvent.keyDown(box(), { key: "Enter" });
  await waitFor(() => expect(box()).toHaveProperty("value", "/remember I use tabs."));
});

function asking(...counts: number[]): ServerState {
  const [last] = busy.messages.slice(-1);
  if (last === undefined) throw new Error("no message");
  const content = counts.map((count, at) => ({
    type: "tool-call" as const,
    tool_call_id: `q${at}`,
    tool_name: "ask_user_question",
    args: { questions: Array.from({ length: count }, () => ({ question: "Where?" })) },
  }));
  const requested = content.map((one) => ({ tool_call_id: one.tool_call_id, tool_name: one.tool_name, kind: "question" as const }));
  return { ...busy, status: "requires_action", requested, messages: [...busy.messages, { ...last, id: 99, role: "assistant", content }] };
}

const ANSWERS = `/api/v1/chats/${CHAT_ID}/answers`;

async function reply(state: ServerState, text: string): Promise<void> {
  page.replies[`POST ${ANSWERS}`] = Response.json({});
  await page.show(CHAT_ID, state);
  fireEvent.change(box(), { target: { value: text } });
  fireEvent.keyDown(box(), { key: "Enter" });
}

test("a reply that is typed while a question waits answers it", async () => {
  await reply(asking(1), "in the attic");
  expect(screen.getByRole("button", { name: "Answer" })).toBeTruthy();
  await vi.waitFor(() => expect(page.requests).toHaveLength(1));
  expect(page.requests[0]).toMatchObject({
    path: ANSWERS,
    body: { answers: [{ tool_call_id: "q0", decision: "answer", replies: [{ labels: [], text: "in the attic" }] }] },
  });
  await vi.waitFor(() => expect(box().value).toBe(""));
  expect(page.sent).toEqual([]);
});

test.each([
  ["two questions of one call", [2]],
  ["two calls", [1, 1]],
])("of %s the page asks for the form, and keeps what was typed", async (_, counts) => {
  await reply(asking(...counts), "in the attic");
  expect(page.requests).toEqual([]);
  expect(page.sent).toEqual([]);
  expect(box().value).toBe("in the attic");
});

test.each([
  ["a PDF", "a.pdf", "application/pdf", { pdfs: false }, true],
  ["an image", "a.png", "image/png", { images: false }, true],
  ["a PDF for a model that nothing is known of", "a.pdf", "application/pdf", {}, false],
  ["a text", "a.txt", "text/plain", { pdfs: false, images: false }, false],
])("of %s it is known before sending whether the model can read it", (_, name, mediaType, capabilities, isSaid) => {
  const model = { capabilities } as unknown as Model;
  expect(unreadableFiles(model, [{ name, mediaType }])).toEqual(isSaid ? [name] : []);
});

test("a stop that lets the queue go on at once says so", async () => {
  page.replies[`POST /api/v1/chats/${CHAT_ID}/interrupt`] = Response.json({});
  await page.show(CHAT_ID, queued("one", "two"));
  render(<Toasts />);
  await userEvent.click(screen.getByRole("button", { name: "Stop" }));
  expect(await screen.findByText(/goes on at once with the first of 2 messages/)).toBeTruthy();
});
