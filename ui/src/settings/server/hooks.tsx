/** Hooks: receivers that are asked while a turn waits, and may refuse, change or have a person asked. */
import "@/styles/administration.css";
import { CircleCheck, CircleOff, Pencil, Plus, TriangleAlert, Webhook } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Dialog, Drawer, EmptyState, ErrorNote, Field, Icon, IconButton, Switch, Tag, TextField } from "@/components";
import { Choice, Loaded, readAll, Section, SettingRow, SettingsPage, useResource, useSave } from "../frame";
import { ShownSecret } from "../own/tokens";
import { fieldErrors } from "./provider-drawer";

type Hook = components["schemas"]["HookConfig"];
type HookEvent = Hook["events"][number];
type Opened = Hook | "new" | null;

const EVENTS: readonly (readonly [HookEvent, string])[] = [
  ["turn_start", "A turn starts"],
  ["before_tool", "Before a tool call"],
  ["after_tool", "After a tool call"],
  ["step", "A step is committed"],
  ["turn_end", "A turn ends"],
];
const REFRESH = [["hooks"]];

export function HooksPage() {
  const hooks = useResource(["hooks"], () => readAll((query) => api.GET("/api/v1/hooks", { query })));
  const [opened, setOpened] = useState<Opened>(null);
  const canEdit = useMe().data?.user.role === "admin";
  return (
    <SettingsPage
      title="Hooks"
      lead="URLs of yours that are asked while a turn waits. Before a tool call a hook may allow it, deny it, have a person asked, or change its arguments."
    >
      <Section
        title="Hooks"
        hint={hooks.data !== undefined && hooks.data.length > 1 ? "asked in this order" : undefined}
        end={
          canEdit && (
            <Button icon={Plus} onClick={() => setOpened("new")}>
              Add a hook
            </Button>
          )
        }
      >
        <Loaded query={hooks}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState icon={Webhook}>No hooks. Chats ask nobody but the tool policy.</EmptyState>
            ) : (
              <div className="settings-card">
                {list.map((hook) => (
                  <HookRow key={hook.id} hook={hook} canEdit={canEdit} onEdit={() => setOpened(hook)} />
                ))}
              </div>
            )
          }
        </Loaded>
      </Section>
      {opened !== null && <HookDrawer key={opened === "new" ? "new" : opened.id} hook={opened === "new" ? null : opened} onClose={() => setOpened(null)} />}
    </SettingsPage>
  );
}

function HookRow({ hook, canEdit, onEdit }: { hook: Hook; canEdit: boolean; onEdit: () => void }) {
  const trial = useSave(() => api.POST("/api/v1/hooks/{hook_id}/test", { path: { hook_id: hook.id }, timeoutMs: 60_000 }), { refresh: [], quiet: true });
  const hasFailed = trial.data?.ok === false || trial.error !== null;
  return (
    <div className="settings-resource">
      <Icon
        of={!hook.enabled ? CircleOff : hasFailed ? TriangleAlert : CircleCheck}
        className={!hook.enabled ? "tone-subtle" : hasFailed ? "tone-danger" : "tone-ok"}
        label={!hook.enabled ? "Disabled" : hasFailed ? "Failed" : "Enabled"}
      />
      <div className="ui-grow">
        <h3>
          {hook.name}
          <Tag>{hook.template_id === null ? "all chats" : `template ${hook.template_name ?? ""}`}</Tag>
          {!hook.enabled && <Tag>disabled</Tag>}
        </h3>
        <p>
          {[
            hook.url,
            EVENTS.filter(([event]) => hook.events.includes(event))
              .map(([, text]) => text.toLowerCase())
              .join(", "),
            `${hook.timeout_ms} ms`,
            hook.failure === "closed" ? "refuses if it fails" : "goes on if it fails",
          ].join(" · ")}
        </p>
      </div>
      {canEdit && (
        <div className="ui-actions">
          <Button size="sm" busy={trial.isPending} onClick={() => trial.mutate(undefined)}>
            Test
          </Button>
          <IconButton icon={Pencil} label={`Edit ${hook.name}`} onClick={onEdit} />
        </div>
      )}
      {trial.error !== null && (
        <div className="ui-result is-bad">
          <ErrorNote error={trial.error} />
        </div>
      )}
      {trial.data !== undefined && (
        <div className={trial.data.ok ? "ui-result" : "ui-result is-bad"} role={trial.data.ok ? "status" : "alert"}>
          <div>
            <b className="ui-strong">{trial.data.ok ? `It answered: ${trial.data.decision ?? "no opinion"}.` : "It did not work."}</b>
            <p>{[trial.data.reason, `${trial.data.duration_ms} ms`].filter(Boolean).join(" · ")}</p>
          </div>
        </div>
      )}
    </div>
  );
}

