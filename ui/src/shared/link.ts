/** What a public link shows. Its secret is the fragment of the address, which browsers send nowhere; requests have it in their body, and no cookie. */
import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import type { components } from "@/api/schema";

export type Shared = components["schemas"]["SharedChatReply"];
export type SharedMessage = Shared["messages"][number];
export type SharedPart = SharedMessage["parts"][number];
export type Problem = "gone" | "busy" | "offline";

const TIMEOUT_MS = 30_000;

export class LinkProblem extends Error {
  constructor(readonly problem: Problem) {
    super(problem);
  }
}

async function ask(path: string, body: object): Promise<Response> {
  let reply: Response;
  try {
    reply = await fetch(path, {
      method: "POST",
      credentials: "omit",
      referrerPolicy: "no-referrer",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch {
    throw new LinkProblem("offline");
  }
  if (reply.ok) return reply;
  throw new LinkProblem(reply.status === 429 ? "busy" : reply.status >= 500 ? "offline" : "gone");
}

export async function loadFile(secret: string, messageId: number, part: number): Promise<Blob> {
  const reply = await ask("/api/v1/public/file", { secret, message_id: messageId, part });
  return reply.blob();
}

const onHash = (listener: () => void): (() => void) => {
  window.addEventListener("hashchange", listener);
  return () => window.removeEventListener("hashchange", listener);
};

export const useSecret = (): string => useSyncExternalStore(onHash, () => window.location.hash.slice(1));

interface Loaded {
  shared: Shared | null;
  problem: Problem | null;
  busy: boolean;
}

/** The messages so far, and how to load the next ones. */
export function useShared(secret: string): Loaded & { loadMore: () => void } {
  const [state, setState] = useState<Loaded>({ shared: null, problem: null, busy: true });
  const current = useRef(secret);
  const load = useCallback(async (before: Shared | null) => {
    const asked = current.current;
    setState({ shared: before, problem: null, busy: true });
    try {
      const reply = await ask("/api/v1/public/chat", { secret: asked, after: before?.next_after ?? 0 });
      const found = (await reply.json()) as Shared;
      if (current.current !== asked) return;
      setState({ shared: { ...found, messages: [...(before?.messages ?? []), ...found.messages] }, problem: null, busy: false });
    } catch (error) {
      if (current.current !== asked) return;
      setState({ shared: before, problem: error instanceof LinkProblem ? error.problem : "offline", busy: false });
    }
  }, []);
  useEffect(() => {
    current.current = secret;
    // eslint-disable-next-line react-hooks/set-state-in-effect -- The fragment is a store outside of React.
    void load(null);
  }, [secret, load]);
  return { ...state, loadMore: () => void load(state.shared) };
}
