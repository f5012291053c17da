/** The form of a template: what it is, where it runs, what is in it, limits and network, parameters, who may use it. */
import { Plus } from "lucide-react";
import { type ReactNode, type SyntheticEvent, useEffect, useRef, useState } from "react";
import { api } from "@/api/client";
import { Button, ConfirmDialog, Drawer, ErrorNote, Field, Segmented, Switch, TextField } from "@/components";
import { Choice, Lines, SettingRow, useSave } from "../frame";
import { fieldErrors } from "./provider-drawer";
import {
  BACKENDS,
  type Backend,
  bodyOfDraft,
  canChange,
  draftOfTemplate,
  duplicateOf,
  NEW_TEMPLATE,
  namesHosts,
  newParameter,
  type ParameterDraft,
  problemOf,
  readsHost,
  takesImage,
  type TemplateConfig,
  type TemplateDraft,
} from "./template-draft";

/** What is read again after a change. */
export const TEMPLATES_CHANGED = [["templates"], ["template-versions"]] as const;

interface DrawerProps {
  /** The template to change or to copy; null: a new one. */
  source: TemplateConfig | null;
  isCopy?: boolean;
  names: readonly string[];
  /** Packages of Debian that workspaces on the server itself lack for desktops and browsers. */
  missing: readonly string[];
  onClose: () => void;
}

interface PartProps {
  draft: TemplateDraft;
  set: (change: Partial<TemplateDraft>) => void;
  /** What is wrong with a field, by the server's name. */
  wrong: (field: string) => string | undefined;
}

function save(edited: TemplateConfig | null, source: TemplateConfig | null, draft: TemplateDraft, activate: boolean): Promise<TemplateConfig> {
  const body = bodyOfDraft(draft, source);
  if (edited === null) return api.POST("/api/v1/template-configs", { body });
  const path = { template_id: edited.id };
  return api.PUT("/api/v1/template-configs/{template_id}", { path, body: { ...body, activate, updated_at: edited.updated_at } });
}

export function TemplateDrawer({ source, isCopy = false, names, missing, onClose }: DrawerProps) {
  const edited = isCopy ? null : source;
  const [first] = useState<TemplateDraft>(() => (source === null ? NEW_TEMPLATE : isCopy ? duplicateOf(source, names) : draftOfTemplate(source)));
  const [draft, setDraft] = useState(first);
  const [activate, setActivate] = useState(true);
  const [asking, setAsking] = useState<"discard" | "delete" | null>(null);
  const saving = useSave((given: TemplateDraft) => Promise.resolve().then(() => save(edited, source, given, activate)), {
    refresh: TEMPLATES_CHANGED,
    quiet: true,
    done: "Saved.",
    onDone: onClose,
  });
  const remove = useSave((id: string) => api.DELETE("/api/v1/template-configs/{template_id}", { path: { template_id: id } }), {
    refresh: TEMPLATES_CHANGED,
    quiet: true,
    onDone: onClose,
  });
  const form = useRef<HTMLFormElement>(null);
  // The form is long: what the server refused comes into view.
  useEffect(() => {
    if (saving.error === null) return;
    const wrong = form.current?.querySelector<HTMLElement>("[aria-invalid=true]");
    wrong?.focus({ preventScroll: true });
    (wrong ?? form.current?.lastElementChild)?.scrollIntoView({ block: "center" });
  }, [saving.error]);
  const errors = fieldErrors(saving.error);
  const part: PartProps = { draft, set: (change) => setDraft({ ...draft, ...change }), wrong: (field) => problemOf(errors, field) };
  const isReadOnly = edited !== null && !canChange(edited);
  const leave = () => (draft === first ? onClose() : setAsking("discard"));
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(draft);
  };
  const title = source === null ? "" : source.display_name || source.name;
  return (
    <Drawer
      open
      onOpenChange={leave}
      title={source === null ? "Add a template" : isCopy ? `Duplicate ${title}` : `Edit ${title}`}
      footer={
        <>
          {!isReadOnly && (
            <Button type="submit" form="template" variant="primary" busy={saving.isPending}>
              Save
            </Button>
          )}
          <Button variant="quiet" onClick={leave}>
            {isReadOnly ? "Close" : "Discard"}
          </Button>
          <span className="ui-grow" />
          {edited !== null && (
            <Button variant="danger" size="sm" onClick={() => setAsking("delete")}>
              Delete
            </Button>
          )}
        </>
      }
    >
      {isReadOnly ? (
        <p className="tone-muted">No settings file has this template any more, so no new workspace gets it. Duplicate it to change it, or delete it.</p>
      ) : (
        <form ref={form} id="template" className="settings-form" onSubmit={submit} noValidate>
          <WhatItIs {...part} />
          <WhereItRuns {...part} />
          <WhatIsInIt {...part} />
          <ScreenAndBrowser {...part} missing={draft.pool.trim() === "" && !takesImage(draft.backend) ? missing : null} />
          <LimitsAndNetwork {...part} />
          <Parameters {...part} />
          <WhoMayUseIt {...part} />
          {edited !== null && (
            <Group title="Version">
              <div className="ui-form-field is-wide">
                <div className="settings-list">
                  <SettingRow title="Use it at once" hint="If its content changes, new workspaces get the new version. Off: it is only stored.">
                    <Switch label="Use it at once" checked={activate} onChange={setActivate} />
                  </SettingRow>
                </div>
              </div>
            </Group>
          )}
          {saving.error !== null && (
            <div className="ui-form-field is-wide">
              <ErrorNote error={saving.error} />
            </div>
          )}
        </form>
      )}
      <ConfirmDialog
        open={asking === "discard"}
        onOpenChange={(open) => setAsking(open ? "discard" : null)}
        title="Discard your changes?"
        description="What you entered here is not saved."
        action="Discard"
        onConfirm={() => {
          onClose();
          return Promise.resolve();
        }}
      />
      {edited !== null && (
        <ConfirmDialog
          open={asking === "delete"}
          onOpenChange={(open) => setAsking(open ? "delete" : null)}
          title={`Delete ${title}?`}
          description="Its workspaces go on. No new one can be made from it, and its name is free again."
          action="Delete"
          onConfirm={() => remove.mutateAsync(edited.id)}
        />
      )}
    </Drawer>
  );
}

