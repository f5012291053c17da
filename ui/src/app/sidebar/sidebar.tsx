import { PanelLeft, Plus, Search } from "lucide-react";
import { useEffect, useMemo, useRef } from "react";
import { Link, useSearch } from "wouter";
import { useModelNames } from "@/api/models";
import { Button, ErrorNote, Icon, IconButton, Logo, Skeleton } from "@/components";
import { openPalette } from "@/platform/actions";
import { runCommand } from "@/platform/commands";
import { shortcutOf } from "@/platform/keymap";
import { HOME_PATH, NEW_CHAT_PATH, useChatId } from "@/platform/routes";
import { useIsPhone } from "@/platform/use-media";
import { useChatActions } from "../chat-menu";
import { ConnectionBadge } from "../connection-badge";
import { ChatTree } from "./chat-tree";
import { FilterChips, FilterMenu } from "./filter-menu";
import { countFilters, type ListFilters, writeFilters } from "./filters";
import type { ListChat } from "./list-chat";
import { UsageFoot } from "./usage-foot";
import { useListFilters, useSections } from "./use-sidebar-chats";

/** Calls back when its place comes into view, for the next page of the list. */
function Sentinel({ onSeen }: { onSeen: () => void }) {
  const place = useRef<HTMLDivElement>(null);
  const newest = useRef(onSeen);
  useEffect(() => {
    newest.current = onSeen;
  });
  useEffect(() => {
    if (place.current === null) return;
    const observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) newest.current();
    }, { rootMargin: "400px" });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return <div ref={place} className="sidebar-sentinel" />;
}

function labelsIn(chats: readonly ListChat[]): string[] {
  const found = new Set(chats.flatMap((chat) => Object.entries(chat.labels).map(([key, value]) => `${key}:${value}`)));
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
      <div className="sidebar-tree" data-search={search}>
        {list.isLoading && <Skeleton rows={8} label="Loading chats" />}
        {list.error !== null && (
          <ErrorNote error={list.error} action={<Button size="xs" onClick={() => list.refetch()}>Try again</Button>} />
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
