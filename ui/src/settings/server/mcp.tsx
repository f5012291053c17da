/** MCP servers: tools from elsewhere, for all chats. */
import "@/styles/administration.css";
import { CircleCheck, CircleOff, Lock, Pencil, Plug, Plus, TriangleAlert } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Drawer, EmptyState, ErrorNote, Icon, IconButton, Switch, Tag, TextField } from "@/components";
import { Choice, Lines, Loaded, readAll, Section, SettingRow, SettingsPage, useResource, useSave } from "../frame";
import { bodyOfDraft, draftOfServer, type McpConfig, type McpDraft, NEW_SERVER, slugOf } from "./mcp-draft";
import { fieldErrors } from "./provider-drawer";

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
    <SettingsPage
      title="MCP servers"
      lead="Servers of the Model Context Protocol: their tools are offered to chats. Keys are stored encrypted and never shown again."
    >
      <Section
        title="Servers"
        end={
          canEdit && (
            <Button icon={Plus} onClick={() => setOpened("new")}>
              Add a server
            </Button>
          )
        }
      >
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
  const trial = useSave(() => api.POST("/api/v1/mcp-server-configs/{mcp_server_id}/test", { path: { mcp_server_id: server.id }, timeoutMs: 60_000 }), {
    refresh: [],
    quiet: true,
  });
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
        {canEdit && (
          <Button size="sm" busy={trial.isPending} onClick={() => trial.mutate(undefined)}>
            Test
          </Button>
        )}
        {canEdit && isOwn && <IconButton icon={Pencil} label={`Edit ${server.display_name}`} onClick={onEdit} />}
      </div>
      {trial.error !== null && (
        <div className="ui-result is-bad">
          <ErrorNote error={trial.error} />
        </div>
      )}
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

// Adds or changes an MCP server.

const REFRESH = [["mcp"]] as const;

async function save(server: McpConfig | null, draft: McpDraft): Promise<McpConfig> {
  const body = bodyOfDraft(draft);
  if (server === null) return api.POST("/api/v1/mcp-server-configs", { body });
  const { display_name: name, api_key: key, api_key_header: header, ...rest } = body;
  const given = {
    ...(name == null ? {} : { display_name: name }),
    ...(key == null ? {} : { api_key: key }),
    ...(header == null ? {} : { api_key_header: header }),
  };
  return api.PATCH("/api/v1/mcp-server-configs/{mcp_server_id}", { path: { mcp_server_id: server.id }, body: { ...rest, ...given } });
}

function McpDrawer({ server, onClose }: { server: McpConfig | null; onClose: () => void }) {
  const [draft, setDraft] = useState<McpDraft>(() => (server === null ? NEW_SERVER : draftOfServer(server)));
  const [deleting, setDeleting] = useState(false);
  const saving = useSave((given: McpDraft) => save(server, given), {
    refresh: REFRESH,
    quiet: true,
    done: "Saved. The next step of every chat knows it.",
    onDone: onClose,
  });
  const remove = useSave((id: string) => api.DELETE("/api/v1/mcp-server-configs/{mcp_server_id}", { path: { mcp_server_id: id } }), {
    refresh: REFRESH,
    quiet: true,
    onDone: onClose,
  });
  const wrong = fieldErrors(saving.error);
  const set = (change: Partial<McpDraft>) => setDraft({ ...draft, ...change });
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(draft);
  };
  return (
    <Drawer
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title={server === null ? "Add an MCP server" : `Edit ${server.display_name}`}
      footer={
        <>
          <Button type="submit" form="mcp" variant="primary" busy={saving.isPending}>
            Save
          </Button>
          <Button variant="quiet" onClick={onClose}>
            Discard
          </Button>
          <span className="ui-grow" />
          {server !== null && (
            <Button variant="danger" size="sm" onClick={() => setDeleting(true)}>
              Delete
            </Button>
          )}
        </>
      }
    >
      <form id="mcp" className="settings-form" onSubmit={submit}>
        <TextField
          label="Name"
          wide
          required
          placeholder="GitHub"
          value={draft.name}
          error={wrong.get("display_name")}
          onChange={(event) => set({ name: event.target.value })}
        />
        <TextField
          label="Short name"
          wide
          aside="the beginning of its tools' names"
          placeholder={slugOf(draft.name) || "github"}
          value={draft.slug}
          error={wrong.get("slug")}
          onChange={(event) => set({ slug: event.target.value })}
        />
        <TextField
          label="Address"
          wide
          required
          placeholder="https://mcp.example.com/mcp"
          value={draft.url}
          error={wrong.get("url")}
          onChange={(event) => set({ url: event.target.value })}
        />
        <TextField label="What it is for" wide aside="optional" value={draft.description} onChange={(event) => set({ description: event.target.value })} />
        <Choice
          label="Transport"
          value={draft.transport}
          options={[
            ["streamable_http", "Streamable HTTP"],
            ["sse", "Server-sent events (older)"],
          ]}
          onChange={(transport) => set({ transport })}
        />
        <Choice
          label="Chats"
          value={draft.availability}
          options={[
            ["default_on", "Use it by default"],
            ["default_off", "Use it when it is chosen"],
            ["force_on", "Always use it"],
          ]}
          onChange={(availability) => set({ availability })}
        />
        <Choice
          label="Authentication"
          value={draft.auth}
          options={[
            ["none", "None"],
            ["oauth2", "OAuth: each user connects"],
            ["api_key", "One key for all users"],
            ["custom_headers", "Own headers for all users"],
          ]}
          onChange={(auth) => set({ auth })}
        />
        <AuthFields draft={draft} server={server} wrong={wrong} set={set} />
        <Lines
          label="Allowed tools"
          hint="By the server's names, one a line; empty: all but the denied ones."
          value={draft.allow}
          error={wrong.get("allow")}
          onChange={(allow) => set({ allow })}
        />
        <Lines
          label="Denied tools"
          hint="One a line; ignored if any are allowed."
          value={draft.deny}
          error={wrong.get("deny")}
          onChange={(deny) => set({ deny })}
        />
        <div className="ui-form-field is-wide">
          <div className="settings-list">
            <SettingRow title="Enabled" hint="Chats can use it.">
              <Switch label="Enabled" checked={draft.enabled} onChange={(enabled) => set({ enabled })} />
            </SettingRow>
            <SettingRow title="Also in plan mode" hint="Only for servers that read and change nothing.">
              <Switch label="Also in plan mode" checked={draft.inPlanMode} onChange={(inPlanMode) => set({ inPlanMode })} />
            </SettingRow>
            <SettingRow title="Say the purpose" hint="The model says the purpose of each call, and the chat shows it.">
              <Switch label="Say the purpose" checked={draft.modelIntent} onChange={(modelIntent) => set({ modelIntent })} />
            </SettingRow>
          </div>
        </div>
        {saving.error !== null && (
          <div className="ui-form-field is-wide">
            <ErrorNote error={saving.error} />
          </div>
        )}
      </form>
      {server !== null && (
        <ConfirmDialog
          open={deleting}
          onOpenChange={setDeleting}
          title={`Delete ${server.display_name}?`}
          description="The connections of all users are deleted with it. Chats go on without its tools."
          action="Delete"
          onConfirm={() => remove.mutateAsync(server.id)}
        />
      )}
    </Drawer>
  );
}

