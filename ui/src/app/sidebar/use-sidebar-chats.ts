import { useMemo } from "react";
import { useLocation, useSearch } from "wouter";
import { useNow } from "@/components";
import { type ChatFilters, useChatList } from "@/connection";
import { countFilters, type ListFilters, passes, readFilters, writeFilters } from "./filters";
import type { ListChat } from "./list-chat";
import { buildSections, type Section } from "./tree-model";

const NONE: readonly ListChat[] = [];
const SHARED: ChatFilters = { source: "shared" };

/** Filters of the address, and how to change them. */
export function useListFilters(): [ListFilters, (filters: ListFilters) => void] {
  const [path, navigate] = useLocation();
  const search = useSearch();
  const filters = useMemo(() => readFilters(search), [search]);
  const change = (next: ListFilters) => {
    const query = writeFilters(search, next);
    navigate(query === "" ? path : `${path}?${query}`, { replace: true });
  };
  return [filters, change];
}

function requestOf(filters: ListFilters): ChatFilters {
  return {
    ...(filters.archived ? { archived: true } : {}),
    ...(filters.source === null ? {} : { source: filters.source }),
    ...(filters.status === null ? {} : { status: filters.status }),
    ...(filters.labels.length === 0 ? {} : { label: [...filters.labels] }),
  };
}

/** The list in sections, as the filters of the address want it. */
export function useSections(filters: ListFilters) {
  const request = useMemo(() => requestOf(filters), [filters]);
  const list = useChatList(request);
  const shared = useChatList(SHARED).chats;
  const withShared = countFilters(filters) === 0;
  const today = new Date(useNow("minute")).toDateString();
  const sections = useMemo((): Section[] => {
    const shown = list.chats.filter((chat) => passes(chat, filters));
    return buildSections(shown, withShared ? shared : NONE, new Date(today));
  }, [list.chats, shared, withShared, filters, today]);
  return { ...list, sections };
}
