/** Why a message was refused, for people. A reached limit says how much, until when, and who can raise it. */
import type { components } from "@/api/schema";
import { dollars } from "./cost";

type ErrorBody = components["schemas"]["ErrorBody"];

export function refusalText(error: ErrorBody): string {
  if (error.code !== "usage_limit_exceeded" || error.limit_micros == null) return error.message;
  const used = `${dollars(error.spent_micros ?? 0)} of ${dollars(error.limit_micros)}`;
  if (error.resets_at == null) return `This chat has used ${used}, its budget. Raise the budget or start another chat.`;
  return `You have used ${used}. It starts again ${momentText(new Date(error.resets_at))}; an admin can raise it.`;
}

function momentText(moment: Date): string {
  const time = moment.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  const isSoon = moment.getTime() - Date.now() < 24 * 60 * 60 * 1000;
  return isSoon ? `at ${time}` : `on ${moment.toLocaleDateString(undefined, { day: "numeric", month: "long" })}, ${time}`;
}
