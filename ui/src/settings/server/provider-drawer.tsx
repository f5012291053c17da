/** Adds or changes a provider: its address, keys and what few need. It is tested; a new one gets its first model. */
import { skipToken, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Check, Plus, Trash2, TriangleAlert } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api, ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Drawer, ErrorNote, Field, Icon, IconButton, Switch, TextField } from "@/components";
import { readAll, SettingRow, useResource, useSave } from "../frame";
import type { Provider } from "./providers";

const REFRESH = [["providers"], ["models"]] as const;

interface Draft {
  kind: ProviderKind;
  name: string;
  displayName: string;
  address: string;
  key: string;
  region: string;
  enabled: boolean;
  userKeys: boolean;
}

function draftOf(provider: Provider | null): Draft {
  return {
    kind: (provider?.kind ?? "anthropic") as ProviderKind,
    name: provider?.name ?? "",
    displayName: provider?.display_name ?? "",
    address: provider?.base_url ?? "",
    key: "",
    region: provider?.region ?? "",
    enabled: provider?.enabled ?? true,
    userKeys: provider?.user_keys ?? false,
  };
}

const orNull = (text: string): string | null => (text.trim() === "" ? null : text.trim());

/** "My gateway" becomes "my-gateway": the name in the API and in chatd.toml. */
export const slugOf = (text: string): string =>
  text
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 60);

async function save(provider: Provider | null, draft: Draft): Promise<Provider> {
  const common = {
    display_name: orNull(draft.displayName),
    base_url: orNull(draft.address),
    region: orNull(draft.region),
    enabled: draft.enabled,
    user_keys: draft.userKeys,
    ...(draft.key.trim() === "" ? {} : { api_keys: [draft.key.trim()] }),
  };
  if (provider === null) {
    const name = draft.name || slugOf(draft.displayName) || draft.kind;
    return api.POST("/api/v1/providers", { body: { ...common, kind: draft.kind, name } });
  }
  return api.PATCH("/api/v1/providers/{provider_id}", { path: { provider_id: provider.id }, body: common });
}

