/** Credentials that a proxy adds to requests of workspaces: the user's own, and those of groups and of all users. */
import { Plus, Trash2 } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Dialog, EmptyState, ErrorNote, Field, IconButton, TextField, Time } from "@/components";
import { Loaded, readAll, Section, SettingsPage, useResource, useSave } from "../frame";
import { fieldErrors } from "../server/provider-drawer";

type Credential = components["schemas"]["HostCredentialReply"];
type Scheme = Credential["scheme"];

const OWN = ["host-credentials"];
const SHARED = ["host-credential-configs"];

export function SharedCredentialsPage() {
  return (
    <SettingsPage title="Credentials" lead="What workspaces use without holding it: a proxy adds it to their requests for a host.">
      <HostCredentials shared />
    </SettingsPage>
  );
}

export function HostCredentials({ shared = false }: { readonly shared?: boolean }) {
  const found = useResource(shared ? SHARED : OWN, () =>
    readAll((query) => (shared ? api.GET("/api/v1/host-credential-configs", { query }) : api.GET("/api/v1/host-credentials", { query }))),
  );
  const [adding, setAdding] = useState(false);
  return (
    <Section
      title="Hosts"
      end={
        <Button icon={Plus} onClick={() => setAdding(true)}>
          Add a credential
        </Button>
      }
    >
      <p className="settings-section-lead">
        {shared ? "For the workspaces of all users or of a group." : "For your workspaces."} It is added to requests for a host that their template allows,
        stored encrypted, and never enters a workspace.
      </p>
      <Loaded query={found}>
        {(list) =>
          list.length === 0 ? (
            <EmptyState>No credentials yet.</EmptyState>
          ) : (
            <div className="settings-card">
              {list.map((one) => (
                <CredentialRow key={one.id} credential={one} shared={shared} />
              ))}
            </div>
          )
        }
      </Loaded>
      {adding && <NewCredential shared={shared} onClose={() => setAdding(false)} />}
    </Section>
  );
}

const addressOf = (one: Credential): string => `${one.host}${one.port === 443 ? "" : `:${one.port}`}${one.path === "/" ? "" : one.path}`;

function formOf(one: Credential): string {
  if (one.scheme === "basic") return `Password of ${one.username}`;
  return one.scheme === "header" ? `Header ${one.header}` : "Bearer token";
}

function CredentialRow({ credential, shared }: { readonly credential: Credential; readonly shared: boolean }) {
  const [deleting, setDeleting] = useState(false);
  const remove = useSave(
    () =>
      shared
        ? api.DELETE("/api/v1/host-credential-configs/{shared_credential_id}", { path: { shared_credential_id: credential.id } })
        : api.DELETE("/api/v1/host-credentials/{host_credential_id}", { path: { host_credential_id: credential.id } }),
    { refresh: [shared ? SHARED : OWN], quiet: true },
  );
  const address = addressOf(credential);
  const users = credential.scope === "group" ? `, for the group ${credential.group ?? ""}` : credential.scope === "deployment" ? ", for all users" : "";
  return (
    <div className="settings-row">
      <div className="ui-grow">
        <div className="ui-strong">{address}</div>
        <p className="tone-muted">
          {formOf(credential)}
          {users}. Given <Time at={credential.created_at} />.
        </p>
      </div>
      <IconButton icon={Trash2} label={`Delete the credential of ${address}`} onClick={() => setDeleting(true)} />
      <ConfirmDialog
        open={deleting}
        onOpenChange={setDeleting}
        title={`Delete the credential of ${address}?`}
        description="Running workspaces lose it at once. It stays valid at the host: revoke it there."
        action="Delete"
        onConfirm={() => remove.mutateAsync(undefined)}
      />
    </div>
  );
}

function NewCredential({ shared, onClose }: { readonly shared: boolean; readonly onClose: () => void }) {
  const [host, setHost] = useState("");
  const [port, setPort] = useState("");
  const [path, setPath] = useState("");
  const [scheme, setScheme] = useState<Scheme>("bearer");
  const [name, setName] = useState("");
  const [secret, setSecret] = useState("");
  const [group, setGroup] = useState("");
  const saving = useSave(
    () => {
      const body = {
        host: host.trim(),
        secret: secret.trim(),
        scheme,
        ...(port.trim() === "" ? {} : { port: Number(port.trim()) }),
        ...(path.trim() === "" ? {} : { path: path.trim() }),
        ...(scheme === "basic" ? { username: name.trim() } : scheme === "header" ? { header: name.trim() } : {}),
      };
      return shared ? api.POST("/api/v1/host-credential-configs", { body: { ...body, group: group.trim() } }) : api.POST("/api/v1/host-credentials", { body });
    },
    { refresh: [shared ? SHARED : OWN], quiet: true, done: "Saved. Workspaces whose template allows the host use it now.", onDone: onClose },
  );
  const wrong = fieldErrors(saving.error);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(undefined);
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title="Add a credential of a host"
    >
      <form className="ui-dialog-form" onSubmit={submit}>
        <TextField
          label="Host"
          required
          placeholder="registry.example.org"
          value={host}
          error={wrong.get("host")}
          onChange={(event) => setHost(event.target.value)}
        />
        <Field label="Sent as" error={wrong.get("scheme")}>
          {(names) => (
            <select {...names} className="ui-select" value={scheme} onChange={(event) => setScheme(event.target.value as Scheme)}>
              <option value="bearer">Bearer token</option>
              <option value="basic">User name and password</option>
              <option value="header">A header of its own</option>
            </select>
          )}
        </Field>
        {scheme !== "bearer" && (
          <TextField
            label={scheme === "basic" ? "User name" : "Header"}
            required
            placeholder={scheme === "basic" ? "" : "PRIVATE-TOKEN"}
            value={name}
            error={wrong.get(scheme === "basic" ? "username" : "header")}
            onChange={(event) => setName(event.target.value)}
          />
        )}
        <TextField
          label="Token or password"
          required
          type="password"
          autoComplete="off"
          value={secret}
          error={wrong.get("secret")}
          onChange={(event) => setSecret(event.target.value)}
        />
        <TextField
          label="Path"
          aside="optional"
          placeholder="/"
          hint="Only requests below it get the credential."
          value={path}
          error={wrong.get("path")}
          onChange={(event) => setPath(event.target.value)}
        />
        <TextField
          label="Port"
          aside="optional"
          placeholder="443"
          inputMode="numeric"
          value={port}
          error={wrong.get("port")}
          onChange={(event) => setPort(event.target.value)}
        />
        {shared && (
          <TextField
            label="Group"
            aside="optional"
            hint="Empty: for all users."
            value={group}
            error={wrong.get("group")}
            onChange={(event) => setGroup(event.target.value)}
          />
        )}
        {saving.error !== null && <ErrorNote error={saving.error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={saving.isPending} disabled={host.trim() === "" || secret.trim() === ""}>
            Save
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
