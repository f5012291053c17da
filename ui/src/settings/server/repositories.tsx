/** Connections to repositories: git hosts whose issues and pull requests start chats, with what they delivered. */
import "@/styles/administration.css";
import { CircleCheck, CircleOff, GitPullRequest, Pencil, Plus, TriangleAlert } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { Link } from "wouter";
import { api } from "@/api/client";
import { useMe, useModels } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Dialog, Drawer, EmptyState, ErrorNote, Field, Icon, IconButton, Switch, Tag, TextField, Time } from "@/components";
import { Choice, Lines, Loaded, readAll, Section, SettingRow, SettingsPage, Table, useResource, useSave } from "../frame";
import { ShownSecret } from "../own/tokens";
import { fieldErrors } from "./provider-drawer";
import { useUsers } from "./users";

type Connection = components["schemas"]["ConnectionConfig"];
type NewConnection = components["schemas"]["NewConnectionConfig"];
type EventRecord = components["schemas"]["EventRecord"];
type Vendor = Connection["vendor"];
type Opened = Connection | "new" | null;

const VENDORS: readonly (readonly [Vendor, string])[] = [
  ["github", "GitHub"],
  ["gitlab", "GitLab"],
  ["gitea", "Gitea or Forgejo"],
];
const KINDS: Record<string, string> = { comment: "Comment", opened: "Opened", labeled: "Label", checks_failed: "Failed checks" };
const ACCESS = [
  ["token", "With a token"],
  ["app", "As a GitHub App"],
] as const;
const REFRESH = [["repositories"]];
const SHOWN_EVENTS = 50;

export function RepositoriesPage() {
  const connections = useResource(["repositories"], () => readAll((query) => api.GET("/api/v1/repository-connections", { query })));
  const [opened, setOpened] = useState<Opened>(null);
  const [events, setEvents] = useState<Connection | null>(null);
  const canEdit = useMe().data?.user.role === "admin";
  return (
    <SettingsPage
      title="Repositories"
      lead="Comments and labels on issues and pull requests of a git host start chats, for accounts with write access. The token stays outside the workspaces."
    >
      <Section
        title="Connections"
        end={
          canEdit && (
            <Button icon={Plus} onClick={() => setOpened("new")}>
              Add a connection
            </Button>
          )
        }
      >
        <Loaded query={connections}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState icon={GitPullRequest}>No connections. Nothing on a git host starts a chat.</EmptyState>
            ) : (
              <div className="settings-card">
                {list.map((one) => (
                  <ConnectionRow key={one.id} connection={one} canEdit={canEdit} onEdit={() => setOpened(one)} onEvents={() => setEvents(one)} />
                ))}
              </div>
            )
          }
        </Loaded>
      </Section>
      {opened !== null && (
        <ConnectionDrawer key={opened === "new" ? "new" : opened.id} connection={opened === "new" ? null : opened} onClose={() => setOpened(null)} />
      )}
      {events !== null && <EventsDialog connection={events} onClose={() => setEvents(null)} />}
    </SettingsPage>
  );
}

interface RowProps {
  connection: Connection;
  canEdit: boolean;
  onEdit: () => void;
  onEvents: () => void;
}