export function ProviderDrawer({ provider, onClose }: { provider: Provider | null; onClose: () => void }) {
  const [draft, setDraft] = useState(() => draftOf(provider));
  const [deleting, setDeleting] = useState(false);
  /** A new provider, once it is saved: the drawer stays open for its test. */
  const [made, setMade] = useState<Provider | null>(null);
  const known = made ?? provider;
  const last = useTrial(made?.id);
  const startTrial = useStartTrial();
  const saving = useSave((given: Draft) => save(known, given), {
    refresh: REFRESH,
    quiet: true,
    done: "Saved. All replicas use it now.",
    onDone: (saved) => {
      if (provider !== null) onClose();
      else setMade(saved);
      if (saved.enabled) startTrial(saved.id);
    },
  });
  const words = kindWords(draft.kind);
  const set = (change: Partial<Draft>) => setDraft({ ...draft, ...change });
  const wrong = fieldErrors(saving.error);
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
      title={provider === null ? "Add a provider" : `Edit ${provider.display_name}`}
      footer={
        <>
          <Button type="submit" form="provider" variant={made === null ? "primary" : undefined} busy={saving.isPending || last?.state === "running"}>
            {made === null ? "Save" : "Save and test again"}
          </Button>
          <Button variant="quiet" onClick={onClose}>
            {made === null ? "Discard" : "Close"}
          </Button>
          <span className="ui-grow" />
          {provider !== null && (
            <Button variant="danger" size="sm" onClick={() => setDeleting(true)}>
              Delete
            </Button>
          )}
        </>
      }
    >
      <form id="provider" className="settings-form" onSubmit={submit}>
        <Field label="Kind" wide>
          {(names) => (
            <select
              {...names}
              className="ui-select"
              value={draft.kind}
              disabled={known !== null}
              onChange={(event) => set({ kind: event.target.value as ProviderKind })}
            >
              {PROVIDER_KINDS.map((one) => (
                <option key={one.kind} value={one.kind}>{`${one.name} (${one.api})`}</option>
              ))}
            </select>
          )}
        </Field>
        <TextField
          label="Name"
          wide
          value={draft.displayName}
          placeholder={words?.name}
          error={wrong.get("name") ?? wrong.get("display_name")}
          onChange={(event) => set({ displayName: event.target.value })}
        />
        <TextField
          label="Address"
          wide
          aside={words?.needsAddress === true ? undefined : "optional"}
          placeholder={words?.addressHint}
          value={draft.address}
          error={wrong.get("base_url")}
          hint={provider !== null ? "Another host gets none of the stored keys: enter the key again." : undefined}
          onChange={(event) => set({ address: event.target.value })}
        />
        {words?.takesKey === true && (
          <TextField
            label={known === null ? "Key" : "New key"}
            wide
            type="password"
            autoComplete="off"
            aside={known === null ? undefined : "replaces the stored ones"}
            value={draft.key}
            error={wrong.get("api_keys") ?? wrong.get("api_keys[0]")}
            hint="Stored encrypted, never shown again."
            onChange={(event) => set({ key: event.target.value })}
          />
        )}
        {draft.kind === "bedrock" && (
          <TextField
            label="Region"
            wide
            placeholder="eu-central-1"
            value={draft.region}
            error={wrong.get("region")}
            onChange={(event) => set({ region: event.target.value })}
          />
        )}
        <div className="ui-form-field is-wide">
          <div className="settings-list">
            <SettingRow title="Enabled" hint="Chats may use its models.">
              <Switch label="Enabled" checked={draft.enabled} onChange={(enabled) => set({ enabled })} />
            </SettingRow>
            <SettingRow title="Own keys" hint="Users may enter a key of their own, which is used for their chats.">
              <Switch label="Users may enter own keys" checked={draft.userKeys} onChange={(userKeys) => set({ userKeys })} />
            </SettingRow>
          </div>
        </div>
        {saving.error !== null && (
          <div className="ui-form-field is-wide">
            <ErrorNote error={saving.error} />
          </div>
        )}
      </form>
      {made !== null && (
        <div className="settings-form">
          <div className="ui-form-field is-wide settings-resource">
            {last?.state === "running" && <p role="status">Testing {made.display_name} with one small call…</p>}
            <TrialNote last={last} />
          </div>
          {last?.state === "ended" && last.trial.ok && <FirstModel provider={made} onClose={onClose} />}
        </div>
      )}
      {provider !== null && words?.takesKey === true && <StoredKeys provider={provider} />}
      {provider !== null && (
        <ConfirmDialog
          open={deleting}
          onOpenChange={setDeleting}
          title={`Delete ${provider.display_name}?`}
          description="Its keys are deleted. It cannot be deleted while models use it."
          action="Delete"
          onConfirm={async () => {
            await api.DELETE("/api/v1/providers/{provider_id}", { path: { provider_id: provider.id } });
            saving.reset();
            onClose();
          }}
        />
      )}
    </Drawer>
  );
}

/** Offers the provider's own models; the first one beside the demo becomes the default. */
function FirstModel({ provider, onClose }: { provider: Provider; onClose: () => void }) {
  const offered = useResource(["offered", provider.id], () =>
    readAll((query) => api.GET("/api/v1/providers/{provider_id}/models", { path: { provider_id: provider.id }, query })),
  );
  const [typed, setTyped] = useState<string | null>(null);
  const list = offered.data ?? [];
  const chosen = typed ?? list.find((one) => one.suggested === true)?.model ?? "";
  const add = useSave(
    async (model: string) => {
      const shown = list.find((one) => one.model === model)?.display_name ?? model;
      return api.POST("/api/v1/models", { body: { provider: provider.name, name: slugOf(shown) || "model", model, display_name: shown }, timeoutMs: 60_000 });
    },
    { refresh: REFRESH, quiet: true, done: "The model is there. Chats can use it now.", onDone: onClose },
  );
  const wrong = fieldErrors(add.error);
  return (
    <>
      <TextField
        label="First model"
        wide
        list="first-models"
        value={chosen}
        error={wrong.get("model") ?? wrong.get("name")}
        hint={offered.error !== null ? "The provider did not list its models; type the name." : `The provider offers ${list.length}.`}
        onChange={(event) => setTyped(event.target.value)}
      />
      <datalist id="first-models">
        {list.map((one) => (
          <option key={one.model} value={one.model}>
            {one.display_name}
          </option>
        ))}
      </datalist>
      <div className="ui-form-field is-wide">
        <Button variant="primary" icon={Plus} busy={add.isPending} disabled={chosen.trim() === ""} onClick={() => add.mutate(chosen.trim())}>
          Add this model
        </Button>
      </div>
      {add.error !== null && (
        <div className="ui-form-field is-wide">
          <ErrorNote error={add.error} />
        </div>
      )}
    </>
  );
}

