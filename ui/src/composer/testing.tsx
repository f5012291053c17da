/** A composer in a page of tests: the real connection and stores, a fake socket, and a server of replies. */
import { QueryClient } from "@tanstack/react-query";
import { act, cleanup, render } from "@testing-library/react";
import { vi } from "vitest";
import { setCsrfToken } from "@/api/client";
import { QueryProvider } from "@/api/queries";
import type { SendBody } from "@/chat-state/outbox";
import { CHAT_ID, groupSince, type ServerState } from "@/chat-state/testing";
import { ConnectionProvider } from "@/connection";
import { Connection } from "@/connection/connection";
import { fakeDeps, FakeSocket } from "@/connection/testing";
import { Composer } from "./composer";
import { EMPTY_DRAFT } from "./draft";
import { changeDraft, saveDrafts } from "./draft-store";

export interface Request {
  readonly method: string;
  readonly path: string;
  readonly body: unknown;
}

const MODELS = [
  {
    id: "m1",
    name: "sable",
    display_name: "Sable 4",
    provider: "Main gateway",
    model: "sable-4",
    enabled: true,
    is_default: true,
    capabilities: { efforts: ["none", "low", "medium", "high"], context_limit: 200_000 },
    reasoning_effort: { default: "medium" },
    prices: { input: "3", output: "15" },
  },
  {
    id: "m2",
    name: "lark",
    display_name: "Lark 2 32B",
    provider: "Local",
    model: "lark-2",
    enabled: true,
    is_default: false,
    capabilities: { context_limit: 64_000 },
  },
];

/** Replies by "METHOD path"; a function sees the request. */
export type Replies = Record<string, Response | ((request: Request) => Response)>;

export class TestPage {
  readonly requests: Request[] = [];
  readonly sent: { readonly chatId: string; readonly body: SendBody; readonly key: string }[] = [];
  readonly replies: Replies = {
    "GET /api/v1/auth/me": Response.json({ user: { id: "u1" }, csrf_token: "t" }),
    "GET /api/v1/models": Response.json({ items: MODELS, has_more: false, next_cursor: null }),
    [`GET /api/v1/chats/${CHAT_ID}`]: Response.json({ id: CHAT_ID, version: 1, archived: false, last_model_config_id: "m1" }),
  };
  postFailure: Error | null = null;

  constructor() {
    cleanup();
    localStorage.clear();
    setCsrfToken("t");
    for (const key of [CHAT_ID, `${CHAT_ID}.edit`, "new"]) changeDraft(key, () => EMPTY_DRAFT);
    saveDrafts();
    vi.stubGlobal("fetch", this.fetch);
    vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener: () => undefined, removeEventListener: () => undefined }));
    fakeDeps();
  }

  readonly fetch = (url: string, init: RequestInit): Promise<Response> => {
    const path = new URL(url, "http://test").pathname;
    const body: unknown = typeof init.body === "string" ? JSON.parse(init.body) : init.body;
    const request = { method: init.method ?? "GET", path, body };
    if (request.method !== "GET") this.requests.push(request);
    const reply = this.replies[`${request.method} ${path}`];
    if (reply === undefined) return Promise.resolve(Response.json({ code: "not_found", message: "no" }, { status: 404 }));
    return Promise.resolve(typeof reply === "function" ? reply(request) : reply.clone());
  };

  async show(chatId: string | null, state?: ServerState): Promise<void> {
    const deps = fakeDeps();
    const post = (id: string, body: SendBody, key: string): Promise<number> => {
      this.sent.push({ chatId: id, body, key });
      return this.postFailure === null ? Promise.resolve(1000) : Promise.reject(this.postFailure);
    };
    const connection = new Connection({ ...deps, outbox: { post, storage: localStorage } });
    const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
    render(
      <QueryProvider client={client}>
        <ConnectionProvider connection={connection}>
          <Composer chatId={chatId} />
        </ConnectionProvider>
      </QueryProvider>,
    );
    await vi.waitFor(() => FakeSocket.last);
    act(() => FakeSocket.last.open());
    if (state !== undefined) await this.serve(state);
  }

  /** The server sends the whole state again. */
  async serve(state: ServerState): Promise<void> {
    await act(async () => {
      FakeSocket.last.say(...groupSince(state, 0, true));
      await new Promise((done) => requestAnimationFrame(done));
      await new Promise((done) => setTimeout(done, 20));
    });
  }
}
