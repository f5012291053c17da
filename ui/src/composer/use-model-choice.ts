/** The model and effort of the next message: what was chosen, else what the chat used, else the default. */
import { useModels, type Model } from "@/api/models";
import type { Effort } from "@/chat-state";
import { useChatDetails } from "@/connection";
import type { MessageDraft } from "./draft/draft";
import { effortFor } from "./model-choice";

export interface ModelChoice {
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
  const model =
    byId(draft.modelConfigId) ?? byId(details?.last_model_config_id) ?? models.find((one) => one.is_default) ?? null;
  return { models, model, effort: effortFor(model, draft.effort ?? details?.reasoning_effort), isLoaded: isSuccess };
}
