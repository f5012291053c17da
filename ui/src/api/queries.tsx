/** The client of TanStack Query for the whole page, the keys of all queries, and those queries that several areas need. */
import { QueryClient, QueryClientProvider, useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import type { Effort } from "@/chat-state/outbox";
import { api, ApiError, setCsrfToken } from "./client";
import type { components } from "./schema";

export type Me = components["schemas"]["MeReply"];

/** The keys of all queries. Whoever reads or invalidates the same thing uses the same key. */
export const queryKeys = {
  me: ["me"],
  setup: ["setup"],
  signInMethods: ["sign-in-methods"],
  readiness: ["readiness"],
  /** The one cache of models: whatever shows a model reads it, and a change of a model or provider empties it. */
  models: ["models"],
  mcpServers: ["mcp-servers"],
  spendWarning: ["spend-warning"],
  usageStatus: ["usage-status"],
  demoWorker: ["demo"],
  workspaces: ["panel", "workspaces"],
  /** Those that may be used for new workspaces. */
  templates: ["templates"],
  /** All lists of chats; `chatList` is one of them. */
  chats: ["chats"],
  chatList: (filters: unknown) => ["chats", filters],
  /** The details of all chats; `chat` is one of them. */
  anyChat: ["chat"],
  chat: (chatId: string | null) => ["chat", chatId],
  chatCost: (chatId: string, answer: unknown) => ["chat-cost", chatId, answer],
  chatAccess: (chatId: string) => ["acl", chatId],
  publicLinks: (chatId: string) => ["public-links", chatId],
  sharedPreviews: (chatId: string) => ["panel", "previews", chatId],
  fileText: (url: string) => ["file-text", url],
  chatMatches: (chatId: string, words: string) => ["chat-matches", chatId, words],
  chatSearch: (words: string, limit: number) => ["chat-search", words, limit],
  /** `projects()` is all of them. */
  projects: (...name: readonly unknown[]) => ["projects", ...name],
  directory: (text: string) => ["directory", text],
  /** `rewrites`: how often messages of the chat were replaced while it was open. */
  versions: (chatId: string, rewrites: number) => ["timeline", "versions", chatId, rewrites],
  ratings: (chatId: string) => ["timeline", "ratings", chatId],
  note: (id: string) => ["timeline", "note", id],
  takeovers: (chatId: string, version: unknown) => ["timeline", "takeovers", chatId, version],
  processes: (chatId: string) => ["timeline", "processes", chatId],
  anyChanges: (chatId: string) => ["panel", "changes", chatId],
  changes: (chatId: string, scope: unknown) => ["panel", "changes", chatId, scope],
  runs: (chatId: string) => ["panel", "runs", chatId],
  debugCalls: (chatId: string) => ["panel", "debug", chatId],
  debugCall: (chatId: string, id: unknown) => ["panel", "debug", chatId, id],
  providerTrial: (providerId: string | undefined) => ["trial", providerId],
  workspace: (id: string, ...part: readonly unknown[]) => ["panel", "workspace", id, ...part],
  template: (id: unknown) => ["panel", "template", id],
  /** A resource of the settings, by its name and what it depends on. */
  settings: (...name: readonly unknown[]) => ["settings", ...name],
} as const;

const MAX_RETRIES = 3;

function createQueryClient(): QueryClient {
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

async function fetchMe({ signal }: { signal: AbortSignal }): Promise<Me> {
  const me = await api.GET("/api/v1/auth/me", { signal });
  setCsrfToken(me.csrf_token);
  return me;
}

/** Who is signed in. Its error has the status 401 if nobody is. */
export function useMe(): UseQueryResult<Me, ApiError> {
  return useQuery<Me, ApiError>({ queryKey: queryKeys.me, queryFn: fetchMe, staleTime: 5 * 60_000 });
}

// The models that a chat can use.

export type Model = components["schemas"]["ModelReply"];

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
  return useQuery<Model[], ApiError, T>({ queryKey: queryKeys.models, queryFn: fetchModels, staleTime: 60_000, select });
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

// The efforts of models.

const EFFORTS: readonly Effort[] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const EFFORT_NAMES: Record<Effort, string> = {
  none: "Off",
  minimal: "Minimal",
  low: "Low",
  medium: "Medium",
  high: "High",
  xhigh: "Very high",
  max: "Max",
};
export function effortName(effort: Effort): string {
  return EFFORT_NAMES[effort];
}

/** In rising order, up to the model's highest. */
export function effortsOf(model: Model): readonly Effort[] {
  const offered = new Set(model.capabilities.efforts ?? []);
  const max = model.reasoning_effort?.max;
  const top = max == null ? EFFORTS.length : EFFORTS.indexOf(max);
  return EFFORTS.filter((effort, index) => offered.has(effort) && index <= top);
}

// The MCP servers that the user's chats can use, and the user's connections to them.

export type McpServer = components["schemas"]["McpServerReply"];

const PAGE = 200;

export function useMcpServers(isWanted = true) {
  return useQuery({
    queryKey: queryKeys.mcpServers,
    queryFn: async ({ signal }) => (await api.GET("/api/v1/mcp-servers", { query: { limit: PAGE }, signal })).items,
    enabled: isWanted,
    staleTime: 30_000,
  });
}

/** Whether a chat uses a server: forced, chosen, or by default if nothing was chosen. */
export function isUsed(server: Pick<McpServer, "id" | "availability">, chosen: readonly string[] | null): boolean {
  if (server.availability === "force_on") return true;
  return chosen === null ? server.availability === "default_on" : chosen.includes(server.id);
}

/** The whole choice after one server was switched. */
export function withServer(servers: readonly McpServer[], chosen: readonly string[] | null, id: string, isOn: boolean): string[] {
  return servers.filter((one) => (one.id === id ? isOn : isUsed(one, chosen)) && one.availability !== "force_on").map((one) => one.id);
}

const WORDS: Readonly<Record<McpServer["connection"]["state"], string>> = {
  ready: "Ready",
  connected: "Connected",
  needs_connect: "Not connected",
  failed: "Connection ended",
};

export function connectionWords({ state, reason }: McpServer["connection"]): string {
  return state === "failed" && reason !== "" ? `${WORDS[state]}: ${reason}` : WORDS[state];
}

export const needsConnect = ({ connection }: McpServer): boolean => connection.state === "needs_connect" || connection.state === "failed";

/** The address to send the user to. */
export async function beginConnect(serverId: string): Promise<string> {
  const begun = await api.POST("/api/v1/mcp-servers/{mcp_server_id}/connect", { path: { mcp_server_id: serverId }, timeoutMs: 60_000 });
  return begun.authorization_url;
}

export async function disconnect(serverId: string): Promise<string> {
  const ended = await api.DELETE("/api/v1/mcp-servers/{mcp_server_id}/connection", { path: { mcp_server_id: serverId } });
  return ended.failure;
}

/** The window that came back from the authorization server says so; the list is read again then, and when this page is looked at. */
export function useConnectedNotice(): void {
  const client = useQueryClient();
  useEffect(() => {
    const read = () => void client.invalidateQueries({ queryKey: queryKeys.mcpServers });
    const take = (event: MessageEvent<unknown>) => {
      const told = event.data as { type?: unknown } | null;
      if (event.origin === window.location.origin && told?.type === "mcp-oauth2-complete") read();
    };
    window.addEventListener("message", take);
    window.addEventListener("focus", read);
    return () => {
      window.removeEventListener("message", take);
      window.removeEventListener("focus", read);
    };
  }, [client]);
}
