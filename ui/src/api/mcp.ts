/** The MCP servers that the user's chats can use, and the user's connections to them. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { api } from "./client";
import type { components } from "./schema";

export type McpServer = components["schemas"]["McpServerReply"];

export const MCP_KEY = ["mcp-servers"] as const;
const PAGE = 200;

export function useMcpServers(isWanted = true) {
  return useQuery({
    queryKey: MCP_KEY,
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
    const read = () => void client.invalidateQueries({ queryKey: MCP_KEY });
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
