import { ChevronDown } from "lucide-react";
import { lazy, Suspense } from "react";
import { effortName, effortsOf, type Model, useModels } from "@/api/queries";
import type { Effort } from "@/chat-state/outbox";
import { classes, Icon, Popover } from "@/components";
import { useChatDetails } from "@/connection";
import type { MessageDraft } from "./draft";
import { effortBars, effortFor } from "./model-choice";

const ModelList = lazy(async () => ({ default: (await import("./model-list")).ModelList }));

export interface ModelPickerProps {
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
      <Suspense>
        <ModelList {...props} efforts={efforts} />
      </Suspense>
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