function Group({ title, children }: { title: string; children: ReactNode }) {
  return (
    <fieldset className="settings-template-group">
      <legend>{title}</legend>
      {children}
    </fieldset>
  );
}

function WhatItIs({ draft, set, wrong }: PartProps) {
  return (
    <Group title="What it is">
      <TextField
        label="Name"
        required
        placeholder="python"
        hint="Letters, digits and single -."
        value={draft.name}
        error={wrong("name")}
        onChange={(event) => set({ name: event.target.value })}
      />
      <TextField
        label="Name for people"
        aside="optional"
        placeholder="Python"
        value={draft.displayName}
        error={wrong("display_name")}
        onChange={(event) => set({ displayName: event.target.value })}
      />
      <TextField
        label="What it is for"
        wide
        hint="Chats choose a template by this."
        value={draft.description}
        error={wrong("description")}
        onChange={(event) => set({ description: event.target.value })}
      />
      <Lines
        label="Readme"
        rows={4}
        hint="In Markdown. The model reads it before it creates a workspace."
        value={draft.readme}
        error={wrong("readme")}
        onChange={(readme) => set({ readme })}
      />
      <TextField
        label="Icon"
        wide
        aside="optional"
        hint="An address on this server."
        value={draft.icon}
        error={wrong("icon")}
        onChange={(event) => set({ icon: event.target.value })}
      />
    </Group>
  );
}

function WhereItRuns({ draft, set, wrong }: PartProps) {
  return (
    <Group title="Where it runs">
      <Choice
        label="Backend"
        value={draft.backend}
        options={(Object.keys(BACKENDS) as Backend[]).map((kind) => [kind, BACKENDS[kind].name])}
        hint={BACKENDS[draft.backend].words}
        error={wrong("backend")}
        onChange={(backend) => set({ backend })}
      />
      {takesImage(draft.backend) && (
        <>
          <TextField
            label="Image"
            required
            placeholder="docker.io/library/debian:13"
            value={draft.image}
            error={wrong("spec.image")}
            onChange={(event) => set({ image: event.target.value })}
          />
          <TextField
            label="Runtime"
            aside="optional"
            placeholder="runsc"
            hint={draft.backend === "kubernetes" ? "A RuntimeClass of the cluster." : "Of the container engine."}
            value={draft.runtime}
            error={wrong("spec.runtime")}
            onChange={(event) => set({ runtime: event.target.value })}
          />
        </>
      )}
      <TextField
        label="Pool"
        aside="optional"
        hint="Of runners; empty: the servers themselves."
        value={draft.pool}
        error={wrong("spec.pool")}
        onChange={(event) => set({ pool: event.target.value })}
      />
      <TextField
        label="Labels"
        aside="optional"
        hint="A runner must have all of them."
        placeholder="arm64 gpu"
        value={draft.labels}
        error={wrong("spec.labels")}
        onChange={(event) => set({ labels: event.target.value })}
      />
    </Group>
  );
}

