import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { api, ApiError, onSignedOut, setCsrfToken, urlOf } from "./client";

interface Call {
  readonly url: string;
  readonly init: RequestInit;
}

let calls: Call[] = [];
let replies: (() => Response | Promise<Response>)[] = [];

function json(status: number, body: unknown, headers: Record<string, string> = {}): () => Response {
  return () => new Response(JSON.stringify(body), { status, headers: { "Content-Type": "application/json", ...headers } });
}

function headerOf(call: Call | undefined, name: string): string | null {
  return new Headers(call?.init.headers).get(name);
}

async function failureOf(promise: Promise<unknown>): Promise<ApiError> {
  const error: unknown = await promise.then(
    () => null,
    (reason: unknown) => reason,
  );
  if (!(error instanceof ApiError)) throw new Error("it did not fail with an ApiError");
  return error;
}

beforeEach(() => {
  calls = [];
  replies = [];
  setCsrfToken(null);
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    calls.push({ url, init });
    const reply = replies.shift();
    if (reply === undefined) return Promise.reject(new TypeError("Failed to fetch"));
    return Promise.resolve(reply());
  });
});

afterEach(() => vi.unstubAllGlobals());

test("a path is filled in and a query repeats lists and leaves out what is not set", () => {
  const url = urlOf("/api/v1/chats/{chat_id}", { path: { chat_id: "a/b" }, query: { label: ["k:v", "x:y"], q: undefined } });
  expect(url).toBe("/api/v1/chats/a%2Fb?label=k%3Av&label=x%3Ay");
});

test("a read needs no token, a change fetches it once for many", async () => {
  replies = [json(200, { items: [] }), json(200, { csrf_token: "t1" }), json(200, { version: 2 }), json(200, { version: 3 })];
  await api.GET("/api/v1/chats");
  expect(calls).toHaveLength(1);
  const body = { content: [{ type: "text" as const, text: "hi" }] };
  await Promise.all([
    api.POST("/api/v1/chats/{chat_id}/messages", { path: { chat_id: "c" }, body }),
    api.POST("/api/v1/chats/{chat_id}/messages", { path: { chat_id: "c" }, body }),
  ]);
  expect(calls.map((call) => call.url)).toEqual(["/api/v1/chats", "/api/v1/auth/me", "/api/v1/chats/c/messages", "/api/v1/chats/c/messages"]);
  expect(headerOf(calls[3], "X-CSRF-Token")).toBe("t1");
});

test("a refused token is replaced and the request sent again", async () => {
  setCsrfToken("old");
  replies = [json(403, { code: "csrf_token_required", message: "no" }), json(200, { csrf_token: "new" }), () => new Response(null, { status: 204 })];
  await api.PATCH("/api/v1/chats/{chat_id}", { path: { chat_id: "c" }, body: { title: "New" } });
  expect(calls.map((call) => headerOf(call, "X-CSRF-Token"))).toEqual(["old", null, "new"]);
});

test("an error has what the server said", async () => {
  replies = [json(429, { code: "rate_limited", message: "Slow down.", validations: [] }, { "Retry-After": "7" })];
  const error = await failureOf(api.GET("/api/v1/chats"));
  expect(error).toMatchObject({ status: 429, code: "rate_limited", message: "Slow down.", retryAfterMs: 7000, isTemporary: true });
});

test("a reply of a proxy without JSON is an error with its status", async () => {
  replies = [() => new Response("<h1>Bad gateway</h1>", { status: 502 })];
  expect(await failureOf(api.GET("/api/v1/chats"))).toMatchObject({ status: 502, code: "http_502" });
});

test("a server that cannot be reached is a temporary error", async () => {
  expect(await failureOf(api.GET("/api/v1/chats"))).toMatchObject({ status: 0, code: "network", isTemporary: true });
});

test("an abort by the caller is not an ApiError", async () => {
  vi.stubGlobal("fetch", (_: string, init: RequestInit) => Promise.reject(init.signal?.reason as Error));
  const abort = new AbortController();
  abort.abort();
  await expect(api.GET("/api/v1/chats", { signal: abort.signal })).rejects.toMatchObject({ name: "AbortError" });
});

test("listeners hear of a lost session, but not of a wrong password", async () => {
  const listener = vi.fn();
  const stop = onSignedOut(listener);
  replies = [json(401, { code: "invalid_login", message: "wrong" }), json(401, { code: "unauthorized", message: "gone" })];
  await failureOf(api.POST("/api/v1/auth/login", { body: { username: "ada", password: "x" } }));
  expect(listener).not.toHaveBeenCalled();
  await failureOf(api.GET("/api/v1/chats"));
  expect(listener).toHaveBeenCalledOnce();
  stop();
});