function StoredKeys({ provider }: { provider: Provider }) {
  const [keys, setKeys] = useState(provider.keys ?? []);
  const [adding, setAdding] = useState("");
  const path = { provider_id: provider.id };
  const add = useSave((key: string) => api.POST("/api/v1/providers/{provider_id}/keys", { path, body: { api_key: key } }), {
    refresh: REFRESH,
    onDone: (made) => {
      setKeys([...keys, made]);
      setAdding("");
    },
  });
  const remove = useSave(
    async (keyId: string) => {
      await api.DELETE("/api/v1/providers/{provider_id}/keys/{key_id}", { path: { ...path, key_id: keyId } });
      return keyId;
    },
    { refresh: REFRESH, onDone: (gone) => setKeys(keys.filter((key) => key.id !== gone)) },
  );
  return (
    <div className="settings-form">
      <div className="ui-form-field is-wide">
        <span className="ui-label">Stored keys</span>
        <ul className="settings-list">
          {keys.map((key) => (
            <li key={key.id}>
              <code className="ui-grow">{key.masked}</code>
              <IconButton icon={Trash2} label={`Delete key ${key.masked}`} onClick={() => remove.mutate(key.id)} />
            </li>
          ))}
          <li>
            <input
              className="ui-grow"
              aria-label="Another key"
              placeholder="Another key"
              type="password"
              autoComplete="off"
              value={adding}
              onChange={(event) => setAdding(event.target.value)}
            />
            <Button size="xs" icon={Plus} busy={add.isPending} disabled={adding.trim() === ""} onClick={() => add.mutate(adding.trim())}>
              Add
            </Button>
          </li>
        </ul>
        <small>Calls are spread over the keys; one that is refused or rate limited is left out for a while.</small>
      </div>
    </div>
  );
}

/** What is wrong, by the name of the field in the request. */
export function fieldErrors(error: unknown): ReadonlyMap<string, string> {
  if (!(error instanceof ApiError)) return new Map();
  return new Map(error.validations.map((wrong) => [wrong.field, wrong.detail]));
}

type Trial = components["schemas"]["TrialReply"];

/** The last test of a provider: running, or its result, or why it could not be made. Null: there was none. */
export type ProviderTrial = { state: "running" } | { state: "ended"; trial: Trial } | { state: "error"; error: Error };

/** The last test of a provider, wherever on the page it was started. */
export function useTrial(providerId: string | undefined): ProviderTrial | null {
  const { data } = useQuery<ProviderTrial>({ queryKey: queryKeys.providerTrial(providerId), queryFn: skipToken, staleTime: Infinity, gcTime: Infinity });
  return data ?? null;
}

/** Tests a provider with one small call. The result outlives the part of the page that asked for it. */
export function useStartTrial(): (providerId: string) => void {
  const client = useQueryClient();
  const note = (providerId: string, trial: ProviderTrial) => client.setQueryData<ProviderTrial>(queryKeys.providerTrial(providerId), trial);
  const { mutate } = useMutation({
    mutationFn: (id: string) => api.POST("/api/v1/providers/{provider_id}/test", { path: { provider_id: id }, body: {}, timeoutMs: 120_000 }),
    onMutate: (id) => note(id, { state: "running" }),
    onSuccess: (trial, id) => note(id, { state: "ended", trial }),
    onError: (error, id) => note(id, { state: "error", error }),
  });
  return mutate;
}