function WhatIsInIt({ draft, set, wrong }: PartProps) {
  const canRead = readsHost(draft.backend);
  const seeds: readonly (readonly [TemplateDraft["seed"], string])[] = [
    ["empty", "Empty"],
    ["git", "A git repository"],
    ...(canRead || draft.seed === "directory" ? ([["directory", "A directory of the runner's host"]] as const) : []),
    ["demo", "The demo project"],
  ];
  return (
    <Group title="What is in it">
      <Choice
        label="Home directory"
        value={draft.seed}
        options={seeds}
        error={draft.seed === "directory" ? undefined : wrong("spec.seed.kind")}
        onChange={(seed) => set({ seed })}
      />
      {draft.seed === "git" && (
        <>
          <TextField
            label="Repository"
            wide
            required
            placeholder="https://git.example.org/shop.git"
            hint={"${name} is replaced by the parameter of that name."}
            value={draft.gitUrl}
            error={wrong("spec.seed.url")}
            onChange={(event) => set({ gitUrl: event.target.value })}
          />
          <TextField
            label="Branch, tag or commit"
            aside="optional"
            value={draft.gitRef}
            error={wrong("spec.seed.ref")}
            onChange={(event) => set({ gitRef: event.target.value })}
          />
          <Field label="Private network" hint="The repository may be there, although the workspace has no network.">
            {(names) => <Switch id={names.id} label="Private network" checked={draft.gitPrivate} onChange={(gitPrivate) => set({ gitPrivate })} />}
          </Field>
        </>
      )}
      {draft.seed === "directory" && (
        <TextField
          label="Directory to copy"
          wide
          required
          placeholder="/srv/projects/shop"
          value={draft.seedPath}
          error={wrong("spec.seed")}
          onChange={(event) => set({ seedPath: event.target.value })}
        />
      )}
      <TextField
        label="Working directory"
        wide
        aside="optional"
        hint="In the home directory: where the content goes, and where commands run."
        value={draft.directory}
        error={wrong("spec.directory")}
        onChange={(event) => set({ directory: event.target.value })}
      />
      <Lines
        label="Environment"
        hint="NAME=value, one a line. Every command and the model can read it: no secrets."
        value={draft.env}
        error={wrong("spec.env")}
        onChange={(env) => set({ env })}
      />
      {canRead && (
        <Lines
          label="Mounts"
          rows={2}
          hint="/path/on/the/host:/path/inside, one a line, read-only."
          value={draft.mounts}
          error={wrong("spec.mounts")}
          onChange={(mounts) => set({ mounts })}
        />
      )}
      <Lines
        label="Start-up script"
        rows={4}
        hint="Part of every start. If it fails, the start fails."
        value={draft.script}
        error={wrong("spec.startup_script")}
        onChange={(script) => set({ script })}
      />
      <TextField
        label="It may take"
        aside="seconds"
        inputMode="decimal"
        value={draft.scriptSeconds}
        error={wrong("spec.startup_timeout_s")}
        onChange={(event) => set({ scriptSeconds: event.target.value })}
      />
    </Group>
  );
}

/** `missing` is null where the workspace's programs are not those of the server. */
function ScreenAndBrowser({ draft, set, wrong, missing }: PartProps & { missing: readonly string[] | null }) {
  const needs = missing?.filter((name) => (name.startsWith("chromium") ? draft.browser : draft.desktop)) ?? [];
  return (
    <Group title="Desktop and browser">
      <div className="ui-form-field is-wide">
        <div className="settings-list">
          <SettingRow title="Desktop" hint="Agents use programs with windows there, and people watch. Needs tigervnc-standalone-server, openbox and ffmpeg.">
            <Switch label="Desktop" checked={draft.desktop} onChange={(desktop) => set({ desktop })} />
          </SettingRow>
          <SettingRow title="Browser" hint="Agents open pages as text. Needs chromium-headless-shell or chromium.">
            <Switch label="Browser" checked={draft.browser} onChange={(browser) => set({ browser })} />
          </SettingRow>
        </div>
        {(draft.desktop || draft.browser) && missing === null && <small>The image, or the hosts of the pool, must have these packages.</small>}
        {needs.length > 0 && (
          <small className="tone-warn" role="status">
            The server lacks packages. Install them there: apt install {needs.join(" ")}
          </small>
        )}
      </div>
      {draft.desktop && (
        <TextField
          label="Size of the screen"
          aside="pixels"
          placeholder="1280x720"
          value={draft.desktopSize}
          error={wrong("spec.desktop_size")}
          onChange={(event) => set({ desktopSize: event.target.value })}
        />
      )}
    </Group>
  );
}

