/** The preview: live parts of the answer that is being written, joined into the parts they become. */
import type { LiveParts, MessagePartEvent, Part, PartOf } from "./types";

/** Names the live parts of one attempt at one answer. */
export interface Episode {
  readonly historyVersion: number;
  readonly attempt: number;
}

export function isSameEpisode(a: Episode | null, b: Episode | null): boolean {
  return a !== null && b !== null && a.historyVersion === b.historyVersion && a.attempt === b.attempt;
}

/**
 * The preview with one more part. A part that it has already is ignored: after a reconnect the
 * server sends all parts of the episode again. So is one after a gap, which the server never makes.
 * The first part of another attempt replaces the preview.
 */
export function addLivePart(live: LiveParts | null, payload: MessagePartEvent["message_part"]): LiveParts | null {
  const episode = { historyVersion: payload.history_version, attempt: payload.attempt };
  const known = isSameEpisode(live, episode) ? live : null;
  if (payload.seq !== (known?.seq ?? 0) + 1) return live;
  const parts = joinPart(known?.parts ?? [], payload.part);
  const earlier = known === null ? keptFor(live, episode) : known.earlier;
  const next = { ...episode, seq: payload.seq, parts };
  return earlier === undefined || charsOf(parts) >= charsOf(earlier) ? next : { ...next, earlier };
}

/** What was said of the same answer by the attempt before. */
function keptFor(live: LiveParts | null, episode: Episode): readonly Part[] | undefined {
  return live !== null && live.historyVersion === episode.historyVersion && live.attempt < episode.attempt ? (live.earlier ?? live.parts) : undefined;
}

/** The preview of an attempt that has ended, while the next one has said nothing yet. */
export function asEarlier(live: LiveParts): LiveParts {
  const earlier = live.earlier ?? live.parts;
  return live.earlier === live.parts ? live : { ...live, earlier, parts: earlier };
}

function charsOf(parts: readonly Part[]): number {
  return parts.reduce((sum, part) => sum + (part.type === "text" || part.type === "reasoning" ? part.text.length : 0), 0);
}

function joinPart(parts: readonly Part[], part: Part): readonly Part[] {
  const last = parts.at(-1);
  switch (part.type) {
    case "text":
      return last?.type === "text" ? replaceAt(parts, parts.length - 1, appendText(last, part)) : [...parts, part];
    case "reasoning":
      return last?.type === "reasoning" ? replaceAt(parts, parts.length - 1, appendReasoning(last, part)) : [...parts, part];
    case "tool-call":
      return joinCall(parts, part);
    case "tool-result":
      return joinResult(parts, part);
    default:
      return [...parts, part];
  }
}

function appendText(last: PartOf<"text">, part: PartOf<"text">): PartOf<"text"> {
  return { ...last, text: last.text + part.text };
}

function appendReasoning(last: PartOf<"reasoning">, part: PartOf<"reasoning">): PartOf<"reasoning"> {
  return { ...last, ...part, text: last.text + part.text };
}

/** Arguments are collected in `args_delta`. The complete call takes their place, where it began. */
function joinCall(parts: readonly Part[], part: PartOf<"tool-call">): readonly Part[] {
  const index = parts.findIndex((one) => one.type === "tool-call" && one.tool_call_id === part.tool_call_id);
  if (index < 0) return [...parts, part];
  const known = parts[index] as PartOf<"tool-call">;
  if (isComplete(known)) return parts;
  if (isComplete(part)) return replaceAt(parts, index, part);
  return replaceAt(parts, index, { ...known, args_delta: (known.args_delta ?? "") + (part.args_delta ?? "") });
}

function isComplete(call: PartOf<"tool-call">): boolean {
  return call.args_delta === undefined || call.args_delta === null;
}

function joinResult(parts: readonly Part[], part: PartOf<"tool-result">): readonly Part[] {
  const index = parts.findIndex((one) => one.type === "tool-result" && one.tool_call_id === part.tool_call_id);
  if (index < 0) return [...parts, part];
  const known = parts[index] as PartOf<"tool-result">;
  if (known.result_delta === undefined || known.result_delta === null) return parts;
  if (part.result_delta === undefined || part.result_delta === null) return replaceAt(parts, index, part);
  return replaceAt(parts, index, { ...known, result_delta: known.result_delta + part.result_delta });
}

function replaceAt(parts: readonly Part[], index: number, part: Part): readonly Part[] {
  const copy = parts.slice();
  copy[index] = part;
  return copy;
}
