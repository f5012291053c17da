import { Check, ChevronDown, Search } from "lucide-react";
import { useState } from "react";
import { effortName, effortsOf, type Model, useModels } from "@/api/queries";
import type { Effort } from "@/chat-state/outbox";
import { classes, Icon, Popover, Segmented } from "@/components";
import { useChatDetails } from "@/connection";
import type { MessageDraft } from "./draft";
import { effortBars, effortFor, groupModels, priceText, sizeText } from "./model-choice";

interface ModelPickerProps {
  models: readonly Model[];
  model: Model | null;
  effort: Effort | null;
  open: boolean;
  onOpenChange: (open: boolean) => void;
  onModel: (model: Model) => void;
  onEffort: (effort: Effort) => void;
}

/** The model and the reasoning effort of the next message. */
export function ModelPicker(props: ModelPickerProps) {
  const { model, effort, open, onOpenChange } = props;
  const name = model?.display_name ?? "No model";
  const efforts = model === null ? [] : effortsOf(model);
  const trigger = (
    <button
      type="button"
      className={classes("composer-pick", open && "is-on")}
      aria-label={`Model: ${name}${effort === null ? "" : `, effort ${effortName(effort)}`}`}
    >
      <b className="ui-ellipsis">{name}</b>
      {efforts.length > 0 && effort !== null && (
        <>
          <EffortBars effort={effort} efforts={efforts} />
          <span className="is-wide-only">{effortName(effort)}</span>
        </>
      )}
      <Icon of={ChevronDown} size="sm" />
    </button>
  );
  return (
    <Popover trigger={trigger} label="Model" side="top" open={open} onOpenChange={onOpenChange} className="composer-models">
      <ModelList {...props} efforts={efforts} />
    </Popover>
  );
}

function EffortBars({ effort, efforts }: { effort: Effort; efforts: readonly Effort[] }) {
  return (
    <span className="composer-effort" aria-hidden="true">
      {effortBars(effort, efforts).map((isOn, index) => (
        <i key={index} className={classes(`composer-effort-${index + 1}`, isOn && "is-on")} />
      ))}
    </span>
  );
}

function ModelList({ models, model, effort, efforts, onModel, onEffort, onOpenChange }: ModelPickerProps & { efforts: readonly Effort[] }) {
  const [query, setQuery] = useState("");
  const groups = groupModels(models, query);
  return (
    <>
      <label className="ui-field">
        <Icon of={Search} size="sm" className="tone-subtle" />
        <input
          type="search"
          aria-label="Find a model"
          placeholder="Find a model"
          value={query}
          onChange={(event) => setQuery(event.target.value)}
          onKeyDown={(event) => {
            const first = groups[0]?.models[0];
            if (event.key !== "Enter" || first === undefined) return;
            onModel(first);
            onOpenChange(false);
          }}
        />
      </label>
      <div className="composer-model-list">
        {groups.length === 0 && <p className="composer-none">{models.length === 0 ? "No models are set up." : `No model fits "${query}".`}</p>}
        {groups.map((group) => (
          <section key={group.provider} aria-label={group.provider}>
            <h5>{group.provider}</h5>
            {group.models.map((one) => (
              <button
                key={one.id}
                type="button"
                className={classes("ui-menu-item", one.id === model?.id && "is-on")}
                aria-pressed={one.id === model?.id}
                onClick={() => {
                  onModel(one);
                  if (effortsOf(one).length === 0) onOpenChange(false);
                }}
              >
                {one.id === model?.id ? <Icon of={Check} /> : <span />}
                <b className="ui-ellipsis">{one.display_name}</b>
                <span className="tone-subtle ui-number">{sizeText(one)}</span>
                {priceText(one) !== "" && <p>{priceText(one)}</p>}
              </button>
            ))}
          </section>
        ))}
      </div>
      {efforts.length > 0 && (
        <>
          <hr />
          <div className="composer-effort-pick">
            <span>Reasoning effort</span>
            <Segmented
              label="Reasoning effort"
              options={efforts.map((one) => ({ value: one, label: effortName(one) }))}
              value={effort ?? efforts[0] ?? "none"}
              onChange={(value) => onEffort(value)}
            />
          </div>
        </>
      )}
    </>
  );
}

// The model and effort of the next message: what was chosen, else what the chat used, else the default.

interface ModelChoice {
  readonly models: readonly Model[];
  readonly model: Model | null;
  readonly effort: Effort | null;
  readonly isLoaded: boolean;
}

const NONE: readonly Model[] = [];

export function useModelChoice(chatId: string | null, draft: MessageDraft): ModelChoice {
  const { data, isSuccess } = useModels();
  const details = useChatDetails(chatId).data;
  const models = data ?? NONE;
  const byId = (id: string | null | undefined) => models.find((one) => one.id === id && one.enabled);
  const model = byId(draft.modelConfigId) ?? byId(details?.last_model_config_id) ?? models.find((one) => one.is_default) ?? null;
  return { models, model, effort: effortFor(model, draft.effort ?? details?.reasoning_effort), isLoaded: isSuccess };
}
