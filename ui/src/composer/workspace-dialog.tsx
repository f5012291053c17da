/** Where a new chat works: in a workspace that the user has, in one that is made here, or in its own. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Check } from "lucide-react";
import { type SyntheticEvent, useId, useRef, useState } from "react";
import { api, ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, Dialog, ErrorNote, Field, Icon, Segmented, Skeleton, TextField } from "@/components";
import { focusComposer } from "@/platform/actions";
import { newUuid } from "@/platform/plain-http";
import type { ChosenWorkspace } from "./draft";

type Workspace = components["schemas"]["WorkspaceReply"];
type Parameter = components["schemas"]["Parameter"];

interface WorkspaceDialogProps {
  readonly chosen: ChosenWorkspace | null;
  readonly onChoose: (workspace: ChosenWorkspace | null) => void;
  readonly onClose: () => void;
}

const MAX_LISTED = 30;

type Source = "new" | "existing";

export default function WorkspaceDialog({ chosen, onChoose, onClose }: WorkspaceDialogProps) {
  const [source, setSource] = useState<Source>("new");
  const choose = (workspace: ChosenWorkspace | null) => {
    onChoose(workspace);
    onClose();
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      onCloseAutoFocus={(event) => {
        event.preventDefault();
        focusComposer();
      }}
      title="Workspace of the new chat"
      description="Without a choice the chat makes its own when a tool needs one."
    >
      <Segmented<Source>
        label="Workspace"
        value={source}
        options={[
          { value: "new", label: "New" },
          { value: "existing", label: "One that I have" },
        ]}
        onChange={setSource}
      />
      {source === "new" ? <NewWorkspace onMade={choose} /> : <Existing chosen={chosen} onChoose={choose} />}
      {chosen !== null && (
        <footer>
          <Button onClick={() => choose(null)}>Without {chosen.name}</Button>
        </footer>
      )}
    </Dialog>
  );
}

function Existing({ chosen, onChoose }: { readonly chosen: ChosenWorkspace | null; readonly onChoose: (workspace: ChosenWorkspace) => void }) {
  const { data, error } = useQuery({
    queryKey: queryKeys.workspaces,
    queryFn: ({ signal }) => api.GET("/api/v1/workspaces", { query: { limit: MAX_LISTED }, signal }),
    staleTime: 0,
  });
  if (error !== null) return <ErrorNote error={error} />;
  if (data === undefined) return <Skeleton rows={3} />;
  if (data.items.length === 0) return <p className="tone-muted">You have no workspace yet.</p>;
  return (
    <ul className="composer-workspaces">
      {data.items.map((workspace) => (
        <li key={workspace.id}>
          <button type="button" aria-pressed={workspace.id === chosen?.id} onClick={() => onChoose({ id: workspace.id, name: workspace.name })}>
            <span className="ui-ellipsis ui-grow">{workspace.name}</span>
            <span className="tone-muted">{stateWord(workspace)}</span>
            {workspace.id === chosen?.id && <Icon of={Check} className="tone-accent" />}
          </button>
        </li>
      ))}
    </ul>
  );
}

function stateWord(workspace: Workspace): string {
  const build = workspace.latest_build;
  if (build?.status !== "succeeded") return build === null ? "Not built yet" : build.status;
  return build.transition === "start" ? "Running" : "Stopped: the chat starts it";
}

function NewWorkspace({ onMade }: { readonly onMade: (workspace: ChosenWorkspace) => void }) {
  const { data, error } = useQuery({
    queryKey: queryKeys.templates,
    queryFn: ({ signal }) => api.GET("/api/v1/templates", { query: { limit: 100 }, signal }),
  });
  const templates = (data?.items ?? []).filter((template) => !template.deprecated);
  const [picked, setPicked] = useState<string | null>(null);
  const templateId = picked ?? templates[0]?.id ?? null;
  if (error !== null) return <ErrorNote error={error} />;
  if (data === undefined) return <Skeleton rows={4} />;
  if (templateId === null) return <p className="tone-muted">No template can be used here. An administrator adds them in Settings, Templates.</p>;
  const template = templates.find((one) => one.id === templateId);
  return (
    <>
      <Field label="Template" hint={template?.description}>
        {(names) => (
          <select {...names} className="ui-select" value={templateId} onChange={(event) => setPicked(event.target.value)}>
            {templates.map((one) => (
              <option key={one.id} value={one.id}>
                {one.display_name || one.name}
              </option>
            ))}
          </select>
        )}
      </Field>
      <ParameterForm key={templateId} templateId={templateId} onMade={onMade} />
    </>
  );
}

function ParameterForm({ templateId, onMade }: { readonly templateId: string; readonly onMade: (workspace: ChosenWorkspace) => void }) {
  const client = useQueryClient();
  const template = useQuery({
    queryKey: queryKeys.template(templateId),
    queryFn: ({ signal }) => api.GET("/api/v1/templates/{template_id}", { path: { template_id: templateId }, signal }),
    staleTime: 0,
  });
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  // A second press after a lost reply makes no second workspace.
  const attempt = useRef({ key: "", body: "" });
  const formId = useId();
  const make = async (values: FormData) => {
    const parameters: Record<string, string> = {};
    for (const { name } of template.data?.parameters ?? []) {
      const value = values.get(`parameter ${name}`);
      if (typeof value === "string") parameters[name] = value.trim();
    }
    const name = values.get("name");
    const body = { template_id: templateId, parameters, ...(typeof name === "string" && name.trim() !== "" ? { name: name.trim() } : {}) };
    const text = JSON.stringify(body);
    if (attempt.current.body !== text) attempt.current = { key: newUuid(), body: text };
    setBusy(true);
    setError(null);
    try {
      const made = await api.POST("/api/v1/workspaces", { body, headers: { "Idempotency-Key": attempt.current.key } });
      void client.invalidateQueries({ queryKey: queryKeys.workspaces });
      onMade({ id: made.id, name: made.name });
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      if (!caught.isTemporary) attempt.current = { key: "", body: "" };
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  if (template.error !== null) return <ErrorNote error={template.error} />;
  if (template.data === undefined) return <Skeleton rows={3} />;
  const wrong = (field: string) => error?.validations.find((one) => one.field === field || one.field.endsWith(`.${field}`))?.detail;
  const isPlaced = error?.validations.some((one) => one.field === "name" || template.data.parameters.some(({ name }) => one.field.endsWith(`.${name}`)));
  const submit = (event: SyntheticEvent<HTMLFormElement>) => {
    event.preventDefault();
    if (!isBusy) void make(new FormData(event.currentTarget));
  };
  return (
    <form id={formId} className="ui-dialog-form" onSubmit={submit}>
      {template.data.parameters.map((parameter) => (
        <ParameterField key={parameter.name} parameter={parameter} error={wrong(parameter.name)} />
      ))}
      <TextField label="Name" aside="optional" name="name" maxLength={32} error={wrong("name")} />
      {error !== null && isPlaced !== true && <ErrorNote error={error} />}
      <footer>
        <Button type="submit" variant="primary" busy={isBusy}>
          Create workspace
        </Button>
      </footer>
    </form>
  );
}

function ParameterField({ parameter, error }: { readonly parameter: Parameter; readonly error: string | undefined }) {
  const { name, type, required, options, description, regex_error: rule } = parameter;
  const label = parameter.display_name === undefined || parameter.display_name === "" ? name : parameter.display_name;
  const values =
    type === "bool"
      ? [
          { name: "Yes", value: "true" },
          { name: "No", value: "false" },
        ]
      : (options ?? []);
  const aside = required === true ? undefined : "optional";
  if (values.length > 0 && type !== "list(string)") {
    return (
      <Field label={label} aside={aside} hint={description} error={error}>
        {(names) => (
          <select {...names} className="ui-select" name={`parameter ${name}`} defaultValue={parameter.default ?? ""}>
            {parameter.default == null && <option value="">Choose one</option>}
            {values.map((option) => (
              <option key={option.value} value={option.value}>
                {option.name || option.value}
              </option>
            ))}
          </select>
        )}
      </Field>
    );
  }
  return (
    <TextField
      label={label}
      aside={aside}
      hint={description === "" ? rule : description}
      error={error}
      name={`parameter ${name}`}
      required={required === true && parameter.default == null}
      defaultValue={parameter.default ?? ""}
      inputMode={type === "number" ? "decimal" : undefined}
      autoComplete="off"
      spellCheck={false}
    />
  );
}
