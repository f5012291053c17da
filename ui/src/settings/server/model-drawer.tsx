/** Adds or changes a model: what is known of it is filled in, the options of its provider come from a schema. */
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import { type Model, useAllModels } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, Drawer, ErrorNote, Field, Segmented, TextField } from "@/components";
import { type Definitions, fieldsOf, withoutDefaults } from "../form/json-schema";
import { SchemaForm } from "../form/schema-form";
import { readAll, useResource, useSave } from "../frame";
import { fieldErrors, slugOf } from "./provider-drawer";
import { useProviders } from "./providers";

type Offered = components["schemas"]["OfferedModelReply"];

export function ModelDrawer({ model, onClose }: { model: Model | null; onClose: () => void }) {
  const providers = (useProviders().data ?? []).filter((one) => one.enabled);
  const [draft, setDraft] = useState(() => draftOf(model));
  const provider = providers.find((one) => one.name === draft.provider) ?? (model === null ? providers[0] : undefined);
  const schema = useResource(["options-schema"], () => api.GET("/api/v1/model-options/schema"));
  const definitions = (schema.data?.$defs ?? {}) as Definitions;
  const options = provider && schema.data ? fieldsOf(schema.data.properties[provider.kind] ?? {}, definitions) : [];
  const set = (change: Partial<Draft>) => setDraft({ ...draft, ...change });
  const saving = useSave(
    (given: Draft) => {
      const body = modelBody({ ...given, provider: provider?.name ?? given.provider, options: withoutDefaults(given.options, options) });
      return model === null
        ? api.POST("/api/v1/models", { body: { ...body, name: slugOf(given.displayName || given.model) || "model" } })
        : api.PATCH("/api/v1/models/{model_id}", { path: { model_id: model.id }, body });
    },
    { refresh: [["models"]], quiet: true, done: "Saved. All replicas use it now.", onDone: onClose },
  );
  const wrong = fieldErrors(saving.error);
  const hasWrongOption = [...wrong.keys()].some((name) => name.startsWith("options."));
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
      title={model === null ? "Add a model" : `Edit ${model.display_name}`}
      footer={
        <>
          <Button type="submit" form="model" variant="primary" busy={saving.isPending}>
            Save
          </Button>
          <Button variant="quiet" onClick={onClose}>
            Discard
          </Button>
          {wrong.size > 0 && <span className="tone-danger">{wrong.size === 1 ? "1 field needs a look" : `${wrong.size} fields need a look`}</span>}
        </>
      }
    >
      <form id="model" className="settings-form" onSubmit={submit}>
        <Field label="Provider" wide>
          {(names) => (
            <select {...names} className="ui-select" value={provider?.name ?? ""} onChange={(event) => set({ provider: event.target.value, options: {} })}>
              {providers.map((one) => (
                <option key={one.id} value={one.name}>
                  {one.display_name}
                </option>
              ))}
            </select>
          )}
        </Field>
        {provider && (
          <OfferedModels
            providerId={provider.id}
            value={draft.model}
            error={wrong.get("model")}
            onChoose={(one) => set(filledIn(one))}
            onType={(name) => set({ model: name })}
          />
        )}
        <TextField
          label="Name"
          wide
          value={draft.displayName}
          placeholder={draft.model}
          error={wrong.get("display_name") ?? wrong.get("name")}
          onChange={(event) => set({ displayName: event.target.value })}
        />
        <NumberField
          label="Context window"
          aside="tokens"
          value={draft.contextLimit}
          error={wrong.get("context_limit")}
          onChange={(contextLimit) => set({ contextLimit })}
        />
        <NumberField
          label="Longest answer"
          aside="tokens"
          value={draft.maxOutputTokens}
          error={wrong.get("max_output_tokens")}
          onChange={(maxOutputTokens) => set({ maxOutputTokens })}
        />
        <Compaction value={draft.compaction} limit={Number(draft.contextLimit)} onChange={(compaction) => set({ compaction })} />
        <Effort value={draft.effort} efforts={draft.efforts} onChange={(effort) => set({ effort })} />
        <Fallbacks value={draft.fallbacks} own={model?.name ?? ""} error={wrong.get("fallbacks")} onChange={(fallbacks) => set({ fallbacks })} />
        <NumberField label="Price in" aside="$ per 1M" value={draft.priceIn} error={wrong.get("prices.input")} onChange={(priceIn) => set({ priceIn })} />
        <NumberField label="Price out" aside="$ per 1M" value={draft.priceOut} error={wrong.get("prices.output")} onChange={(priceOut) => set({ priceOut })} />
        <NumberField
          label="Price cached"
          aside="$ per 1M"
          value={draft.priceCached}
          error={wrong.get("prices.cache_read")}
          onChange={(priceCached) => set({ priceCached })}
        />
        {options.length > 0 && (
          <details className="ui-form-field is-wide settings-more-fields" open={hasWrongOption || undefined}>
            <summary className="ui-strong">{options.length} more fields</summary>
            <div className="settings-form">
              <SchemaForm fields={options} values={draft.options} errors={wrong} prefix="options." onChange={(given) => set({ options: given })} />
            </div>
          </details>
        )}
        {saving.error !== null && (
          <div className="ui-form-field is-wide">
            <ErrorNote error={saving.error} />
          </div>
        )}
      </form>
    </Drawer>
  );
}