/** What the last test showed; nothing while there was none. */
export function TrialNote({ last, onNewKey }: { last: ProviderTrial | null; onNewKey?: (() => void) | undefined }) {
  if (last?.state === "error")
    return (
      <div className="ui-result is-bad">
        <ErrorNote error={last.error} />
      </div>
    );
  if (last?.state === "ended") return <TrialResult trial={last.trial} {...(onNewKey === undefined ? {} : { onNewKey })} />;
  return null;
}

/** What a test call showed: that it works, or whose side the failure is on and what to do. */
export function TrialResult({ trial, onNewKey }: { trial: Trial; onNewKey?: () => void }) {
  if (trial.ok) {
    return (
      <div className="ui-result is-good" role="status">
        <Icon of={Check} />
        <div className="ui-grow">
          <b className="ui-strong">It works.</b> {trial.model} answered in {trial.duration_ms} ms.
        </div>
      </div>
    );
  }
  return (
    <div className="ui-result is-bad" role="alert">
      <Icon of={TriangleAlert} />
      <div className="ui-grow">
        <b className="ui-strong">{trial.explanation ?? "The test failed."}</b>
        {trial.detail && <p>{trial.detail}</p>}
        <p>
          Asked {trial.model || "no model"}; it took {trial.duration_ms} ms.
        </p>
      </div>
      {onNewKey && trial.error_kind === "auth" && (
        <Button size="sm" onClick={onNewKey}>
          New key
        </Button>
      )}
    </div>
  );
}

// Kinds of providers, in words, and what each of them needs.

type ProviderKind = components["schemas"]["CreateProviderBody"]["kind"];

interface KindWords {
  kind: ProviderKind;
  name: string;
  api: string;
  /** The address is needed; otherwise the vendor's own is used. */
  needsAddress: boolean;
  addressHint: string;
  takesKey: boolean;
}

const PROVIDER_KINDS: readonly KindWords[] = [
  { kind: "anthropic", name: "Anthropic", api: "Messages API", needsAddress: false, addressHint: "https://api.anthropic.com", takesKey: true },
  { kind: "openai", name: "OpenAI", api: "Responses API", needsAddress: false, addressHint: "https://api.openai.com/v1", takesKey: true },
  { kind: "google", name: "Google Gemini", api: "Gemini API", needsAddress: false, addressHint: "https://generativelanguage.googleapis.com", takesKey: true },
  { kind: "openai-compat", name: "OpenAI-compatible", api: "Chat Completions", needsAddress: true, addressHint: "http://gpu-box:8000/v1", takesKey: true },
  { kind: "openrouter", name: "OpenRouter", api: "Chat Completions", needsAddress: false, addressHint: "https://openrouter.ai/api/v1", takesKey: true },
  { kind: "azure", name: "Azure OpenAI", api: "Responses API", needsAddress: true, addressHint: "https://name.openai.azure.com", takesKey: true },
  { kind: "bedrock", name: "Amazon Bedrock", api: "Bedrock", needsAddress: false, addressHint: "", takesKey: false },
  { kind: "vercel", name: "Vercel AI Gateway", api: "Chat Completions", needsAddress: false, addressHint: "https://ai-gateway.vercel.sh/v1", takesKey: true },
  { kind: "demo", name: "Demo", api: "built in", needsAddress: false, addressHint: "", takesKey: false },
];

export function kindWords(kind: string): KindWords | undefined {
  return PROVIDER_KINDS.find((words) => words.kind === kind);
}

/** "llm-gateway.internal" of an address; the address itself if it is not one. */
export function hostText(address: string | null | undefined): string {
  if (address === null || address === undefined) return "the vendor's address";
  try {
    return new URL(address).host;
  } catch {
    return address;
  }
}
