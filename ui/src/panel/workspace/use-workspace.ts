import { useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { useCallback } from "react";
import { api } from "@/api/client";
import type { ApiError } from "@/api/errors";
import { type Build, isActive, type Workspace } from "./state";

const BUSY_MS = 1500;
const IDLE_MS = 30_000;
const SHOWN_BUILDS = 10;

export const workspaceKey = (id: string): readonly unknown[] => ["panel", "workspace", id];

export function useWorkspace(id: string): UseQueryResult<Workspace, ApiError> {
  return useQuery<Workspace, ApiError>({
    queryKey: workspaceKey(id),
    queryFn: ({ signal }) => api.GET("/api/v1/workspaces/{workspace_id}", { path: { workspace_id: id }, signal }),
    refetchInterval: (found) => (isActive(found.state.data?.latest_build ?? null) ? BUSY_MS : IDLE_MS),
    staleTime: 0,
  });
}

/** The last builds; read again when the latest one changes. */
export function useBuilds(workspace: Workspace): readonly Build[] {
  const latest = workspace.latest_build;
  const query = useQuery({
    queryKey: [...workspaceKey(workspace.id), "builds", latest?.id, latest?.status],
    queryFn: ({ signal }) =>
      api.GET("/api/v1/workspaces/{workspace_id}/builds", { path: { workspace_id: workspace.id }, query: { limit: SHOWN_BUILDS }, signal }),
    placeholderData: (before) => before,
  });
  return query.data?.items ?? (latest === null ? [] : [latest]);
}

export function useTemplateName(templateId: string): string | null {
  const query = useQuery({
    queryKey: ["panel", "template", templateId],
    queryFn: ({ signal }) => api.GET("/api/v1/templates/{template_id}", { path: { template_id: templateId }, signal }),
    staleTime: Infinity,
  });
  return query.data === undefined ? null : query.data.display_name || query.data.name;
}

export function useRefreshWorkspace(id: string): () => void {
  const client = useQueryClient();
  return useCallback(() => void client.invalidateQueries({ queryKey: workspaceKey(id) }), [client, id]);
}
