/** The models that a chat can use. */
import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import { api, type ApiError } from "@/api/client";
import type { components } from "@/api/schema";

export type Model = components["schemas"]["ModelReply"];

export const MODELS_KEY = ["models"] as const;
const MAX_PAGES = 5;

async function fetchModels({ signal }: { signal: AbortSignal }): Promise<Model[]> {
  const models: Model[] = [];
  let cursor: string | undefined;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const reply = await api.GET("/api/v1/models", { query: { limit: 200, cursor }, signal });
    models.push(...reply.items);
    if (reply.next_cursor === null) break;
    cursor = reply.next_cursor;
  }
  return models;
}

/** Those that are enabled. */
export function useModels(): UseQueryResult<Model[], ApiError> {
  return useQuery<Model[], ApiError>({ queryKey: MODELS_KEY, queryFn: fetchModels, staleTime: 60_000 });
}