const LIMITS = [
  { key: "memory", field: "memory_bytes", label: "Memory", unit: "GiB" },
  { key: "disk", field: "disk_bytes", label: "Disk", unit: "GiB" },
  { key: "file", field: "file_bytes", label: "One file", unit: "GiB" },
  { key: "processes", field: "processes", label: "Processes", unit: "" },
  { key: "openFiles", field: "open_files", label: "Open files", unit: "" },
  { key: "cpuWeight", field: "cpu_weight", label: "Processor share", unit: "others have 100" },
] as const;

const TIMES = [
  { key: "idleHours", field: "default_ttl_s", label: "Stops when unused", unit: "hours; 0: never" },
  { key: "bumpHours", field: "activity_bump_s", label: "Use extends it by", unit: "hours" },
  { key: "maxHours", field: "max_ttl_s", label: "Stops in any case", unit: "hours; 0: never" },
] as const;

const NETWORK_WORDS = {
  none: "Commands reach no network; a repository is still cloned.",
  allow: "Commands reach the hosts below through a proxy, which refuses all others.",
  full: "Commands reach every network that the host does.",
} as const;

function LimitsAndNetwork({ draft, set, wrong }: PartProps) {
  return (
    <Group title="Limits and network">
      <div className="ui-form-field is-wide">
        <span className="ui-label">Network</span>
        <Segmented
          label="Network"
          value={draft.network}
          options={[
            { value: "none", label: "None" },
            ...(namesHosts(draft.backend) || draft.network === "allow" ? ([{ value: "allow", label: "Named hosts" }] as const) : []),
            { value: "full", label: "Full" },
          ]}
          onChange={(network) => set({ network })}
        />
        <small>{wrong("spec.network") ?? NETWORK_WORDS[draft.network]}</small>
      </div>
      {draft.network === "allow" && (
        <Lines
          label="Hosts that it may reach"
          hint="One a line: github.com, *.pypi.org, example.com:8443. Without a port: 443 and 80. On a private network: private:git.corp.example."
          value={draft.allow}
          error={wrong("spec.allow")}
          onChange={(allow) => set({ allow })}
        />
      )}
      {LIMITS.map(({ key, field, label, unit }) => (
        <TextField
          key={key}
          label={label}
          aside={unit === "" ? "0: no limit" : unit}
          inputMode="decimal"
          value={draft[key]}
          error={wrong(`spec.limits.${field}`)}
          onChange={(event) => set({ [key]: event.target.value })}
        />
      ))}
      {TIMES.map(({ key, field, label, unit }) => (
        <TextField
          key={key}
          label={label}
          aside={unit}
          inputMode="decimal"
          value={draft[key]}
          error={wrong(field)}
          onChange={(event) => set({ [key]: event.target.value })}
        />
      ))}
    </Group>
  );
}

function Parameters({ draft, set, wrong }: PartProps) {
  const list = draft.parameters;
  const change = (at: number, to: Partial<ParameterDraft>) =>
    set({ parameters: list.map((parameter, place) => (place === at ? { ...parameter, ...to } : parameter)) });
  return (
    <Group title="Parameters">
      <div className="ui-form-field is-wide">
        <small>What is asked for when a workspace is made; {"${name}"} in the repository and the environment is replaced by its value.</small>
        {wrong("parameters") !== undefined && list.every((_, at) => wrong(`parameters[${at}]`) === undefined) && (
          <small className="tone-danger">{wrong("parameters")}</small>
        )}
      </div>
      {list.map((parameter, at) => (
        <ParameterFields
          key={parameter.key}
          parameter={parameter}
          wrong={(field) => wrong(`parameters[${at}].${field}`)}
          set={(to) => change(at, to)}
          onRemove={() => set({ parameters: list.filter((_, place) => place !== at) })}
        />
      ))}
      <div className="ui-form-field is-wide">
        <div>
          <Button icon={Plus} size="sm" onClick={() => set({ parameters: [...list, newParameter()] })}>
            Add a parameter
          </Button>
        </div>
      </div>
    </Group>
  );
}

interface ParameterProps {
  parameter: ParameterDraft;
  wrong: (field: string) => string | undefined;
  set: (change: Partial<ParameterDraft>) => void;
  onRemove: () => void;
}

