import { useQuery } from "@tanstack/react-query";
import { api } from "@/api/client";

/** Models of this server, for badges: ids of those that answer by a script. */
function useDemoModels() {
  return useQuery({
    queryKey: ["model-names"],
    queryFn: ({ signal }) => api.GET("/api/v1/models", { query: { limit: 200, include_disabled: true }, signal }),
    select: (page) => ({
      ids: new Set(page.items.filter((model) => model.provider === "demo").map((model) => model.id)),
      isDefault: page.items.some((model) => model.is_default && model.provider === "demo"),
    }),
    staleTime: 5 * 60_000,
  });
}

/** Whether a model is the scripted one. */
export function useDemoModel(modelId: string | null): boolean {
  const { data } = useDemoModels();
  return modelId !== null && (data?.ids.has(modelId) ?? false);
}

/** Whether nobody has set up a provider: the scripted model answers by default. */
export const useIsDemo = (): boolean => useDemoModels().data?.isDefault ?? false;
