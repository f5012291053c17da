/** The client of TanStack Query for the whole page, and the queries that every area needs. */
import { QueryClient, QueryClientProvider, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import type { components } from "@/api/schema";
import { api, setCsrfToken } from "./client";
import { ApiError } from "./errors";

export type Me = components["schemas"]["MeReply"];

const MAX_RETRIES = 3;

export function createQueryClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        staleTime: 30_000,
        refetchOnWindowFocus: false,
        retry: (failures, error) => failures < MAX_RETRIES && error instanceof ApiError && error.isTemporary,
      },
      mutations: { retry: false },
    },
  });
}

export function QueryProvider({ children, client }: { children: ReactNode; client?: QueryClient }) {
  const [created] = useState(() => client ?? createQueryClient());
  return <QueryClientProvider client={created}>{children}</QueryClientProvider>;
}

export const ME_KEY = ["me"] as const;

async function fetchMe({ signal }: { signal: AbortSignal }): Promise<Me> {
  const me = await api.GET("/api/v1/auth/me", { signal });
  setCsrfToken(me.csrf_token);
  return me;
}

/** Who is signed in. Its error has the status 401 if nobody is. */
export function useMe(): UseQueryResult<Me, ApiError> {
  return useQuery<Me, ApiError>({ queryKey: ME_KEY, queryFn: fetchMe, staleTime: 5 * 60_000 });
}
