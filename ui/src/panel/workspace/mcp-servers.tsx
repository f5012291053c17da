import { Plug } from "lucide-react";
import { Icon } from "@/components";
import type { ChatReply } from "@/connection";

const MAX_SHOWN = 50;

/** The MCP servers of the workspace's `.mcp.json`, and why some cannot be used. */
export function WorkspaceMcpServers({ chat }: { readonly chat: ChatReply }) {
  const servers = chat.workspace_mcp_servers ?? [];
  if (servers.length === 0) return null;
  return (
    <>
      <h3 className="panel-heading">MCP servers</h3>
      <ul className="workspace-resources">
        {servers.slice(0, MAX_SHOWN).map((server) => (
          <li key={server.name}>
            <Icon of={Plug} size="sm" className={(server.error ?? "") === "" ? "tone-subtle" : "tone-warn"} />
            <span className="ui-ellipsis" title={server.name}>
              {server.name}
            </span>
            <span className="tone-subtle">{(server.error ?? "") === "" ? (server.tools === 1 ? "1 tool" : `${server.tools} tools`) : server.error}</span>
          </li>
        ))}
      </ul>
    </>
  );
}
