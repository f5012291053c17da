/** What a chat has changed, by scope; read again when the chat changes. */
import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { api } from "@/api/client";
import type { ApiError } from "@/api/errors";
import { useChatSelector } from "@/connection";
import { keepSame, readRepository, type RepositoryChanges } from "./repository";

export type Scope = "turn" | "chat" | "git";

/** A turn of many quick steps reads the diff once, not once a step. */
const SETTLE_MS = 800;

export function useChanges(chatId: string, scope: Scope): UseQueryResult<readonly RepositoryChanges[], ApiError> {
  const version = useChatSelector(chatId, (state) => state.version);
  const query = useQuery<readonly RepositoryChanges[], ApiError>({
    queryKey: ["panel", "changes", chatId, scope],
    queryFn: async ({ signal }) => {
      const reply = await api.GET("/api/v1/chats/{chat_id}/diff", { path: { chat_id: chatId }, query: { scope }, signal });
      return reply.repositories.map(readRepository);
    },
    structuralSharing: (before, now) => keepSame(before as readonly RepositoryChanges[] | undefined, now as readonly RepositoryChanges[]),
    staleTime: 0,
  });
  const { refetch } = query;
  const read = useRef(version);
  useEffect(() => {
    if (version === read.current) return;
    const timer = setTimeout(() => {
      read.current = version;
      void refetch();
    }, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [version, refetch]);
  return query;
}