function ConnectionRow({ connection, canEdit, onEdit, onEvents }: RowProps) {
  const path = { connection_id: connection.id };
  const trial = useSave(() => api.POST("/api/v1/repository-connections/{connection_id}/test", { path, timeoutMs: 60_000 }), {
    refresh: REFRESH,
    quiet: true,
  });
  const hasFailed = connection.problem !== null || trial.data?.ok === false || trial.error !== null;
  return (
    <div className="settings-resource">
      <Icon
        of={!connection.enabled ? CircleOff : hasFailed ? TriangleAlert : CircleCheck}
        className={!connection.enabled ? "tone-subtle" : hasFailed ? "tone-danger" : "tone-ok"}
        label={!connection.enabled ? "Disabled" : hasFailed ? "Failed" : "Enabled"}
      />
      <div className="ui-grow">
        <h3>
          {connection.name}
          <Tag>{VENDORS.find(([vendor]) => vendor === connection.vendor)?.[1] ?? connection.vendor}</Tag>
          {!connection.enabled && <Tag>disabled</Tag>}
        </h3>
        <p>
          {[
            connection.url,
            connection.repositories.join(", "),
            `@${connection.mention}${connection.label === "" ? "" : ` or the label ${connection.label}`}`,
            `template ${connection.template_name}`,
            `as ${connection.username}`,
            ...(connection.app_id === null ? [] : [`App ${connection.app_id}`]),
          ].join(" · ")}
        </p>
        {connection.problem !== null && <p className="tone-danger">{connection.problem}</p>}
      </div>
      <div className="ui-actions">
        <Button size="sm" onClick={onEvents}>
          Events
        </Button>
        {canEdit && (
          <Button size="sm" busy={trial.isPending} onClick={() => trial.mutate(undefined)}>
            Test
          </Button>
        )}
        {canEdit && <IconButton icon={Pencil} label={`Edit ${connection.name}`} onClick={onEdit} />}
      </div>
      {trial.error !== null && (
        <div className="ui-result is-bad">
          <ErrorNote error={trial.error} />
        </div>
      )}
      {trial.data !== undefined && (
        <div className={trial.data.ok ? "ui-result" : "ui-result is-bad"} role={trial.data.ok ? "status" : "alert"}>
          <div>
            <b className="ui-strong">
              {trial.data.ok ? `${connection.app_id === null ? "The token is that of" : "The App acts as"} ${trial.data.login}.` : "It did not work."}
            </b>
            {!trial.data.ok && <p>{trial.data.reason}</p>}
          </div>
        </div>
      )}
    </div>
  );
}

function EventsDialog({ connection, onClose }: { connection: Connection; onClose: () => void }) {
  const events = useResource(["repositories", connection.id, "events"], async () => {
    const query = { limit: SHOWN_EVENTS };
    return (await api.GET("/api/v1/repository-connections/{connection_id}/events", { path: { connection_id: connection.id }, query })).items;
  });
  return (
    <Dialog open wide onOpenChange={onClose} title={`Events of ${connection.name}`} description="The latest that could start something, newest first.">
      <Loaded query={events}>
        {(list) =>
          list.length === 0 ? (
            <EmptyState icon={GitPullRequest}>No events yet. Is the webhook set up at the host?</EmptyState>
          ) : (
            <Table label={`Events of ${connection.name}`} heads={["When", "Event", "By", "Outcome"]}>
              {list.map((event) => (
                <tr key={event.id}>
                  <td>
                    <Time at={event.created_at} />
                  </td>
                  <td>
                    {KINDS[event.kind] ?? event.kind}, {event.repository}
                    {event.number > 0 && `#${event.number}`}
                  </td>
                  <td>{event.sender}</td>
                  <td>
                    <Outcome event={event} />
                  </td>
                </tr>
              ))}
            </Table>
          )
        }
      </Loaded>
    </Dialog>
  );
}

function Outcome({ event }: { event: EventRecord }) {
  if (event.outcome === "done" && event.chat_id !== null) return <Link href={`/c/${event.chat_id}`}>Chat</Link>;
  const words = { done: "Done", waiting: "Waiting", ignored: "Ignored", failed: "Failed" }[event.outcome];
  return <span className={event.outcome === "failed" ? "tone-danger" : undefined}>{event.detail === "" ? words : `${words}: ${event.detail}`}</span>;
}

/** Lines or words apart by commas. */
const listOf = (text: string): string[] =>
  text
    .split(/[\s,]+/)
    .map((one) => one.trim())
    .filter((one) => one !== "");

