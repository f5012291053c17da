/** Connections to Slack, whose threads are chats: whether they are connected, what arrived, their tokens and settings. */
import "@/styles/administration.css";
import { CircleCheck, CircleOff, MessagesSquare, Pencil, Plus, TriangleAlert } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { Link } from "wouter";
import { api } from "@/api/client";
import { useMe, useModels } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Dialog, Drawer, EmptyState, ErrorNote, Icon, IconButton, Switch, Tag, TextField, Time } from "@/components";
import { Choice, Loaded, readAll, Section, SettingRow, SettingsPage, Table, useResource, useSave } from "../frame";
import { fieldErrors } from "./provider-drawer";

type Connection = components["schemas"]["SlackConfig"];
type EventRecord = components["schemas"]["SlackEventRecord"];

const REFRESH = [["slack"]];
const SHOWN_EVENTS = 50;

export function SlackPage() {
  const connections = useResource(["slack"], () => readAll((query) => api.GET("/api/v1/slack-connections", { query })));
  const [opened, setOpened] = useState<Connection | "new" | null>(null);
  const [events, setEvents] = useState<Connection | null>(null);
  const canEdit = useMe().data?.user.role === "admin";
  return (
    <SettingsPage
      title="Slack"
      lead="A mention of the bot starts a chat, and its thread shows the answers and the approvals. chatd connects to Slack: your server needs no public address."
    >
      <Section
        title="Connections"
        end={
          canEdit && (
            <Button icon={Plus} onClick={() => setOpened("new")}>
              Connect Slack
            </Button>
          )
        }
      >
        <Loaded query={connections}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState icon={MessagesSquare}>No connections. Nothing in Slack starts a chat.</EmptyState>
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
        <SlackDrawer key={opened === "new" ? "new" : opened.id} connection={opened === "new" ? null : opened} onClose={() => setOpened(null)} />
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
  const path = { slack_id: connection.id };
  const trial = useSave(() => api.POST("/api/v1/slack-connections/{slack_id}/test", { path, timeoutMs: 60_000 }), { refresh: REFRESH, quiet: true });
  const hasFailed = connection.problem !== null || trial.data?.ok === false || trial.error !== null;
  const facts = [
    connection.team_name,
    connection.template_name === null ? "" : `template ${connection.template_name}`,
    connection.project_name === null ? "" : `project ${connection.project_name}`,
    connection.match_email ? "known by confirmed email" : "",
  ].filter((one) => one !== "");
  return (
    <div className="settings-resource">
      <Icon
        of={!connection.enabled ? CircleOff : hasFailed ? TriangleAlert : CircleCheck}
        className={!connection.enabled ? "tone-subtle" : hasFailed ? "tone-danger" : connection.connected_at === null ? "tone-subtle" : "tone-ok"}
        label={!connection.enabled ? "Disabled" : hasFailed ? "Failed" : connection.connected_at === null ? "Not connected" : "Connected"}
      />
      <div className="ui-grow">
        <h3>
          {connection.name}
          {!connection.enabled && <Tag>disabled</Tag>}
          {connection.enabled && connection.connected_at === null && <Tag>not connected</Tag>}
        </h3>
        <p>
          {facts.join(" · ")}
          {connection.connected_at !== null && (
            <>
              {facts.length > 0 && " · "}connected <Time at={connection.connected_at} />
            </>
          )}
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
            <b className="ui-strong">{trial.data.ok ? `The bot is @${trial.data.bot} in ${trial.data.team}.` : "It did not work."}</b>
            {!trial.data.ok && <p>{trial.data.reason}</p>}
          </div>
        </div>
      )}
    </div>
  );
}

