import { act, cleanup, renderHook } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { setCsrfToken } from "@/api/client";
import { QueryProvider } from "@/api/queries";
import { ConnectionProvider } from "@/connection";
import { Connection } from "@/connection/connection";
import { fakeDeps } from "@/connection/testing";
import { useChatActions } from "./chat-menu";
import { makeChat } from "./sidebar/testing";

const sent: unknown[] = [];

beforeEach(() => {
  sent.length = 0;
  setCsrfToken("t");
  vi.stubGlobal("fetch", (_url: string, init: RequestInit) => {
    if (init.method === "PATCH") sent.push(JSON.parse(init.body as string));
    return Promise.resolve(Response.json({ user: { id: "u1" }, csrf_token: "t" }));
  });
});
afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

function Page({ children }: { children: ReactNode }) {
  const connection = new Connection({ ...fakeDeps(), outbox: { post: () => Promise.resolve(1), storage: localStorage } });
  return (
    <QueryProvider>
      <ConnectionProvider connection={connection}>{children}</ConnectionProvider>
    </QueryProvider>
  );
}

it("the undo of an archived chat pins it again where it was", async () => {
  const { result } = renderHook(() => useChatActions(), { wrapper: Page });
  const pinned = makeChat("a", { pin_order: 2 });
  await act(() => result.current.archive(pinned, true));
  await act(() => result.current.undo(pinned, true));
  expect(sent).toEqual([{ archived: true }, { archived: false }, { pin_order: 2 }]);
});
