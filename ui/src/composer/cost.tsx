import { useQuery } from "@tanstack/react-query";
import { api } from "@/api/client";
import type { ApiError } from "@/api/errors";
import type { components } from "@/api/schema";
import type { ChatState } from "@/chat-state";
import { Tooltip } from "@/components";
import { useChatSelector } from "@/connection";

type ChatCost = components["schemas"]["ChatCostReply"];

const lastAnswer = (state: ChatState): number =>
  state.messages.findLast((message) => message.role === "assistant")?.id ?? 0;

/** What the chat has cost so far, read again after each answer. */
export function CostChip({ chatId }: { chatId: string }) {
  const answer = useChatSelector(chatId, lastAnswer);
  const { data } = useQuery<ChatCost, ApiError>({
    queryKey: ["chat-cost", chatId, answer],
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/cost", { path: { chat_id: chatId }, signal }),
    enabled: answer > 0,
    placeholderData: (before) => before,
  });
  if (data === undefined || data.call_count === 0) return null;
  const unknown = data.unpriced_call_count > 0 ? `, without ${data.unpriced_call_count} calls of unknown price` : "";
  const budget = data.max_cost_micros === null ? "" : ` of ${dollars(data.max_cost_micros)}`;
  return (
    <Tooltip text={`${dollars(data.total_cost_micros)}${budget} for ${data.call_count} model calls, subagents included${unknown}`} side="top">
      <span className="composer-meter is-wide-only" tabIndex={0}>
        {dollars(data.total_cost_micros)}
      </span>
    </Tooltip>
  );
}

export function dollars(micros: number): string {
  const value = micros / 1_000_000;
  return `$${value > 0 && value < 0.01 ? value.toFixed(4) : value.toFixed(2)}`;
}
