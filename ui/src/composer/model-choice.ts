/** Which models and efforts can be chosen, and how they are written. */
import { effortsOf, type Model } from "@/api/queries";
import type { Effort } from "@/chat-state/outbox";

const BARS = 3;

/** What is used when nothing was chosen: the chat's, the model's own, the middle one. */
export function effortFor(model: Model | null, wanted: string | null | undefined): Effort | null {
  if (model === null) return null;
  const efforts = effortsOf(model);
  const found = efforts.find((one) => one === wanted) ?? efforts.find((one) => one === model.reasoning_effort?.default);
  return found ?? efforts[Math.floor(efforts.length / 2)] ?? null;
}

export function effortBars(effort: Effort, efforts: readonly Effort[]): readonly boolean[] {
  const real: readonly Effort[] = efforts.filter((one) => one !== "none");
  const at = real.indexOf(effort) + 1;
  const lit = real.length === 0 ? 0 : Math.ceil((at / real.length) * BARS);
  return Array.from({ length: BARS }, (_, index) => index < lit);
}

interface ModelGroup {
  readonly provider: string;
  readonly models: readonly Model[];
}

export function groupModels(models: readonly Model[], query: string): readonly ModelGroup[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = new Map<string, Model[]>();
  for (const model of models) {
    const text = `${model.display_name} ${model.name} ${model.model} ${model.provider}`.toLowerCase();
    if (!model.enabled || !words.every((word) => text.includes(word))) continue;
    groups.set(model.provider, [...(groups.get(model.provider) ?? []), model]);
  }
  return [...groups].map(([provider, found]) => ({ provider, models: found }));
}

/** The names of attached files that the model cannot read. Of a model that nothing is known of: none. */
export function unreadableFiles(model: Model | null, files: readonly { readonly name: string; readonly mediaType: string }[]): readonly string[] {
  const takes = model?.capabilities ?? {};
  const isUnreadable = (type: string) => (takes.pdfs === false && type === "application/pdf") || (takes.images === false && type.startsWith("image/"));
  return files.filter((file) => isUnreadable(file.mediaType)).map((file) => file.name);
}

export function contextLimitOf(model: Model | null): number | null {
  return model?.context_limit ?? model?.capabilities.context_limit ?? null;
}

/** "200k", "1M". */
export function sizeText(model: Model): string {
  const limit = contextLimitOf(model);
  if (limit === null) return "";
  return limit >= 1_000_000 ? `${round(limit / 1_000_000)}M` : `${Math.round(limit / 1000)}k`;
}

function round(value: number): string {
  return String(Math.round(value * 10) / 10);
}

/** Prices are per million tokens. */
export function priceText(model: Model): string {
  const { input, output } = model.prices ?? {};
  if (input == null && output == null) return "";
  if (Number(input ?? 0) === 0 && Number(output ?? 0) === 0) return "Free";
  return `$${Number(input ?? 0)} in, $${Number(output ?? 0)} out per million tokens`;
}