/** What the provider says of its model. */
function filledIn(one: Offered): Partial<Draft> {
  const known = one.capabilities;
  return {
    model: one.model,
    displayName: one.display_name,
    contextLimit: known.context_limit?.toString() ?? "",
    maxOutputTokens: known.max_output_tokens?.toString() ?? "",
    efforts: known.efforts ?? [],
  };
}

interface OfferedModelsProps {
  providerId: string;
  value: string;
  error: string | undefined;
  onChoose: (one: Offered) => void;
  onType: (name: string) => void;
}

function OfferedModels({ providerId, value, error, onChoose, onType }: OfferedModelsProps) {
  const offered = useResource(["offered", providerId], () =>
    readAll((query) => api.GET("/api/v1/providers/{provider_id}/models", { path: { provider_id: providerId }, query })),
  );
  const list = offered.data ?? [];
  const hint =
    offered.error !== null ? "The provider did not list its models; type the name." : list.length > 0 ? `The provider offers ${list.length}.` : undefined;
  return (
    <>
      <TextField
        label="Model id"
        wide
        list="offered-models"
        required
        value={value}
        error={error}
        hint={hint}
        onChange={(event) => {
          const found = list.find((one) => one.model === event.target.value);
          if (found) onChoose(found);
          else onType(event.target.value);
        }}
      />
      <datalist id="offered-models">
        {list.map((one) => (
          <option key={one.model} value={one.model}>
            {one.display_name}
          </option>
        ))}
      </datalist>
    </>
  );
}

interface NumberFieldProps {
  label: string;
  aside: string;
  value: string;
  error: string | undefined;
  onChange: (value: string) => void;
}

const NumberField = ({ label, aside, value, error, onChange }: NumberFieldProps) => (
  <TextField label={label} aside={aside} inputMode="decimal" value={value} error={error} onChange={(event) => onChange(event.target.value)} />
);

function Compaction({ value, limit, onChange }: { value: number; limit: number; onChange: (value: number) => void }) {
  const hint = limit > 0 ? `${Math.round((limit * value) / 100).toLocaleString("en-US")} of ${limit.toLocaleString("en-US")} tokens. ` : "";
  return (
    <Field label="Compact the chat at" aside={`${value}%`} wide hint={`${hint}Earlier messages stay readable.`}>
      {(names) => (
        <input
          {...names}
          type="range"
          className="settings-slider"
          min={10}
          max={100}
          step={5}
          value={value}
          onChange={(event) => onChange(Number(event.target.value))}
        />
      )}
    </Field>
  );
}

function Effort({ value, efforts, onChange }: { value: string; efforts: readonly string[]; onChange: (value: string) => void }) {
  if (efforts.length === 0) return null;
  return (
    <Field label="Reasoning effort" wide hint="The default. Each chat may choose its own.">
      {() => (
        <Segmented
          label="Reasoning effort"
          value={value}
          options={[{ value: "", label: "Auto" }, ...efforts.map((effort) => ({ value: effort, label: effort }))]}
          onChange={onChange}
        />
      )}
    </Field>
  );
}

interface FallbacksProps {
  value: readonly Fallback[];
  own: string;
  error: string | undefined;
  onChange: (value: readonly Fallback[]) => void;
}

