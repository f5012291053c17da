/** What the page says about a recorded model call. Pure. */
import type { components } from "@/api/schema";
import { durationText } from "@/components";

export type ModelCall = components["schemas"]["DebugRunItem"];

const KINDS: Readonly<Record<ModelCall["kind"], string>> = { turn: "Answer", title: "Title", compaction: "Summary" };

export function callTitle(call: ModelCall): string {
  return call.attempt > 1 ? `${KINDS[call.kind]}, attempt ${call.attempt}` : KINDS[call.kind];
}

export function callOutcome(call: ModelCall): "done" | "stopped" | "error" {
  if (call.error_kind === "cancelled") return "stopped";
  return call.error === null ? "done" : "error";
}

/** "3,261 in, 9 out, 1,024 cached". */
export function tokensText(usage: ModelCall["usage"]): string {
  const parts = [
    [usage.input_tokens, "in"],
    [usage.output_tokens, "out"],
    [usage.reasoning_tokens, "reasoning"],
    [usage.cache_read_tokens, "from cache"],
    [usage.cache_creation_tokens, "to cache"],
  ] as const;
  const shown = parts.filter(([count, word]) => (count ?? 0) > 0 || word === "in" || word === "out").map(([count, word]) => `${(count ?? 0).toLocaleString("en")} ${word}`);
  return `${shown.join(", ")}${usage.estimated === true ? " (estimated)" : ""}`;
}

export function callFacts(call: ModelCall): readonly (readonly [string, string])[] {
  const facts: (readonly [string, string | null])[] = [
    ["Model", `${call.model} of ${call.provider}`],
    ["Tokens", tokensText(call.usage)],
    ["First part", call.first_part_ms === null ? "none came" : `after ${durationText(call.first_part_ms)}`],
    ["Ended by", call.finish_reason],
    ["Status", call.status_code === null ? null : String(call.status_code)],
    ["Error", call.error],
    ["Version", `${call.history_version.toLocaleString("en")}, attempt ${call.attempt}`],
  ];
  return facts.filter((fact): fact is readonly [string, string] => fact[1] !== null);
}
