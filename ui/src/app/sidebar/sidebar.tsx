import { useQuery } from "@tanstack/react-query";
import { PanelLeft, Plus, Search, Settings2 } from "lucide-react";
import { lazy, Suspense, useEffect, useMemo, useRef } from "react";
import { Link, useLocation, useSearch } from "wouter";
import { api } from "@/api/client";
import { queryKeys, useModelNames } from "@/api/queries";
import { Button, ErrorNote, Icon, IconButton, Logo, Meter, Skeleton, Tooltip, useNow } from "@/components";
import { type ChatFilters, useChatList } from "@/connection";
import { openPalette } from "@/platform/actions";
import { runCommand, shortcutOf } from "@/platform/keys";
import { useIsPhone } from "@/platform/media";
import { HOME_PATH, NEW_CHAT_PATH, useChatId } from "@/platform/routes";
import { moneyText, shortMoneyText } from "@/platform/words";
import { useChatActions } from "../chat-menu";
import { ConnectionBadge } from "../top-bar";
import { ChatTree } from "./chat-tree";
import { countFilters, FilterChips, FilterMenu, type ListFilters, passes, readFilters, writeFilters } from "./filters";
import { type ListChat, shownLabels } from "./list-chat";
import { buildSections, type Section } from "./tree-model";

const SidebarProjects = lazy(async () => ({ default: (await import("../projects/project-list")).SidebarProjects }));

/** Calls back when its place comes into view, for the next page of the list. */
function Sentinel({ onSeen }: { onSeen: () => void }) {
  const place = useRef<HTMLDivElement>(null);
  const newest = useRef(onSeen);
  useEffect(() => {
    newest.current = onSeen;
  });
  useEffect(() => {
    if (place.current === null) return;
    const observer = new IntersectionObserver(
      (entries) => {
        if (entries.some((entry) => entry.isIntersecting)) newest.current();
      },
      { rootMargin: "400px" },
    );
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return <div ref={place} className="sidebar-sentinel" />;
}

function labelsIn(chats: readonly ListChat[]): string[] {
  const found = new Set(chats.flatMap((chat) => shownLabels(chat).map(([key, value]) => `${key}:${value}`)));
  return [...found].sort().slice(0, 12);
}

function NothingToShow({ filters }: { filters: ListFilters }) {
  if (countFilters(filters) === 0) {
    return (
      <p className="app-empty">
        No chats yet. Start one with <kbd>{shortcutOf("chat.new")}</kbd>.
      </p>
    );
  }
  return <p className="app-empty">No chat fits these filters.{!filters.archived && " Archived chats are left out."}</p>;
}

function SideHead({ children, onHide }: { children: React.ReactNode; onHide: () => void }) {
  const isPhone = useIsPhone();
  return (
    <div className="sidebar-head">
      <Link className="sidebar-brand" href={HOME_PATH}>
        <Logo />
        chatd
      </Link>
      {children}
      {isPhone ? (
        <IconButton icon={Search} label="Search" onClick={openPalette} />
      ) : (
        <>
          <IconButton icon={PanelLeft} label="Hide sidebar" shortcut="[" onClick={onHide} />
          <IconButton icon={Plus} label="New chat" shortcut={shortcutOf("chat.new")} onClick={() => runCommand("chat.new")} />
        </>
      )}
    </div>
  );
}

/** The list of chats, with what is spent at its foot. */
export function Sidebar({ onHide }: { onHide: () => void }) {
  const [filters, setFilters] = useListFilters();
  const list = useSections(filters);
  const modelName = useModelNames();
  const currentId = useChatId();
  const kept = writeFilters("", { ...filters });
  const isPhone = useIsPhone();
  const search = useSearch();
  const labels = useMemo(() => labelsIn(list.chats), [list.chats]);
  const { pin } = useChatActions();
  const movePins = async (moves: readonly { id: string; pin_order: number }[]) => {
    for (const move of moves) {
      const chat = list.chats.find((one) => one.id === move.id);
      if (chat !== undefined) await pin(chat, move.pin_order);
    }
  };
  return (
    <>
      <SideHead onHide={onHide}>
        <FilterMenu filters={filters} onChange={setFilters} labels={labels} />
      </SideHead>
      <div className="sidebar-find">
        <button type="button" className="sidebar-find-button" onClick={openPalette}>
          <Icon of={Search} size="sm" />
          <span className="ui-grow">Search</span>
          <kbd>{shortcutOf("palette.open")}</kbd>
        </button>
      </div>
      <FilterChips filters={filters} onChange={setFilters} />
      <Suspense>
        <SidebarProjects />
      </Suspense>
      <div className="sidebar-tree" data-search={search}>
        {list.isLoading && <Skeleton rows={8} label="Loading chats" />}
        {list.error !== null && (
          <ErrorNote
            error={list.error}
            action={
              <Button size="xs" onClick={() => list.refetch()}>
                Try again
              </Button>
            }
          />
        )}
        {list.sections.length > 0 && (
          <ChatTree
            sections={list.sections}
            currentId={currentId}
            modelName={modelName}
            search={kept}
            canMove={countFilters(filters) === 0}
            onMovePins={(moves) => void movePins(moves)}
          />
        )}
        {!list.isLoading && list.error === null && list.sections.length === 0 && !list.hasMore && <NothingToShow filters={filters} />}
        {list.hasMore && <Sentinel key={list.chats.length} onSeen={list.loadMore} />}
        {list.isLoadingMore && <Skeleton rows={2} label="Loading more chats" />}
      </div>
      <ConnectionBadge />
      <UsageFoot>
        {isPhone && (
          <Link className="sidebar-new-chat" href={NEW_CHAT_PATH}>
            <Icon of={Plus} />
            New chat
          </Link>
        )}
      </UsageFoot>
    </>
  );
}

const NONE: readonly ListChat[] = [];
const SHARED: ChatFilters = { source: "shared" };

/** Filters of the address, and how to change them. */
function useListFilters(): [ListFilters, (filters: ListFilters) => void] {
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
function useSections(filters: ListFilters) {
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

const PERIODS = { day: "today", week: "this week", month: "this month" } as const;

/** What was spent, of how much, and the way to the settings. */
function UsageFoot({ children }: { children?: React.ReactNode }) {
  const { data } = useQuery({
    queryKey: queryKeys.usageStatus,
    queryFn: ({ signal }) => api.GET("/api/v1/usage-limits/status", { signal }),
    refetchInterval: 60_000,
  });
  const spent = moneyText(data?.current_spend_micros ?? 0);
  const limit = data?.spend_limit_micros ?? null;
  const period = PERIODS[data?.period ?? "day"];
  return (
    <div className="sidebar-foot">
      <div className="sidebar-usage">
        <div>
          <span>
            <b>{spent}</b> {limit === null ? period : `of ${shortMoneyText(limit)} ${period}`}
          </span>
        </div>
        {limit !== null && (
          <Meter label={`${spent} spent of ${shortMoneyText(limit)} ${period}`} value={(data?.current_spend_micros ?? 0) / 1e6} max={limit / 1e6} />
        )}
      </div>
      <Tooltip text="Settings" side="top">
        <Link className="ui-icon-button" href="/settings/general" aria-label="Settings">
          <Icon of={Settings2} />
        </Link>
      </Tooltip>
      {children}
    </div>
  );
}
