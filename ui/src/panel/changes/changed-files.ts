import { useChatDetails } from "@/connection";

/** How many files the chat has changed, for its tab. */
export function useChangedFiles(chatId: string): number | undefined {
  return useChatDetails(chatId).data?.diff_status?.changed_files;
}
