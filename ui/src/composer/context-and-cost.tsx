import { useQuery } from "@tanstack/react-query";
import { api, type ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import type { ChatState, Message } from "@/chat-state/types";
import { Popover, Tooltip } from "@/components";
import { useChatSelector } from "@/connection";
import { moneyText, plural } from "@/platform/words";

interface ContextUse {
  readonly tokens: number;
  readonly limit: number;
  readonly split: readonly { readonly name: string; readonly tokens: number }[];
}

/** By the last answer that reported its tokens; null before the first one. */
export function contextUse(messages: ChatState["messages"], modelLimit: number | null): ContextUse | null {
  const usage = messages.findLast((message: Message) => message.usage != null)?.usage;
  if (usage == null) return null;
  const cached = usage.cache_read_tokens ?? 0;
  const input = usage.input_tokens ?? 0;
  const output = usage.output_tokens ?? 0;
  const tokens = usage.context_tokens ?? input + output;
  const limit = usage.context_limit ?? modelLimit;
  if (limit == null || limit <= 0 || tokens <= 0) return null;
  const split = [
    { name: "Read from cache", tokens: cached },
    { name: cached > 0 ? "Other input" : "Input", tokens: Math.max(0, input - cached) },
    { name: "Reasoning", tokens: usage.reasoning_tokens ?? 0 },
    { name: "Output", tokens: Math.max(0, output - (usage.reasoning_tokens ?? 0)) },
  ];
  return { tokens, limit, split: split.filter((one) => one.tokens > 0) };
}

const CIRCUMFERENCE = 2 * Math.PI * 6;

function toneOf(part: number): string {
  if (part >= 0.95) return "var(--danger)";
  return part >= 0.85 ? "var(--warn)" : "var(--accent)";
}

/** How much of the model's context window the chat uses. */
export function ContextRing({ use, threshold }: { use: ContextUse; threshold: number | null }) {
  const part = Math.min(1, use.tokens / use.limit);
  const percent = `${Math.round(part * 100)}%`;
  const trigger = (
    <button type="button" className="composer-meter" aria-label={`Context: ${percent} used`}>
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <circle cx="8" cy="8" r="6" fill="none" stroke="var(--selected)" strokeWidth="2.5" />
        <circle
          cx="8"
          cy="8"
          r="6"
          fill="none"
          stroke={toneOf(part)}
          strokeWidth="2.5"
          strokeDasharray={`${part * CIRCUMFERENCE} ${CIRCUMFERENCE}`}
          strokeLinecap="round"
        />
      </svg>
      {percent}
    </button>
  );
  return (
    <Popover trigger={trigger} label="Context" side="top" align="end" className="composer-facts">
      <h5>Context of the last answer</h5>
      <dl>
        <Fact name="Used" value={`${count(use.tokens)} of ${count(use.limit)} tokens`} />
        {use.split.map((one) => (
          <Fact key={one.name} name={one.name} value={count(one.tokens)} />
        ))}
        {threshold !== null && <Fact name="Summarized from" value={`${threshold}%`} />}
      </dl>
    </Popover>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd className="ui-number">{value}</dd>
    </div>
  );
}

function count(tokens: number): string {
  return tokens.toLocaleString("en-US");
}

type ChatCost = components["schemas"]["ChatCostReply"];

const lastAnswer = (state: ChatState): number => state.messages.findLast((message) => message.role === "assistant")?.id ?? 0;

/** What the chat has cost so far, read again after each answer. */
export function CostChip({ chatId }: { chatId: string }) {
  const answer = useChatSelector(chatId, lastAnswer);
  const { data } = useQuery<ChatCost, ApiError>({
    queryKey: queryKeys.chatCost(chatId, answer),
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/cost", { path: { chat_id: chatId }, signal }),
    enabled: answer > 0,
    placeholderData: (before) => before,
  });
  if (data === undefined || data.call_count === 0) return null;
  const unknown = data.unpriced_call_count > 0 ? `, without ${plural(data.unpriced_call_count, "call")} of unknown price` : "";
  const budget = data.max_cost_micros === null ? "" : ` of ${moneyText(data.max_cost_micros)}`;
  return (
    <Tooltip text={`${moneyText(data.total_cost_micros)}${budget} for ${plural(data.call_count, "model call")}, subagents included${unknown}`} side="top">
      <span className="composer-meter is-wide-only" tabIndex={0}>
        {moneyText(data.total_cost_micros)}
      </span>
    </Tooltip>
  );
}

// Why a message was refused, for people. A reached limit says how much, until when, and who can raise it.

type ErrorBody = components["schemas"]["ErrorBody"];

export function refusalText(error: ErrorBody): string {
  if (error.code !== "usage_limit_exceeded" || error.limit_micros == null) return error.message;
  const used = `${moneyText(error.spent_micros ?? 0)} of ${moneyText(error.limit_micros)}`;
  if (error.resets_at == null) return `This chat has used ${used}, its budget. Raise the budget or start another chat.`;
  return `You have used ${used}. It starts again ${momentText(new Date(error.resets_at))}; an admin can raise it.`;
}

function momentText(moment: Date): string {
  const time = moment.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  const isSoon = moment.getTime() - Date.now() < 24 * 60 * 60 * 1000;
  return isSoon ? `at ${time}` : `on ${moment.toLocaleDateString(undefined, { day: "numeric", month: "long" })}, ${time}`;
}
