/** How many files the chat has changed, as the last read of its changes says. */
import { useQuery } from "@tanstack/react-query";
import type { RepositoryChanges } from "./repository";

export const changesKey = (chatId: string, scope: string): readonly unknown[] => ["panel", "changes", chatId, scope];

export function useChangedFiles(chatId: string): number | undefined {
  const { data } = useQuery<readonly RepositoryChanges[]>({ queryKey: changesKey(chatId, "git"), enabled: false });
  return data?.reduce((sum, repository) => sum + repository.files.length, 0);
}
