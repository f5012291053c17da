/** The projects of the user, and what one of them has. The event `projects` of the topic `chats` makes them read again. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { api, ApiError, csrfHeaders, errorBody } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";

type Schemas = components["schemas"];
export type Project = Schemas["ProjectReply"];
export type ProjectFile = Schemas["ProjectFileReply"];
export type Member = Schemas["MemberReply"];

const PAGE = 200;

export function useProjects() {
  return useQuery({
    queryKey: queryKeys.projects("list"),
    queryFn: async ({ signal }) => (await api.GET("/api/v1/projects", { query: { limit: PAGE }, signal })).items,
    staleTime: 60_000,
  });
}

export function useProject(id: string) {
  return useQuery({
    queryKey: queryKeys.projects("one", id),
    queryFn: ({ signal }) => api.GET("/api/v1/projects/{project_id}", { path: { project_id: id }, signal }),
  });
}

export function useProjectFiles(id: string) {
  return useQuery({
    queryKey: queryKeys.projects("files", id),
    queryFn: async ({ signal }) => (await api.GET("/api/v1/projects/{project_id}/files", { path: { project_id: id }, query: { limit: PAGE }, signal })).items,
  });
}

export function useMembers(id: string) {
  return useQuery({
    queryKey: queryKeys.projects("members", id),
    queryFn: async ({ signal }) => (await api.GET("/api/v1/projects/{project_id}/members", { path: { project_id: id }, query: { limit: PAGE }, signal })).items,
  });
}

/** Reads all of it again after a change; the server also tells the other tabs. */
export function useRefreshProjects(): () => void {
  const client = useQueryClient();
  return () => void client.invalidateQueries({ queryKey: queryKeys.projects() });
}

const UPLOAD_TIMEOUT_MS = 10 * 60_000;

/** Uploads a file of this machine and adds it to the project, under its name. */
export async function addFile(projectId: string, file: File): Promise<void> {
  const reply = await fetch("/api/v1/files", {
    method: "POST",
    headers: {
      ...(await csrfHeaders()),
      "Content-Type": file.type === "" ? "application/octet-stream" : file.type,
      "Content-Disposition": `attachment; filename*=UTF-8''${encodeURIComponent(file.name).replace(/['()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`)}`,
    },
    body: file,
    signal: AbortSignal.timeout(UPLOAD_TIMEOUT_MS),
  });
  const text = await reply.text();
  if (reply.status !== 201) throw new ApiError(reply.status, errorBody(reply.status, text));
  const stored = JSON.parse(text) as { id: string };
  await api.POST("/api/v1/projects/{project_id}/files", { path: { project_id: projectId }, body: { file_id: stored.id, name: file.name } });
}