function HookDrawer({ hook, onClose }: { hook: Hook | null; onClose: () => void }) {
  const [name, setName] = useState(hook?.name ?? "");
  const [url, setUrl] = useState(hook?.url ?? "");
  const [events, setEvents] = useState<readonly HookEvent[]>(hook?.events ?? ["before_tool"]);
  const [failure, setFailure] = useState<Hook["failure"]>(hook?.failure ?? "closed");
  const [timeout, setTimeout] = useState(String(hook?.timeout_ms ?? 5000));
  const [enabled, setEnabled] = useState(hook?.enabled ?? true);
  const [template, setTemplate] = useState(hook?.template_id ?? "");
  const [deleting, setDeleting] = useState(false);
  const templates = useResource(["templates"], () => readAll((query) => api.GET("/api/v1/template-configs", { query })));
  const body = () => ({ name: name.trim(), url: url.trim(), events: [...events], failure, timeout_ms: Number(timeout), enabled });
  const saving = useSave(
    async () => {
      if (hook !== null) {
        await api.PATCH("/api/v1/hooks/{hook_id}", { path: { hook_id: hook.id }, body: body() });
        return null;
      }
      return (await api.POST("/api/v1/hooks", { body: { ...body(), template_id: template === "" ? null : template } })).secret;
    },
    { refresh: REFRESH, quiet: true, onDone: (secret) => (secret === null ? onClose() : undefined) },
  );
  const remove = useSave((id: string) => api.DELETE("/api/v1/hooks/{hook_id}", { path: { hook_id: id } }), {
    refresh: REFRESH,
    quiet: true,
    done: "Deleted.",
    onDone: onClose,
  });
  const wrong = fieldErrors(saving.error);
  const toggle = (event: HookEvent) => setEvents(events.includes(event) ? events.filter((one) => one !== event) : [...events, event]);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(undefined);
  };
  if (typeof saving.data === "string") {
    return (
      <Dialog
        open
        onOpenChange={onClose}
        title="Copy the secret now"
        description="The receiver checks the signatures of requests with it. It is not shown again."
        footer={
          <Button variant="primary" onClick={onClose}>
            Done
          </Button>
        }
      >
        <ShownSecret text={saving.data} label="Copy the secret" />
      </Dialog>
    );
  }
  return (
    <Drawer
      open
      onOpenChange={onClose}
      title={hook === null ? "Add a hook" : hook.name}
      footer={
        <>
          <Button type="submit" form="hook" variant="primary" busy={saving.isPending} disabled={events.length === 0}>
            {hook === null ? "Add" : "Save"}
          </Button>
          <Button onClick={onClose}>Cancel</Button>
          <span className="ui-grow" />
          {hook !== null && (
            <Button variant="danger" size="sm" onClick={() => setDeleting(true)}>
              Delete
            </Button>
          )}
        </>
      }
    >
      <form id="hook" className="settings-form" onSubmit={submit}>
        <TextField
          label="Name"
          wide
          required
          maxLength={64}
          placeholder="Command policy"
          value={name}
          error={wrong.get("name")}
          onChange={(event) => setName(event.target.value)}
        />
        <TextField
          label="Address"
          wide
          required
          placeholder="https://policy.example.com/chatd"
          value={url}
          error={wrong.get("url")}
          onChange={(event) => setUrl(event.target.value)}
        />
        <fieldset className="ui-form-field is-wide">
          <legend className="ui-label">Asked when</legend>
          <ul className="settings-list">
            {EVENTS.map(([event, text]) => (
              <li key={event}>
                <label className="settings-inline ui-grow">
                  <input type="checkbox" checked={events.includes(event)} onChange={() => toggle(event)} />
                  <span className="ui-grow">{text}</span>
                  <code className="tone-subtle">{event}</code>
                </label>
              </li>
            ))}
          </ul>
        </fieldset>
        {hook === null && (
          <Field label="Chats" hint="A template's hook is asked by chats with a workspace of that template." error={wrong.get("template_id")} wide>
            {(names) => (
              <select {...names} className="ui-select" value={template} onChange={(event) => setTemplate(event.target.value)}>
                <option value="">All chats</option>
                {(templates.data ?? []).map((one) => (
                  <option key={one.id} value={one.id}>
                    Template {one.name}
                  </option>
                ))}
              </select>
            )}
          </Field>
        )}
        <Choice
          label="If it fails or is slow"
          value={failure}
          options={[
            ["closed", "Refuse the call or the turn"],
            ["open", "Go on without it"],
          ]}
          onChange={setFailure}
        />
        <TextField
          label="Time to answer"
          wide
          aside="milliseconds, 100 to 30000"
          inputMode="numeric"
          value={timeout}
          error={wrong.get("timeout_ms")}
          onChange={(event) => setTimeout(event.target.value)}
        />
        <div className="ui-form-field is-wide">
          <div className="settings-list">
            <SettingRow title="Enabled" hint="Chats ask it.">
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
      {hook !== null && (
        <ConfirmDialog
          open={deleting}
          onOpenChange={setDeleting}
          title={`Delete ${hook.name}?`}
          description="Chats go on without asking it."
          action="Delete"
          onConfirm={() => remove.mutateAsync(hook.id)}
        />
      )}
    </Drawer>
  );
}