function ConnectionDrawer({ connection, onClose }: { connection: Connection | null; onClose: () => void }) {
  const [name, setName] = useState(connection?.name ?? "");
  const [vendor, setVendor] = useState<Vendor>(connection?.vendor ?? "github");
  const [url, setUrl] = useState("");
  const [repositories, setRepositories] = useState(connection?.repositories.join("\n") ?? "");
  const [template, setTemplate] = useState(connection?.template_id ?? "");
  const [model, setModel] = useState(connection?.model_id ?? "");
  const [user, setUser] = useState(connection?.user_id ?? "");
  const [mention, setMention] = useState(connection?.mention ?? "chatd");
  const [label, setLabel] = useState(connection?.label ?? "");
  const [allowed, setAllowed] = useState(connection?.allowed.join("\n") ?? "");
  const [rounds, setRounds] = useState(String(connection?.check_rounds ?? 3));
  const [access, setAccess] = useState<"token" | "app">((connection?.app_id ?? null) === null ? "token" : "app");
  const [token, setToken] = useState("");
  const [appId, setAppId] = useState(connection?.app_id ?? "");
  const [key, setKey] = useState("");
  const [enabled, setEnabled] = useState(connection?.enabled ?? true);
  const [deleting, setDeleting] = useState(false);
  const templates = useResource(["templates"], () => readAll((query) => api.GET("/api/v1/template-configs", { query })));
  const models = useModels();
  const users = useUsers();
  const isApp = vendor === "github" && access === "app";
  /** Empty if a change keeps what there is. */
  const secrets = () => {
    if (isApp) return key === "" && connection !== null ? {} : { app: { id: appId.trim(), private_key: key } };
    return token === "" && connection !== null ? {} : { token };
  };
  const isSameAccess = connection !== null && (connection.app_id !== null) === isApp;
  const body = () => ({
    name: name.trim(),
    repositories: listOf(repositories),
    template_id: template,
    model_id: model === "" ? null : model,
    mention: mention.trim(),
    label: label.trim(),
    allowed: listOf(allowed),
    check_rounds: Number(rounds),
    enabled,
  });
  const saving = useSave<undefined, NewConnection | null>(
    async () => {
      if (connection === null) {
        const fields = { ...body(), vendor, url: url.trim() === "" ? null : url.trim(), user_id: user === "" ? null : user, ...secrets() };
        return api.POST("/api/v1/repository-connections", { body: fields });
      }
      const path = { connection_id: connection.id };
      const fields = { ...body(), ...(user === "" ? {} : { user_id: user }), ...secrets() };
      await api.PATCH("/api/v1/repository-connections/{connection_id}", { path, body: fields });
      return null;
    },
    { refresh: REFRESH, quiet: true, onDone: (made) => (made === null ? onClose() : undefined) },
  );
  const remove = useSave((id: string) => api.DELETE("/api/v1/repository-connections/{connection_id}", { path: { connection_id: id } }), {
    refresh: REFRESH,
    quiet: true,
    done: "Deleted.",
    onDone: onClose,
  });
  const wrong = fieldErrors(saving.error);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(undefined);
  };
  if (saving.data) {
    return (
      <Dialog
        open
        onOpenChange={onClose}
        title="Add the webhook now"
        description={`At ${saving.data.url}: this address, the content type application/json, and the secret, which is not shown again.`}
        footer={
          <Button variant="primary" onClick={onClose}>
            Done
          </Button>
        }
      >
        <ShownSecret text={`${window.location.origin}${saving.data.events_path}`} label="Copy the address" />
        <ShownSecret text={saving.data.secret} label="Copy the secret" />
      </Dialog>
    );
  }
  return (
    <Drawer
      open
      onOpenChange={onClose}
      title={connection === null ? "Add a connection" : connection.name}
      footer={
        <>
          <Button type="submit" form="repositories" variant="primary" busy={saving.isPending} disabled={template === ""}>
            {connection === null ? "Add" : "Save"}
          </Button>
          <Button onClick={onClose}>Cancel</Button>
          <span className="ui-grow" />
          {connection !== null && (
            <Button variant="danger" size="sm" onClick={() => setDeleting(true)}>
              Delete
            </Button>
          )}
        </>
      }
    >
      <form id="repositories" className="settings-form" onSubmit={submit}>
        <TextField
          label="Name"
          wide
          required
          maxLength={64}
          placeholder="Our GitHub"
          value={name}
          error={wrong.get("name")}
          onChange={(event) => setName(event.target.value)}
        />
        {connection === null && <Choice label="Host" value={vendor} options={VENDORS} onChange={setVendor} />}
        {connection === null && (
          <TextField
            label="Address"
            wide
            aside="for a host of your own"
            placeholder="https://git.example.com"
            value={url}
            error={wrong.get("url")}
            onChange={(event) => setUrl(event.target.value)}
          />
        )}
        {vendor === "github" && <Choice label="Access" value={access} options={ACCESS} error={wrong.get("app")} onChange={setAccess} />}
        {isApp ? (
          <>
            <TextField
              label="App id"
              wide
              required
              maxLength={64}
              value={appId}
              error={wrong.get("app.id")}
              onChange={(event) => setAppId(event.target.value)}
            />
            <Field
              label="Private key"
              hint={isSameAccess ? "The .pem file. Empty keeps the App and its key." : "The text of the .pem file. It is not shown again."}
              error={wrong.get("app.private_key")}
              wide
            >
              {(names) => (
                <textarea
                  {...names}
                  className="ui-textarea"
                  rows={4}
                  required={!isSameAccess || appId.trim() !== connection.app_id}
                  spellCheck={false}
                  autoComplete="off"
                  value={key}
                  onChange={(event) => setKey(event.target.value)}
                />
              )}
            </Field>
          </>
        ) : (
          <TextField
            label="Token"
            wide
            type="password"
            autoComplete="off"
            required={!isSameAccess}
            aside={isSameAccess ? "empty keeps it" : undefined}
            value={token}
            error={wrong.get("token")}
            onChange={(event) => setToken(event.target.value)}
          />
        )}
        <Field
          label="Repositories"
          hint="owner/name, or owner/* for all of an owner."
          error={[...wrong].find(([field]) => field.startsWith("repositories"))?.[1]}
          wide
        >
          {(names) => (
            <textarea
              {...names}
              className="ui-textarea"
              rows={3}
              required
              spellCheck={false}
              value={repositories}
              onChange={(event) => setRepositories(event.target.value)}
            />
          )}
        </Field>
        <Choice
          label="Template"
          value={template}
          options={[["", "Choose a template"], ...(templates.data ?? []).map((one) => [one.id, one.name] as const)]}
          hint="With the parameter repository, and a network that allows the host."
          error={wrong.get("template_id")}
          onChange={setTemplate}
        />
        <Choice
          label="Model"
          value={model}
          options={[["", "The default"], ...(models.data ?? []).map((one) => [one.id, one.display_name || one.name] as const)]}
          error={wrong.get("model_id")}
          onChange={setModel}
        />
        <Choice
          label="Chats belong to"
          value={user}
          options={[...(connection === null ? [["", "You"] as const] : []), ...(users.data ?? []).map((one) => [one.id, one.username] as const)]}
          hint="Their cost counts for this user."
          error={wrong.get("user_id")}
          onChange={setUser}
        />
        <TextField label="Mention" wide required value={mention} error={wrong.get("mention")} onChange={(event) => setMention(event.target.value)} />
        <TextField label="Label" wide aside="optional" value={label} error={wrong.get("label")} onChange={(event) => setLabel(event.target.value)} />
        <Lines
          label="Only these accounts may ask"
          hint="Empty: everyone with write access to the repository."
          value={allowed}
          error={wrong.get("allowed")}
          onChange={setAllowed}
        />
        <TextField
          label="Send failed checks back"
          wide
          aside="times for one pull request, 0 to 20"
          inputMode="numeric"
          value={rounds}
          error={wrong.get("check_rounds")}
          onChange={(event) => setRounds(event.target.value)}
        />
        <div className="ui-form-field is-wide">
          <div className="settings-list">
            <SettingRow title="Enabled" hint="Events start chats.">
              <Switch label="Enabled" checked={enabled} onChange={setEnabled} />
            </SettingRow>
          </div>
        </div>
        {saving.error !== null && wrong.size === 0 && (
          <div className="ui-form-field is-wide">
            <ErrorNote error={saving.error} />
          </div>
        )}
      </form>
      {connection !== null && (
        <ConfirmDialog
          open={deleting}
          onOpenChange={setDeleting}
          title={`Delete ${connection.name}?`}
          description="Its host starts no more chats. The chats stay."
          action="Delete"
          onConfirm={() => remove.mutateAsync(connection.id)}
        />
      )}
    </Drawer>
  );
}
