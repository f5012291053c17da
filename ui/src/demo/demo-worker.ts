/** The worker process of the demo: whether it runs, and how to start and kill it. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { api } from "@/api/client";
import { ApiError } from "@/api/errors";
import { useMe } from "@/api/queries";

const KEY = ["demo"] as const;

/** Null while it is not known, and for those who may not ask. */
export function useDemo() {
  const role = useMe().data?.user.role;
  const { data } = useQuery({
    queryKey: KEY,
    queryFn: ({ signal }) => api.GET("/api/v1/demo", { signal }),
    enabled: role === "admin",
    refetchInterval: 15_000,
  });
  return data ?? null;
}

export function useDemoWorker() {
  const client = useQueryClient();
  const start = async () => {
    client.setQueryData(KEY, await api.POST("/api/v1/demo/worker"));
  };
  /** Starts the next one at once, so that there is one to kill again. */
  const kill = async () => {
    await api.POST("/api/v1/demo/kill-worker");
    await client.invalidateQueries({ queryKey: KEY });
  };
  return { start, kill };
}

/** Starts the worker where that is allowed. Without it the demo still runs, on the server's own worker. */
export async function startIfAllowed(start: () => Promise<void>): Promise<void> {
  try {
    await start();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}
