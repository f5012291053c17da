import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api } from "@/api/client";

const WAIT_MS = 150;

/** A value that follows another when that has been still for a moment. */
export function useSettled<T>(value: T, waitMs = WAIT_MS): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), waitMs);
    return () => clearTimeout(timer);
  }, [value, waitMs]);
  return settled;
}

/** Chats with these words in a message or the title, by their newest hit. */
export function useChatSearch(text: string, limit: number) {
  const words = useSettled(text.trim());
  return useQuery({
    queryKey: ["chat-search", words, limit],
    queryFn: ({ signal }) => api.GET("/api/v1/chats", { query: { q: words, limit }, signal }),
    enabled: words !== "",
    placeholderData: keepPreviousData,
    staleTime: 5000,
  });
}
