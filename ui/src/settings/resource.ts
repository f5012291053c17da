/** Reading and changing what the settings show: queries by a name, lists read to a bounded end, saves. */
import { useMutation, type UseMutationResult, useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { MODELS_KEY } from "@/api/models";
import { errorWords } from "@/components";
import { toast } from "@/platform/toasts";

export interface ListPage<T> {
  items: T[];
  has_more: boolean;
  next_cursor: string | null;
}

const PAGE = 200;
export const MAX_LISTED = 2000;

/** All items of a list, at most `MAX_LISTED`. */
export async function readAll<T>(
  read: (query: { limit: number; cursor?: string }) => Promise<ListPage<T>>,
): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null = null;
  do {
    const page: ListPage<T> = await read(cursor === null ? { limit: PAGE } : { limit: PAGE, cursor });
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null && items.length < MAX_LISTED);
  return items;
}

/** Keys of the settings are their own; the models are one cache for the whole page. */
const keyOf = (name: readonly unknown[]): readonly unknown[] => (name[0] === MODELS_KEY[0] ? MODELS_KEY : ["settings", ...name]);

export function useResource<T>(name: readonly unknown[], read: () => Promise<T>): UseQueryResult<T> {
  return useQuery({ queryKey: keyOf(name), queryFn: read });
}

interface SaveOptions<T> {
  /** Resources to read again afterwards. */
  refresh: readonly (readonly unknown[])[];
  /** Said when it worked. */
  done?: string;
  /** Without it a failure is a toast; a form shows it itself. */
  quiet?: boolean;
  onDone?: (value: T) => void;
}

/** A change: reads the named resources again, says that it worked, and shows why it did not. */
export function useSave<A, T>(save: (argument: A) => Promise<T>, options: SaveOptions<T>): UseMutationResult<T, Error, A> {
  const client = useQueryClient();
  return useMutation<T, Error, A>({
    mutationFn: save,
    onSuccess: (value) => {
      for (const name of options.refresh) void client.invalidateQueries({ queryKey: keyOf(name) });
      if (options.done !== undefined) toast({ text: options.done, tone: "ok" });
      options.onDone?.(value);
    },
    onError: (error) => {
      if (options.quiet !== true) toast({ text: errorWords(error).text, tone: "danger" });
    },
  });
}
