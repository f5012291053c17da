/** What a chat's error means to the person who reads it: whose side it is on, and what to do next. */
import type { ChatError } from "@/chat-state/types";

export type NextStep = "try_again" | "switch_model" | "open_keys" | "open_models";

export interface Failure {
  readonly title: string;
  readonly advice: string;
  readonly steps: readonly NextStep[];
}

const PROVIDER = "It is on the provider’s side. Nothing is lost.";

const FAILURES: Readonly<Record<string, Failure>> = {
  rate_limit: { title: "The provider limits the rate", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  overloaded: { title: "The provider is overloaded", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  timeout: { title: "The provider did not answer in time", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  stream_silence_timeout: { title: "The provider stopped sending", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  provider_paused: { title: "The provider paused too often", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  auth: { title: "The key was refused", advice: "Set a new key, or choose a model with another one.", steps: ["open_keys", "switch_model"] },
  missing_key: { title: "No key is set", advice: "Add one, or choose another model.", steps: ["open_keys", "switch_model"] },
  provider_disabled: { title: "The provider is switched off", advice: "An admin can switch it on.", steps: ["switch_model", "open_models"] },
  model_removed: { title: "The chat’s model was removed", advice: "", steps: ["switch_model", "open_models"] },
  usage_limit: { title: "A limit is reached", advice: "", steps: ["try_again", "switch_model"] },
  config: { title: "The configuration does not fit", advice: "", steps: ["open_models", "switch_model"] },
  context_overflow: { title: "The chat is too long for the model", advice: "Choose a model with a larger context.", steps: ["switch_model", "try_again"] },
  summary_failed: { title: "The chat is full, and its summary failed", advice: "", steps: ["try_again", "switch_model"] },
  output_limit: { title: "The output limit is too low", advice: "", steps: ["open_models", "try_again"] },
  stream_content_timeout: { title: "The provider sent no answer", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  answer_too_large: { title: "The answer was too large", advice: "What had arrived is kept.", steps: ["try_again", "switch_model"] },
  content_filter: { title: "The provider’s filter stopped the answer", advice: "Change your message, or choose another model.", steps: ["switch_model", "try_again"] },
  refusal: { title: "The model declined to answer", advice: "Change your message, or choose another model.", steps: ["switch_model", "try_again"] },
  crashed: { title: "The turn crashed", advice: "It is on the server’s side. What was said is kept.", steps: ["try_again"] },
  internal: { title: "Something is wrong in the server", advice: "What was said is kept.", steps: ["try_again"] },
  unreadable_record: { title: "A stored message cannot be read", advice: "An admin finds more in the server’s log.", steps: ["try_again"] },
};

const OTHER: Failure = { title: "The turn failed", advice: "What was said is kept.", steps: ["try_again", "switch_model"] };

export function failureOf(error: ChatError): Failure {
  return FAILURES[error.kind ?? ""] ?? OTHER;
}

export const RETRY_TITLES: Readonly<Record<string, string>> = {
  rate_limit: "Rate limited by the provider",
  overloaded: "The provider is overloaded",
  timeout: "The provider did not answer in time",
  stream_silence_timeout: "The provider stopped sending",
};