interface AuthFieldsProps {
  draft: McpDraft;
  server: McpConfig | null;
  wrong: ReadonlyMap<string, string>;
  set: (change: Partial<McpDraft>) => void;
}

function AuthFields({ draft, server, wrong, set }: AuthFieldsProps) {
  if (draft.auth === "api_key") {
    return (
      <>
        <TextField
          label="Header"
          wide
          placeholder="Authorization"
          value={draft.keyHeader}
          error={wrong.get("api_key_header")}
          onChange={(event) => set({ keyHeader: event.target.value })}
        />
        <TextField
          label="Key"
          wide
          type="password"
          autoComplete="off"
          aside={server?.has_api_key === true ? "empty: the stored one stays" : undefined}
          value={draft.key}
          error={wrong.get("api_key")}
          onChange={(event) => set({ key: event.target.value })}
        />
      </>
    );
  }
  if (draft.auth === "custom_headers") {
    const known = server?.header_names ?? [];
    return (
      <Lines
        label="Headers"
        hint={known.length > 0 ? `Stored: ${known.join(", ")}. Empty: they stay.` : "Name: value, one a line."}
        value={draft.headers}
        error={wrong.get("headers")}
        onChange={(headers) => set({ headers })}
      />
    );
  }
  if (draft.auth !== "oauth2") return null;
  return (
    <>
      <TextField
        label="Scopes"
        wide
        aside="optional"
        placeholder="repo read:user"
        value={draft.scopes}
        error={wrong.get("scopes")}
        onChange={(event) => set({ scopes: event.target.value })}
      />
      <TextField
        label="Client id"
        wide
        aside="optional"
        hint={
          server === null
            ? "Empty: chatd registers itself when the first user connects."
            : `Empty: chatd registers itself. Browsers come back to ${server.redirect_path}`
        }
        value={draft.clientId}
        error={wrong.get("oauth.client_id")}
        onChange={(event) => set({ clientId: event.target.value })}
      />
      {draft.clientId.trim() !== "" && (
        <>
          <TextField
            label="Client secret"
            wide
            type="password"
            autoComplete="off"
            aside={server?.oauth?.has_client_secret === true ? "empty: the stored one stays" : "optional"}
            value={draft.clientSecret}
            onChange={(event) => set({ clientSecret: event.target.value })}
          />
          <TextField
            label="Authorization address"
            wide
            required
            value={draft.authorizationUrl}
            error={wrong.get("oauth.authorization_url")}
            onChange={(event) => set({ authorizationUrl: event.target.value })}
          />
          <TextField
            label="Token address"
            wide
            required
            value={draft.tokenUrl}
            error={wrong.get("oauth.token_url")}
            onChange={(event) => set({ tokenUrl: event.target.value })}
          />
        </>
      )}
    </>
  );
}
