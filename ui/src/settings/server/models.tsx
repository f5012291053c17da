/** Models: which ones chats can use, at what price, and which one is the default. */
import { Ellipsis, Lock, Plus, Star, StarOff } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import { type Model, useAllModels } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, EmptyState, Field, IconButton, Menu, MenuItem, Tag } from "@/components";
import { MICROS, moneyText, tokensText } from "@/platform/words";
import { Loaded, Section, SettingsPage, Table, useResource, useSave } from "../frame";
import { ModelDrawer } from "./model-drawer";
import { useProviders } from "./providers";

type Opened = Model | "new" | null;

export function ModelsPage() {
  const models = useAllModels();
  const [opened, setOpened] = useState<Opened>(null);
  return (
    <SettingsPage title="Models" lead="Who answers, and at what price.">
      <Section
        title="Models"
        hint="The star marks the default"
        end={
          <Button icon={Plus} onClick={() => setOpened("new")}>
            Add a model
          </Button>
        }
      >
        <Loaded query={models}>
          {(all) => {
            const list = all.filter((model) => model.deleted !== true);
            if (list.length === 0) return <EmptyState>No models yet. Add a provider first, then a model of it.</EmptyState>;
            return <ModelTable models={list} opened={opened} onOpen={setOpened} />;
          }}
        </Loaded>
      </Section>
      <Overrides />
      {opened !== null && <ModelDrawer key={opened === "new" ? "new" : opened.id} model={opened === "new" ? null : opened} onClose={() => setOpened(null)} />}
    </SettingsPage>
  );
}

function ModelTable({ models, opened, onOpen }: { models: readonly Model[]; opened: Opened; onOpen: (model: Model) => void }) {
  const providers = useProviders().data ?? [];
  const nameOf = (model: Model) => providers.find((one) => one.id === model.provider_id)?.display_name ?? model.provider;
  return (
    <Table label="Models" heads={["", "Model", ">Context", ">In, per 1M", ">Out, per 1M", "Provider", ""]}>
      {models.map((model) => (
        <ModelRow key={model.id} model={model} provider={nameOf(model)} selected={opened === model} onOpen={() => onOpen(model)} />
      ))}
    </Table>
  );
}

function ModelRow({ model, provider, selected, onOpen }: { model: Model; provider: string; selected: boolean; onOpen: () => void }) {
  const [deleting, setDeleting] = useState(false);
  const change = useSave((body: components["schemas"]["UpdateModelBody"]) => api.PATCH("/api/v1/models/{model_id}", { path: { model_id: model.id }, body }), {
    refresh: [["models"]],
  });
  const editable = model.source === "database";
  return (
    <tr className={selected ? "is-on" : undefined}>
      <td>
        <IconButton
          icon={model.is_default || model.enabled ? Star : StarOff}
          className={model.is_default ? "tone-accent is-starred" : undefined}
          label={model.is_default ? `${model.display_name} is the default` : `Make ${model.display_name} the default`}
          disabled={model.is_default || !model.enabled}
          onClick={() => change.mutate({ is_default: true })}
        />
      </td>
      <td>
        <span className="ui-strong">{model.display_name}</span> {!model.enabled && <Tag>disabled</Tag>}
        {!editable && <Tag icon={Lock}>{model.provider === "demo" ? "built in" : model.source === "settings" ? "chatd.toml" : "environment"}</Tag>}
        <p>
          <code>{model.model}</code>
          {model.fallbacks && model.fallbacks.length > 0 && `, then ${model.fallbacks.map((one) => one.model).join(", ")}`}
        </p>
      </td>
      <td className="settings-right">{contextText(model)}</td>
      <td className="settings-right">{priceText(model, "input")}</td>
      <td className="settings-right">{priceText(model, "output")}</td>
      <td>{provider}</td>
      <td className="settings-right">
        <Menu trigger={<IconButton icon={Ellipsis} label={`More for ${model.display_name}`} />}>
          <MenuItem onSelect={onOpen} disabled={!editable} hint={editable ? undefined : "It is declared outside the database."}>
            Edit
          </MenuItem>
          <MenuItem onSelect={() => change.mutate({ enabled: !model.enabled })} disabled={!editable}>
            {model.enabled ? "Disable" : "Enable"}
          </MenuItem>
          <MenuItem danger onSelect={() => setDeleting(true)} disabled={!editable}>
            Delete
          </MenuItem>
        </Menu>
        <ConfirmDialog
          open={deleting}
          onOpenChange={setDeleting}
          title={`Delete ${model.display_name}?`}
          description="Chats that use it keep their messages, and the default model answers from now on."
          action="Delete"
          onConfirm={async () => {
            await api.DELETE("/api/v1/models/{model_id}", { path: { model_id: model.id } });
            change.mutate({});
          }}
        />
      </td>
    </tr>
  );
}

/** A window that the provider's refusals have taught is marked; without a number it is only known to be smaller. */
export function contextText(model: Model): string {
  const learned = model.learned_context;
  const limit = model.context_limit ?? model.capabilities.context_limit;
  if (limit == null) return learned == null ? "" : `< ${tokensText(learned.tokens)} (learned)`;
  const marked = learned != null && !learned.is_bound && learned.tokens === limit;
  return marked ? `${tokensText(limit)} (learned)` : tokensText(limit);
}

function priceText(model: Model, side: "input" | "output"): string {
  const price = model.prices?.[side];
  if (price === null || price === undefined) return model.unpriced === true ? "not priced" : "";
  return Number(price) === 0 ? "free" : moneyText(Number(price) * MICROS);
}

/** Models of tasks that no user asks for: titles and summaries. */
function Overrides() {
  const overrides = useResource(["model-overrides"], () => api.GET("/api/v1/model-overrides"));
  const models = (useAllModels().data ?? []).filter((model) => model.enabled && model.deleted !== true);
  const save = useSave((body: components["schemas"]["OverridesBody"]) => api.PATCH("/api/v1/model-overrides", { body }), {
    refresh: [["model-overrides"]],
    done: "Saved.",
  });
  return (
    <Section title="Tasks in the background" hint="A small model is enough">
      <Loaded query={overrides}>
        {(current) => (
          <div className="settings-card settings-form">
            {(["title", "compaction"] as const).map((task) => (
              <Field key={task} label={task === "title" ? "Titles of chats" : "Summaries of long chats"}>
                {(names) => (
                  <select
                    {...names}
                    className="ui-select"
                    value={current[task] ?? ""}
                    onChange={(event) => save.mutate({ [task]: event.target.value || null })}
                  >
                    <option value="">The model of the chat</option>
                    {models.map((model) => (
                      <option key={model.id} value={model.name}>
                        {model.display_name}
                      </option>
                    ))}
                  </select>
                )}
              </Field>
            ))}
          </div>
        )}
      </Loaded>
    </Section>
  );
}
