/** Gives the page its connection. It connects once somebody is signed in. */
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, useContext, useEffect, useMemo, useState } from "react";
import { api, ApiError, onSignedOut } from "@/api/client";
import { queryKeys, useMe } from "@/api/queries";
import type { SendBody } from "@/chat-state/outbox";
import { ChatListSync } from "./chat-list-sync";
import { Connection } from "./connection";

interface Provided {
  readonly connection: Connection;
  readonly sync: ChatListSync;
}

const ConnectionContext = createContext<Provided | null>(null);

function useProvided(): Provided {
  const provided = useContext(ConnectionContext);
  if (provided === null) throw new Error("There is no ConnectionProvider above this component.");
  return provided;
}

export function useConnectionOwner(): Connection {
  return useProvided().connection;
}

export function useChatListSync(): ChatListSync {
  return useProvided().sync;
}

function socketUrl(): string {
  const url = new URL("/api/v1/ws", window.location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

async function isSignedIn(): Promise<boolean> {
  try {
    await api.GET("/api/v1/auth/me", { timeoutMs: 10_000 });
    return true;
  } catch (error) {
    return !(error instanceof ApiError && error.status === 401);
  }
}

async function postMessage(chatId: string, body: SendBody, key: string): Promise<number> {
  const reply = await api.POST("/api/v1/chats/{chat_id}/messages", {
    path: { chat_id: chatId },
    body,
    headers: { "Idempotency-Key": key },
  });
  return reply.version;
}

function createConnection(): Connection {
  return new Connection({
    connect: () => new WebSocket(socketUrl()),
    isSignedIn,
    isOnline: () => navigator.onLine,
    outbox: { post: postMessage, storage: window.localStorage },
  });
}

export function ConnectionProvider({ children, connection }: { children: ReactNode; connection?: Connection }) {
  const client = useQueryClient();
  const [owned] = useState(() => connection ?? createConnection());
  const [sync] = useState(() => new ChatListSync(client));
  const userId = useMe().data?.user.id;
  useEffect(() => onSignedOut(() => askAgainWhoIsSignedIn(client)), [client]);
  useEffect(() => {
    if (userId === undefined) return;
    owned.start(userId);
    const release = owned.followChatList(sync);
    return () => {
      release();
      owned.stop();
    };
  }, [owned, sync, userId]);
  const value = useMemo(() => ({ connection: owned, sync }), [owned, sync]);
  return <ConnectionContext value={value}>{children}</ConnectionContext>;
}

/** The answer, 401, asks the user to sign in again, over the page. It is not asked again because of that answer. */
function askAgainWhoIsSignedIn(client: QueryClient): void {
  const state = client.getQueryState(queryKeys.me);
  if (state?.status !== "success" || state.fetchStatus === "fetching") return;
  void client.invalidateQueries({ queryKey: queryKeys.me });
}