function EventsDialog({ connection, onClose }: { connection: Connection; onClose: () => void }) {
  const events = useResource(["slack", connection.id, "events"], async () => {
    const query = { limit: SHOWN_EVENTS };
    return (await api.GET("/api/v1/slack-connections/{slack_id}/events", { path: { slack_id: connection.id }, query })).items;
  });
  return (
    <Dialog open wide onOpenChange={onClose} title={`Events of ${connection.name}`} description="The latest messages and presses, newest first.">
      <Loaded query={events}>
        {(list) =>
          list.length === 0 ? (
            <EmptyState icon={MessagesSquare}>No events yet. Is the bot invited to a channel?</EmptyState>
          ) : (
            <Table label={`Events of ${connection.name}`} heads={["When", "Event", "By", "Outcome"]}>
              {list.map((event) => (
                <tr key={event.id}>
                  <td>
                    <Time at={event.created_at} />
                  </td>
                  <td>
                    {event.kind === "press" ? "Button" : "Message"}, {event.channel}
                  </td>
                  <td>{event.slack_user}</td>
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

function SlackDrawer({ connection, onClose }: { connection: Connection | null; onClose: () => void }) {
  const [name, setName] = useState(connection?.name ?? "");
  const [botToken, setBotToken] = useState("");
  const [appToken, setAppToken] = useState("");
  const [template, setTemplate] = useState(connection?.template_id ?? "");
  const [project, setProject] = useState(connection?.project_id ?? "");
  const [model, setModel] = useState(connection?.model_id ?? "");
  const [matchEmail, setMatchEmail] = useState(connection?.match_email ?? false);
  const [enabled, setEnabled] = useState(connection?.enabled ?? true);
  const [deleting, setDeleting] = useState(false);
  const templates = useResource(["templates"], () => readAll((query) => api.GET("/api/v1/template-configs", { query })));
  const projects = useResource(["projects", "all"], () => readAll((query) => api.GET("/api/v1/projects", { query })));
  const models = useModels();
  const body = () => ({
    name: name.trim(),
    template_id: template === "" ? null : template,
    project_id: project === "" ? null : project,
    model_id: model === "" ? null : model,
    match_email: matchEmail,
    enabled,
  });
  const saving = useSave<undefined, unknown>(
    () => {
      if (connection === null) return api.POST("/api/v1/slack-connections", { body: { ...body(), bot_token: botToken, app_token: appToken } });
      const fields = { ...body(), ...(botToken === "" ? {} : { bot_token: botToken }), ...(appToken === "" ? {} : { app_token: appToken }) };
      return api.PATCH("/api/v1/slack-connections/{slack_id}", { path: { slack_id: connection.id }, body: fields });
    },
    { refresh: REFRESH, quiet: true, onDone: onClose },
  );
  const remove = useSave((id: string) => api.DELETE("/api/v1/slack-connections/{slack_id}", { path: { slack_id: id } }), {
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
  const known = projects.data ?? [];
  const others = connection?.project_id != null && !known.some((one) => one.id === connection.project_id);
  return (
    <Drawer
      open
      onOpenChange={onClose}
      title={connection === null ? "Connect Slack" : connection.name}
      footer={
        <>
          <Button type="submit" form="slack" variant="primary" busy={saving.isPending}>
            {connection === null ? "Connect" : "Save"}
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
      <form id="slack" className="settings-form" onSubmit={submit}>
        <TextField
          label="Name"
          wide
          required
          maxLength={64}
          placeholder="Acme"
          value={name}
          error={wrong.get("name")}
          onChange={(event) => setName(event.target.value)}
        />
        <TextField
          label="Bot token"
          wide
          type="password"
          autoComplete="off"
          required={connection === null}
          placeholder="xoxb-…"
          aside={connection === null ? undefined : "empty keeps it"}
          hint="Of the app that you make from the manifest of chatd admin slack manifest."
          value={botToken}
          error={wrong.get("bot_token")}
          onChange={(event) => setBotToken(event.target.value.trim())}
        />
        <TextField
          label="App-level token"
          wide
          type="password"
          autoComplete="off"
          required={connection === null}
          placeholder="xapp-…"
          aside={connection === null ? undefined : "empty keeps it"}
          hint="With the scope connections:write."
          value={appToken}
          error={wrong.get("app_token")}
          onChange={(event) => setAppToken(event.target.value.trim())}
        />
        <Choice
          label="Template"
          value={template}
          options={[["", "No workspace"], ...(templates.data ?? []).map((one) => [one.id, one.name] as const)]}
          hint="Each chat gets a workspace of it."
          error={wrong.get("template_id")}
          onChange={setTemplate}
        />
        <Choice
          label="Project"
          value={project}
          options={[
            ["", "No project"],
            ...known.map((one) => [one.id, one.name] as const),
            ...(others ? [[connection.project_id ?? "", connection.project_name ?? "Another project"] as const] : []),
          ]}
          hint="Of which the users must be editors."
          error={wrong.get("project_id")}
          onChange={setProject}
        />
        <Choice
          label="Model"
          value={model}
          options={[["", "The default"], ...(models.data ?? []).map((one) => [one.id, one.display_name || one.name] as const)]}
          error={wrong.get("model_id")}
          onChange={setModel}
        />
        <div className="ui-form-field is-wide">
          <div className="settings-list">
            <SettingRow title="Know people by their email" hint="If Slack has confirmed it. Otherwise each user links by a code.">
              <Switch label="Know people by their email" checked={matchEmail} onChange={setMatchEmail} />
            </SettingRow>
            <SettingRow title="Enabled" hint="chatd connects to Slack.">
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
          description="chatd leaves Slack, and the links of its people are deleted. The chats stay."
          action="Delete"
          onConfirm={() => remove.mutateAsync(connection.id)}
        />
      )}
    </Drawer>
  );
}