const PARAMETER_FIELDS = ["name", "display_name", "description", "default", "options", "regex", "regex_error", "min", "max"];

function ParameterFields({ parameter, wrong, set, onRemove }: ParameterProps) {
  const [isNew] = useState(parameter.name === "");
  const isWrong = PARAMETER_FIELDS.some((field) => wrong(field) !== undefined);
  return (
    <details className="settings-template-parameter" open={isNew || isWrong || undefined}>
      <summary>
        <span className="ui-strong">{parameter.name || "New parameter"}</span>
        <span className="tone-muted ui-ellipsis ui-grow">{parameter.description}</span>
        {isWrong && <span className="tone-danger">not valid</span>}
      </summary>
      <div>
        <TextField label="Parameter" required value={parameter.name} error={wrong("name")} onChange={(event) => set({ name: event.target.value })} />
        <TextField
          label="Shown as"
          aside="optional"
          value={parameter.displayName}
          error={wrong("display_name")}
          onChange={(event) => set({ displayName: event.target.value })}
        />
        <TextField
          label="Description"
          wide
          aside="optional"
          value={parameter.description}
          error={wrong("description")}
          onChange={(event) => set({ description: event.target.value })}
        />
        <Choice
          label="Type"
          value={parameter.type}
          options={[
            ["string", "Text"],
            ["number", "Number"],
            ["bool", "True or false"],
            ["list(string)", "List of texts, as JSON"],
          ]}
          onChange={(type) => set({ type })}
        />
        <TextField
          label="Default"
          wide
          aside="optional"
          value={parameter.defaultValue}
          error={wrong("default")}
          onChange={(event) => set({ defaultValue: event.target.value, hasDefault: true })}
        />
        {parameter.type === "string" && (
          <>
            <TextField
              label="Pattern"
              aside="optional"
              value={parameter.regex}
              error={wrong("regex")}
              onChange={(event) => set({ regex: event.target.value })}
            />
            <TextField
              label="Said if it does not match"
              aside="optional"
              value={parameter.regexError}
              error={wrong("regex_error")}
              onChange={(event) => set({ regexError: event.target.value })}
            />
          </>
        )}
        {parameter.type === "number" && (
          <>
            <TextField label="Lowest" aside="optional" value={parameter.min} error={wrong("min")} onChange={(event) => set({ min: event.target.value })} />
            <TextField label="Highest" aside="optional" value={parameter.max} error={wrong("max")} onChange={(event) => set({ max: event.target.value })} />
          </>
        )}
        {parameter.type !== "bool" && (
          <Lines
            label="Options"
            rows={2}
            hint="One a line: value, or value = name. Empty: any value."
            value={parameter.options}
            error={wrong("options")}
            onChange={(options) => set({ options })}
          />
        )}
        <Field label="Required" hint="A workspace must give it.">
          {(names) => <Switch id={names.id} label="Required" checked={parameter.required} onChange={(required) => set({ required })} />}
        </Field>
        <Field label="Fixed" hint="It cannot change after the first start.">
          {(names) => <Switch id={names.id} label="Fixed" checked={parameter.fixed} onChange={(fixed) => set({ fixed })} />}
        </Field>
        <Button size="sm" variant="danger" onClick={onRemove}>
          Remove
        </Button>
      </div>
    </details>
  );
}

function WhoMayUseIt({ draft, set, wrong }: PartProps) {
  return (
    <Group title="Who may use it">
      <Lines
        label="Users"
        rows={2}
        hint="Names or email addresses, one a line. Without users and groups: every user."
        value={draft.users}
        error={wrong("users")}
        onChange={(users) => set({ users })}
      />
      <Lines label="Groups" rows={2} hint="Names, one a line." value={draft.groups} error={wrong("groups")} onChange={(groups) => set({ groups })} />
      <div className="ui-form-field is-wide">
        <div className="settings-list">
          <SettingRow title="Chats may use it" hint="Models see it and create workspaces from it. Off: users only.">
            <Switch label="Chats may use it" checked={draft.agentsAllowed} onChange={(agentsAllowed) => set({ agentsAllowed })} />
          </SettingRow>
          <SettingRow title="Require the active version" hint="A workspace gets it at its next start. Off: it keeps its version.">
            <Switch label="Require the active version" checked={draft.requireActive} onChange={(requireActive) => set({ requireActive })} />
          </SettingRow>
        </div>
      </div>
    </Group>
  );
}
