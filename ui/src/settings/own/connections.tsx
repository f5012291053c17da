/** The user's connections to MCP servers. */
import { useQueryClient } from "@tanstack/react-query";
import { Plug, PlugZap, Plus, Trash2 } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import { beginConnect, connectionWords, disconnect, type McpServer, needsConnect, queryKeys, useConnectedNotice, useMcpServers } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Dialog, EmptyState, ErrorNote, errorWords, Field, Icon, IconButton, Tag, TextField, Time } from "@/components";
import { toast } from "@/platform/toasts";
import { Loaded, readAll, Section, SettingsPage, useResource, useSave } from "../frame";
import { fieldErrors } from "../server/provider-drawer";
import { HostCredentials } from "./host-credentials";
import { SlackLinks } from "./slack-links";

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
      <HostCredentials />
      <SlackLinks />
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
      <Icon
        of={isOn ? PlugZap : Plug}
        className={isOn ? "tone-ok" : server.connection.state === "failed" ? "tone-danger" : "tone-subtle"}
        label={connectionWords(server.connection)}
      />
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
            <Button size="sm" busy={busy} onClick={() => void connect()}>
              Connect
            </Button>
          ) : (
            <Button size="sm" variant="quiet" onClick={() => setEnding(true)}>
              Disconnect
            </Button>
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
          await client.invalidateQueries({ queryKey: queryKeys.mcpServers });
        }}
      />
    </div>
  );
}

// Tokens of the user for git hosts, with which chatd finds pull requests.

type GitHost = components["schemas"]["GitCredentialReply"];
type Kind = GitHost["kind"];

const KEY = ["git-credentials"];
/** Where the API of each kind is, on a host of one's own. */
const USUAL_ADDRESS: Readonly<Record<Kind, string>> = { github: "/api/v3", gitlab: "/api/v4", gitea: "/api/v1" };

export function GitHosts() {
  const hosts = useResource(KEY, () => readAll((query) => api.GET("/api/v1/git-credentials", { query })));
  const [adding, setAdding] = useState(false);
  return (
    <Section
      title="Git hosts"
      end={
        <Button icon={Plus} onClick={() => setAdding(true)}>
          Add a token
        </Button>
      }
    >
      <p className="settings-section-lead">
        A token that may read repositories shows the pull request of a chat's branch and its checks. Git in workspaces can use it too. It is stored encrypted
        and never enters a workspace.
      </p>
      <Loaded query={hosts}>
        {(list) =>
          list.length === 0 ? (
            <EmptyState>No tokens yet.</EmptyState>
          ) : (
            <div className="settings-card">
              {list.map((one) => (
                <HostRow key={one.id} host={one} />
              ))}
            </div>
          )
        }
      </Loaded>
      {adding && <NewToken onClose={() => setAdding(false)} />}
    </Section>
  );
}

function HostRow({ host }: { host: GitHost }) {
  const [deleting, setDeleting] = useState(false);
  const remove = useSave(() => api.DELETE("/api/v1/git-credentials/{credential_id}", { path: { credential_id: host.id } }), { refresh: [KEY], quiet: true });
  return (
    <div className="settings-row">
      <div className="ui-grow">
        <div className="ui-strong">{host.host}</div>
        <p className="tone-muted">
          Sent to {host.api_url}. {host.in_workspaces ? "Git in workspaces uses it. " : ""}Given <Time at={host.created_at} />.
        </p>
      </div>
      <IconButton icon={Trash2} label={`Delete the token of ${host.host}`} onClick={() => setDeleting(true)} />
      <ConfirmDialog
        open={deleting}
        onOpenChange={setDeleting}
        title={`Delete the token of ${host.host}?`}
        description="Chats no longer show pull requests of this host. The token itself stays valid there: revoke it at the host."
        action="Delete"
        onConfirm={() => remove.mutateAsync(undefined)}
      />
    </div>
  );
}

