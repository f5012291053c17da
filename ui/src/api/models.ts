/** The models that a chat can use. */
import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import type { components } from "@/api/schema";
import { api } from "./client";
import type { ApiError } from "./errors";

export type Model = components["schemas"]["ModelReply"];

/** The one cache of models: whatever shows a model reads it, and a change of a model or provider empties it. */
export const MODELS_KEY = ["models"] as const;
const MAX_PAGES = 5;

async function fetchModels({ signal }: { signal: AbortSignal }): Promise<Model[]> {
  const models: Model[] = [];
  let cursor: string | undefined;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const reply = await api.GET("/api/v1/models", { query: { limit: 200, include_disabled: true, cursor }, signal });
    models.push(...reply.items);
    if (reply.next_cursor === null) break;
    cursor = reply.next_cursor;
  }
  return models;
}

function useModelsAs<T>(select: (models: Model[]) => T): UseQueryResult<T, ApiError> {
  return useQuery<Model[], ApiError, T>({ queryKey: MODELS_KEY, queryFn: fetchModels, staleTime: 60_000, select });
}

/** All models, also those that are disabled or deleted: their names are in old chats. */
export const useAllModels = (): UseQueryResult<Model[], ApiError> => useModelsAs(asTheyAre);

/** Those that a chat can use. */
export const useModels = (): UseQueryResult<Model[], ApiError> => useModelsAs(usable);

const asTheyAre = (models: Model[]): Model[] => models;
const usable = (models: Model[]): Model[] => models.filter((model) => model.enabled && model.deleted !== true);

/** Names of models by their id. */
export function useModelNames(): (id: string | null) => string | null {
  const { data } = useModelsAs(namesById);
  return (id) => (id === null ? null : (data?.get(id) ?? null));
}

const namesById = (models: Model[]): ReadonlyMap<string, string> =>
  new Map(models.map((model) => [model.id, model.display_name === "" ? model.name : model.display_name]));

/** Whether a model is the scripted one. */
export function useDemoModel(modelId: string | null): boolean {
  return useAllModels().data?.some((model) => model.id === modelId && model.provider === "demo") ?? false;
}

/** Whether nobody has set up a provider: the scripted model answers by default. */
export function useIsDemo(): boolean {
  return useAllModels().data?.some((model) => model.is_default && model.provider === "demo") ?? false;
}