/** The models that answer if this one cannot, in their order, each with its reasons. */
function Fallbacks({ value, own, error, onChange }: FallbacksProps) {
  const models = (useAllModels().data ?? []).filter((one) => one.enabled && one.name !== own);
  const nameOf = (name: string) => models.find((one) => one.name === name)?.display_name ?? name;
  const left = models.filter((one) => value.every((fallback) => fallback.model !== one.name));
  const replace = (index: number, change: Fallback | null) => onChange(value.flatMap((one, at) => (at !== index ? [one] : change === null ? [] : [change])));
  if (models.length === 0 && value.length === 0) return null;
  return (
    <Field label="If it cannot answer" wide hint="These models answer instead, the first that can; a notice in the chat says so." error={error}>
      {(names) => (
        <>
          {value.map((fallback, index) => (
            <fieldset key={fallback.model} className="settings-fallback">
              <legend className="ui-strong">{nameOf(fallback.model)}</legend>
              {REASONS.map((reason) => (
                <label key={reason.name}>
                  <input
                    type="checkbox"
                    checked={fallback.on.includes(reason.name)}
                    onChange={(event) =>
                      replace(index, {
                        ...fallback,
                        on: REASONS.map((one) => one.name).filter((one) => (one === reason.name ? event.target.checked : fallback.on.includes(one))),
                      })
                    }
                  />{" "}
                  {reason.label}
                </label>
              ))}
              <Button size="xs" variant="quiet" aria-label={`Remove ${nameOf(fallback.model)}`} onClick={() => replace(index, null)}>
                Remove
              </Button>
            </fieldset>
          ))}
          {value.length < MAX_FALLBACKS && left.length > 0 && (
            <select
              {...names}
              className="ui-select"
              value=""
              onChange={(event) => onChange([...value, { model: event.target.value, on: REASONS.map((one) => one.name) }])}
            >
              <option value="">Add a model</option>
              {left.map((one) => (
                <option key={one.id} value={one.name}>
                  {one.display_name}
                </option>
              ))}
            </select>
          )}
        </>
      )}
    </Field>
  );
}

const MAX_FALLBACKS = 5;

// A model while it is being edited, and the request that saves it.

type Body = Omit<components["schemas"]["CreateModelBody"], "name" | "is_default">;
type EffortName = Extract<NonNullable<Body["reasoning_effort"]>, string>;

interface Fallback {
  readonly model: string;
  readonly on: readonly Reason[];
}
type Reason = NonNullable<components["schemas"]["Fallback"]["on"]>[number];

const REASONS: readonly { readonly name: Reason; readonly label: string }[] = [
  { name: "outage", label: "No answer" },
  { name: "overload", label: "Overloaded" },
  { name: "access", label: "Key or account refused" },
  { name: "refusal", label: "Refuses" },
  { name: "context", label: "Chat too long" },
];

interface Draft {
  provider: string;
  model: string;
  displayName: string;
  contextLimit: string;
  maxOutputTokens: string;
  compaction: number;
  effort: string;
  efforts: readonly string[];
  priceIn: string;
  priceOut: string;
  priceCached: string;
  fallbacks: readonly Fallback[];
  options: Readonly<Record<string, unknown>>;
}

export const DEFAULT_COMPACTION = 70;

const text = (value: string | number | null | undefined): string => (value === null || value === undefined ? "" : String(value));
const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);

function draftOf(model: Model | null): Draft {
  return {
    provider: model?.provider ?? "",
    model: model?.model ?? "",
    displayName: model?.display_name ?? "",
    contextLimit: text(model?.context_limit),
    maxOutputTokens: text(model?.max_output_tokens),
    compaction: model?.compaction_threshold ?? DEFAULT_COMPACTION,
    effort: model?.reasoning_effort?.default ?? "",
    efforts: model?.capabilities.efforts ?? [],
    priceIn: text(model?.prices?.input),
    priceOut: text(model?.prices?.output),
    priceCached: text(model?.prices?.cache_read),
    fallbacks: (model?.fallbacks ?? []).map((one) => ({ model: one.model, on: one.on ?? REASONS.map((reason) => reason.name) })),
    options: isRecord(model?.options) ? model.options : {},
  };
}

/** What cannot be read is sent as it was typed, so that the server names the field. */
function count(typed: string): number | null {
  const plain = typed.trim().replaceAll(",", "");
  return plain === "" ? null : Number(plain);
}

const price = (typed: string): string | null => (typed.trim() === "" ? null : typed.trim().replace(/^\$/, ""));

function modelBody(draft: Draft): Body {
  const prices = { input: price(draft.priceIn), output: price(draft.priceOut), cache_read: price(draft.priceCached) };
  const priced = Object.values(prices).some((one) => one !== null);
  return {
    provider: draft.provider,
    model: draft.model.trim(),
    display_name: draft.displayName.trim() || null,
    context_limit: count(draft.contextLimit),
    max_output_tokens: count(draft.maxOutputTokens),
    compaction_threshold: draft.compaction,
    reasoning_effort: draft.effort === "" ? null : { default: draft.effort as EffortName },
    prices: priced ? prices : null,
    fallbacks: draft.fallbacks.map((one) => ({ model: one.model, on: [...one.on] })),
    options: draft.options,
  };
}