function NewToken({ onClose }: { onClose: () => void }) {
  const [host, setHost] = useState("");
  const [kind, setKind] = useState<Kind>("github");
  const [token, setToken] = useState("");
  const [address, setAddress] = useState("");
  const [inWorkspaces, setInWorkspaces] = useState(false);
  const saving = useSave(
    () =>
      api.POST("/api/v1/git-credentials", {
        body: {
          host: host.trim(),
          kind,
          token: token.trim(),
          ...(inWorkspaces ? { in_workspaces: true } : {}),
          ...(address.trim() === "" ? {} : { api_url: address.trim() }),
        },
      }),
    { refresh: [KEY], quiet: true, done: "Saved. The next change of a chat asks the host.", onDone: onClose },
  );
  const wrong = fieldErrors(saving.error);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(undefined);
  };
  const usual = host.trim() === "" || host.trim() === "github.com" ? "" : `https://${host.trim()}${USUAL_ADDRESS[kind]}`;
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title="Add a token of a git host"
    >
      <form className="ui-dialog-form" onSubmit={submit}>
        <TextField label="Host" required placeholder="github.com" value={host} error={wrong.get("host")} onChange={(event) => setHost(event.target.value)} />
        <Field label="Kind" error={wrong.get("kind")}>
          {(names) => (
            <select {...names} className="ui-select" value={kind} onChange={(event) => setKind(event.target.value as Kind)}>
              <option value="github">GitHub</option>
              <option value="gitlab">GitLab</option>
              <option value="gitea">Gitea or Forgejo</option>
            </select>
          )}
        </Field>
        <TextField
          label="Token"
          required
          type="password"
          autoComplete="off"
          value={token}
          error={wrong.get("token")}
          onChange={(event) => setToken(event.target.value)}
        />
        <TextField
          label="API address"
          aside="optional"
          placeholder={usual}
          hint="Only if the API is not at its usual place."
          value={address}
          error={wrong.get("api_url")}
          onChange={(event) => setAddress(event.target.value)}
        />
        <Field label="Git in workspaces" hint="By a proxy that adds it: the token stays outside. Templates must allow the host.">
          {(names) => (
            <select {...names} className="ui-select" value={inWorkspaces ? "yes" : "no"} onChange={(event) => setInWorkspaces(event.target.value === "yes")}>
              <option value="no">does not use it</option>
              <option value="yes">uses it to clone, fetch and push</option>
            </select>
          )}
        </Field>
        {saving.error !== null && <ErrorNote error={saving.error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={saving.isPending} disabled={host.trim() === "" || token.trim() === ""}>
            Save
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

// Keys of the user's own, for providers that allow it.

type UserKey = components["schemas"]["UserKeyReply"];

export function UserKeysPage() {
  const keys = useResource(["user-keys"], () => readAll((query) => api.GET("/api/v1/user-keys", { query })));
  return (
    <SettingsPage
      title="Model keys"
      lead="Your own keys, where the administrator allows them. They are used for your chats only, stored encrypted and never shown again."
    >
      <Section title="Providers">
        <Loaded query={keys}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState>No provider takes keys of users. Chats use those of the server.</EmptyState>
            ) : (
              <div className="settings-card">
                {list.map((one) => (
                  <KeyRow key={one.provider_id} entry={one} />
                ))}
              </div>
            )
          }
        </Loaded>
      </Section>
    </SettingsPage>
  );
}

function KeyRow({ entry }: { entry: UserKey }) {
  const [typed, setTyped] = useState("");
  const refresh = [["user-keys"]];
  const save = useSave(() => api.POST("/api/v1/user-keys", { body: { provider: entry.provider, api_key: typed.trim() } }), {
    refresh,
    done: "Saved. Your next message uses it.",
    onDone: () => setTyped(""),
  });
  const remove = useSave((id: string) => api.DELETE("/api/v1/user-keys/{key_id}", { path: { key_id: id } }), { refresh, done: "Deleted." });
  const key = entry.key ?? null;
  return (
    <div className="settings-row">
      <div className="ui-grow">
        <div className="ui-strong">
          {entry.display_name} {entry.is_moved === true && <Tag tone="warn">address changed</Tag>}
        </div>
        <p className="tone-muted">
          {key === null ? "No key of yours." : `Key ${key.masked}.`} Sent to {entry.destination}.
          {entry.is_moved === true && " The provider has another address now, so your key is not used. Enter it again if you trust the new one."}
        </p>
      </div>
      <div className="ui-field">
        <input
          type="password"
          autoComplete="off"
          aria-label={`Key for ${entry.display_name}`}
          placeholder={key === null ? "Enter a key" : "Replace it"}
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
      </div>
      <Button size="sm" busy={save.isPending} disabled={typed.trim() === ""} onClick={() => save.mutate(undefined)}>
        Save
      </Button>
      {key !== null && (
        <Button size="sm" variant="danger" onClick={() => remove.mutate(key.id)}>
          Delete
        </Button>
      )}
    </div>
  );
}
