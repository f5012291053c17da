/** A model while it is being edited, and the request that saves it. */
import type { components } from "@/api/schema";

type Model = components["schemas"]["ModelReply"];
type Body = Omit<components["schemas"]["CreateModelBody"], "name" | "is_default">;
type EffortName = Extract<NonNullable<Body["reasoning_effort"]>, string>;

export interface Draft {
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
  options: Readonly<Record<string, unknown>>;
}

export const DEFAULT_COMPACTION = 70;

const text = (value: string | number | null | undefined): string => (value === null || value === undefined ? "" : String(value));
const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);

export function draftOf(model: Model | null): Draft {
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
    options: isRecord(model?.options) ? model.options : {},
  };
}

/** What cannot be read is sent as it was typed, so that the server names the field. */
function count(typed: string): number | null {
  const plain = typed.trim().replaceAll(",", "");
  return plain === "" ? null : Number(plain);
}

const price = (typed: string): string | null => (typed.trim() === "" ? null : typed.trim().replace(/^\$/, ""));

export function modelBody(draft: Draft): Body {
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
    options: draft.options,
  };
}
