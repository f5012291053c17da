/** MCP servers: tools from elsewhere, for all chats. */
import "@/styles/administration.css";
import { CircleCheck, CircleOff, Lock, Pencil, Plug, Plus, TriangleAlert } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, EmptyState, ErrorNote, Icon, IconButton, Tag } from "@/components";
import { Loaded, Section, SettingsPage } from "../frame";
import { readAll, useResource, useSave } from "../resource";
import type { McpConfig } from "./mcp-draft";
import { McpDrawer } from "./mcp-drawer";

type Trial = components["schemas"]["McpTrialReply"];
type Opened = McpConfig | "new" | null;

export const AVAILABILITY: Readonly<Record<McpConfig["availability"], string>> = {
  force_on: "Every chat uses it",
  default_on: "On by default",
  default_off: "Chosen for a chat",
};
export const AUTH: Readonly<Record<McpConfig["auth"], string>> = {
  none: "no authentication",
  oauth2: "each user connects",
  api_key: "one key for all",
  custom_headers: "own headers for all",
};

export function McpPage() {
  const servers = useResource(["mcp"], () => readAll((query) => api.GET("/api/v1/mcp-server-configs", { query })));
  const [opened, setOpened] = useState<Opened>(null);
  const canEdit = useMe().data?.user.role === "admin";
  return (
    <SettingsPage title="MCP servers" lead="Servers of the Model Context Protocol: their tools are offered to chats. Keys are stored encrypted and never shown again.">
      <Section title="Servers" end={canEdit && <Button icon={Plus} onClick={() => setOpened("new")}>Add a server</Button>}>
        <Loaded query={servers}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState icon={Plug}>No MCP servers yet. Add one, test it, and chats can use its tools.</EmptyState>
            ) : (
              <div className="settings-card">
                {list.map((server) => (
                  <ServerRow key={server.id} server={server} canEdit={canEdit} onEdit={() => setOpened(server)} />
                ))}
              </div>
            )
          }
        </Loaded>
      </Section>
      {opened !== null && <McpDrawer key={opened === "new" ? "new" : opened.id} server={opened === "new" ? null : opened} onClose={() => setOpened(null)} />}
    </SettingsPage>
  );
}

function ServerRow({ server, canEdit, onEdit }: { server: McpConfig; canEdit: boolean; onEdit: () => void }) {
  const trial = useSave(() => api.POST("/api/v1/mcp-server-configs/{mcp_server_id}/test", { path: { mcp_server_id: server.id }, timeoutMs: 60_000 }), { refresh: [], quiet: true });
  const hasFailed = trial.data?.ok === false || trial.error !== null;
  const isOwn = server.source === "database";
  return (
    <div className="settings-resource">
      <Icon
        of={!server.enabled ? CircleOff : hasFailed ? TriangleAlert : CircleCheck}
        className={!server.enabled ? "tone-subtle" : hasFailed ? "tone-danger" : "tone-ok"}
        label={!server.enabled ? "Disabled" : hasFailed ? "Failed" : "Enabled"}
      />
      <div className="ui-grow">
        <h3>
          {server.display_name}
          <Tag>{server.slug}</Tag>
          {!isOwn && <Tag icon={Lock}>chatd.toml</Tag>}
          {!server.enabled && <Tag>disabled</Tag>}
        </h3>
        <p>{[hostOf(server.url), AVAILABILITY[server.availability], AUTH[server.auth], listWords(server)].filter(Boolean).join(" · ")}</p>
      </div>
      <div className="ui-actions">
        {canEdit && <Button size="sm" busy={trial.isPending} onClick={() => trial.mutate(undefined)}>Test</Button>}
        {canEdit && isOwn && <IconButton icon={Pencil} label={`Edit ${server.display_name}`} onClick={onEdit} />}
      </div>
      {trial.error !== null && <div className="ui-result is-bad"><ErrorNote error={trial.error} /></div>}
      {trial.data !== undefined && <TrialTools trial={trial.data} />}
    </div>
  );
}

function TrialTools({ trial }: { trial: Trial }) {
  if (!trial.ok) {
    return (
      <div className="ui-result is-bad" role="alert">
        <div>
          <b className="ui-strong">It did not work.</b>
          <p>{trial.problem}</p>
        </div>
      </div>
    );
  }
  const used = trial.tools.filter((tool) => tool.is_used).length;
  return (
    <div className="ui-result" role="status">
      <div className="ui-grow">
        <b className="ui-strong">{used === trial.tools.length ? `${used} tools` : `${used} of ${trial.tools.length} tools are used`}</b>
        <p className="tone-muted">{trial.duration_ms} ms</p>
        <ul className="mcp-trial-tools">
          {trial.tools.map((tool) => (
            <li key={tool.name}>
              <code>{tool.name}</code>
              {!tool.is_used && <Tag>not used</Tag>}
              <span className="tone-muted ui-ellipsis">{tool.description.split("\n")[0]}</span>
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}

function listWords(server: McpConfig): string {
  if (server.allow.length > 0) return `${server.allow.length} tools allowed`;
  return server.deny.length > 0 ? `${server.deny.length} tools denied` : "";
}

function hostOf(url: string): string {
  return URL.canParse(url) ? new URL(url).host : url;
}
