/** The user's connections to MCP servers. */
import { useQueryClient } from "@tanstack/react-query";
import { Plug, PlugZap } from "lucide-react";
import { useState } from "react";
import { beginConnect, connectionWords, disconnect, MCP_KEY, type McpServer, needsConnect, useConnectedNotice, useMcpServers } from "@/api/mcp";
import { Button, ConfirmDialog, EmptyState, errorWords, Icon, Tag } from "@/components";
import { toast } from "@/platform/toasts";
import { Loaded, Section, SettingsPage } from "../frame";
import { GitHosts } from "./git-hosts";

export function ConnectionsPage() {
  const servers = useMcpServers();
  useConnectedNotice();
  return (
    <SettingsPage title="Connections" lead="Other services that your chats use with your own account.">
      <Section title="MCP servers">
        <Loaded query={servers}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState icon={Plug}>No MCP servers are set up. An administrator can add them.</EmptyState>
            ) : (
              <div className="settings-card">
                {list.map((server) => (
                  <ServerRow key={server.id} server={server} />
                ))}
              </div>
            )
          }
        </Loaded>
      </Section>
      <GitHosts />
    </SettingsPage>
  );
}

function ServerRow({ server }: { server: McpServer }) {
  const client = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [ending, setEnding] = useState(false);
  const connect = async () => {
    setBusy(true);
    try {
      window.location.assign(await beginConnect(server.id));
    } catch (error) {
      toast({ text: errorWords(error).text, tone: "danger" });
      setBusy(false);
    }
  };
  const isOn = server.connection.state === "connected" || server.connection.state === "ready";
  return (
    <div className="settings-resource">
      <Icon of={isOn ? PlugZap : Plug} className={isOn ? "tone-ok" : server.connection.state === "failed" ? "tone-danger" : "tone-subtle"} label={connectionWords(server.connection)} />
      <div className="ui-grow">
        <h3>
          {server.display_name}
          <Tag tone={isOn ? "ok" : server.connection.state === "failed" ? "danger" : undefined}>{connectionWords({ ...server.connection, reason: "" })}</Tag>
        </h3>
        <p>{[server.description, server.connection.reason].filter(Boolean).join(" · ")}</p>
      </div>
      {server.auth === "oauth2" && (
        <div className="ui-actions">
          {needsConnect(server) ? (
            <Button size="sm" busy={busy} onClick={() => void connect()}>Connect</Button>
          ) : (
            <Button size="sm" variant="quiet" onClick={() => setEnding(true)}>Disconnect</Button>
          )}
        </div>
      )}
      <ConfirmDialog
        open={ending}
        onOpenChange={setEnding}
        title={`Disconnect ${server.display_name}?`}
        description="Your chats can no longer use its tools. The tokens are deleted here and revoked there."
        action="Disconnect"
        onConfirm={async () => {
          const failure = await disconnect(server.id);
          if (failure !== "") toast(`Disconnected. The tokens were not revoked there: ${failure}`);
          await client.invalidateQueries({ queryKey: MCP_KEY });
        }}
      />
    </div>
  );
}
