import { ChevronDown, ChevronRight, Ellipsis } from "lucide-react";
import { type DragEvent, type KeyboardEvent, memo, type MouseEvent, type ReactNode, useMemo, useRef, useState } from "react";
import { Link } from "wouter";
import { classes, Elapsed, Icon, IconButton, Menu, PlusMinus, StatusIcon, Time } from "@/components";
import { useTreeFocus } from "@/components/tree";
import { usePreference } from "@/platform/preferences";
import { chatPath } from "@/platform/routes";
import { ChatMenuItems } from "../chat-menu";
import { isSubagent, isUnread, labelText, type ListChat, shownLabels, shownStatus, subtitle } from "./list-chat";
import { type ChatNode, pinMoves, type Section, visibleRows } from "./tree-model";

interface ChatTreeProps {
  sections: readonly Section[];
  currentId: string | null;
  modelName: (id: string | null) => string | null;
  search: string;
  /** Filters hide rows, so places cannot be changed. */
  canMove: boolean;
  onMovePins: (moves: readonly { id: string; pin_order: number }[]) => void;
}

function useFolds() {
  const [list, setList] = usePreference("folded");
  const folded = useMemo(() => new Set(list), [list]);
  const fold = (key: string, open: boolean) => {
    const others = list.filter((one) => one !== key);
    // The list is bounded: what was folded long ago may open again.
    setList(open ? others : [...others, key].slice(-200));
  };
  return { folded, fold };
}

/** Sections, chats and subagents. One row is in the tab order; arrows move (the tree of the ARIA practices). */
export function ChatTree({ sections, currentId, modelName, search, canMove, onMovePins }: ChatTreeProps) {
  const { folded, fold } = useFolds();
  const rows = useMemo(() => visibleRows(sections, folded), [sections, folded]);
  const { ref, stop, setFocused, press: pressTree } = useTreeFocus<HTMLDivElement>(rows, currentId, fold);
  const dragged = useRef<string | null>(null);
  const pinned = sections.find((section) => section.name === "pinned")?.nodes.map((node) => node.chat) ?? [];

  const movePin = (id: string, by: -1 | 1) => onMovePins(pinMoves(pinned, id, pinned.findIndex((chat) => chat.id === id) + by));
  const dropOn = (target: string) => {
    if (dragged.current !== null && dragged.current !== target) {
      onMovePins(
        pinMoves(
          pinned,
          dragged.current,
          pinned.findIndex((chat) => chat.id === target),
        ),
      );
    }
    dragged.current = null;
  };

  const press = (event: KeyboardEvent) => {
    const key = (event.target as HTMLElement).closest<HTMLElement>("[data-key]")?.dataset.key;
    if (key === undefined || event.ctrlKey || event.metaKey) return;
    if (event.altKey) {
      const by = event.key === "ArrowUp" ? -1 : event.key === "ArrowDown" ? 1 : null;
      if (by === null || !canMove || !pinned.some((chat) => chat.id === key)) return;
      event.preventDefault();
      movePin(key, by);
      return;
    }
    if (key in SECTION_KEYS && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      fold(key, folded.has(key));
      return;
    }
    pressTree(event);
  };

  const renderNode = (node: ChatNode, section: Section, level: number, position: number, count: number) => {
    const isOpen = !folded.has(node.key);
    const isPin = canMove && section.name === "pinned" && level === 2;
    return (
      <li key={node.key} role="none">
        <ChatRow
          chat={node.chat}
          place={{ level, position, count }}
          hasChildren={node.children.length > 0}
          isOpen={isOpen}
          isCurrent={node.key === currentId}
          isFocusable={node.key === stop}
          modelName={modelName(node.chat.last_model_config_id ?? null)}
          search={search}
          pinnedCount={pinned.length}
          onFold={fold}
          onFocus={setFocused}
          onMove={isPin ? (by) => movePin(node.key, by) : undefined}
          drag={isPin ? { onStart: (id) => (dragged.current = id), onDropOn: dropOn } : undefined}
        />
        {node.children.length > 0 && isOpen && (
          <ul className="sidebar-children" role="group">
            {node.children.map((kid, index) => renderNode(kid, section, level + 1, index + 1, node.children.length))}
          </ul>
        )}
      </li>
    );
  };

  return (
    <div role="tree" aria-label="Chats" ref={ref} onKeyDown={press}>
      {sections.map((section, index) => (
        <SectionRows
          key={section.key}
          section={section}
          position={index + 1}
          count={sections.length}
          isOpen={!folded.has(section.key)}
          isFocusable={section.key === stop}
          onFold={fold}
          onFocus={setFocused}
        >
          {section.nodes.map((node, at) => renderNode(node, section, 2, at + 1, section.nodes.length))}
        </SectionRows>
      ))}
    </div>
  );
}

const SECTION_KEYS: Readonly<Record<string, true>> = {
  needs: true,
  pinned: true,
  shared: true,
  today: true,
  yesterday: true,
  week: true,
  older: true,
  found: true,
};

interface SectionRowsProps {
  section: Section;
  position: number;
  count: number;
  isOpen: boolean;
  isFocusable: boolean;
  onFold: (key: string, open: boolean) => void;
  onFocus: (key: string) => void;
  children: React.ReactNode;
}

function SectionRows({ section, position, count, isOpen, isFocusable, onFold, onFocus, children }: SectionRowsProps) {
  return (
    <div role="none">
      <div
        className={classes("sidebar-section", section.name === "needs" && "tone-warn")}
        role="treeitem"
        data-key={section.key}
        aria-level={1}
        aria-posinset={position}
        aria-setsize={count}
        aria-expanded={isOpen}
        aria-selected={false}
        tabIndex={isFocusable ? 0 : -1}
        onClick={() => onFold(section.key, !isOpen)}
        onFocus={() => onFocus(section.key)}
      >
        <Icon of={isOpen ? ChevronDown : ChevronRight} />
        {section.title} {section.name === "needs" && <span className="ui-number">{section.nodes.length}</span>}
      </div>
      {isOpen && <ul role="group">{children}</ul>}
    </div>
  );
}

interface RowPlace {
  level: number;
  position: number;
  count: number;
}

interface ChatRowProps {
  chat: ListChat;
  place: RowPlace;
  hasChildren: boolean;
  isOpen: boolean;
  isCurrent: boolean;
  isFocusable: boolean;
  modelName: string | null;
  /** The query that the address keeps: filters. */
  search: string;
  pinnedCount: number;
  onFold: (key: string, open: boolean) => void;
  onFocus: (key: string) => void;
  onMove?: ((by: -1 | 1) => void) | undefined;
  drag?: { onStart: (id: string) => void; onDropOn: (id: string) => void } | undefined;
}

function RowEnd({ chat, isCurrent }: { chat: ListChat; isCurrent: boolean }): ReactNode {
  // What is open is being read.
  if (isUnread(chat) && !isCurrent && chat.status !== "running") {
    return (
      <span className="sidebar-row-end">
        <span className="ui-dot" role="img" aria-label="Unread" />
      </span>
    );
  }
  if (chat.status === "running")
    return isSubagent(chat) ? (
      <time>
        <Elapsed since={chat.created_at} />
      </time>
    ) : (
      <span />
    );
  return isSubagent(chat) ? <span /> : <Time at={chat.updated_at} />;
}

function RowSubtitle({ chat, modelName }: { chat: ListChat; modelName: string | null }) {
  const text = subtitle(chat, modelName);
  const labels = shownLabels(chat).slice(0, 2);
  const changes = chat.diff_status ?? null;
  if (text === null && labels.length === 0 && changes === null) return null;
  return (
    <span className="sidebar-row-subtitle">
      <span className="ui-ellipsis">{text}</span>
      {labels.map(([key, value]) => (
        <span key={key} className="sidebar-label ui-ellipsis" title={`${key}: ${value}`}>
          {labelText(key, value)}
        </span>
      ))}
      {changes !== null && changes.additions + changes.deletions > 0 && <PlusMinus added={changes.additions} removed={changes.deletions} />}
    </span>
  );
}

/** The menu of a row. For keys it opens with Shift F10; the button is for the pointer. */
function RowMenu(
  props: { chat: ListChat; open: boolean; setOpen: (open: boolean) => void; onClosed: () => void } & Pick<ChatRowProps, "onMove" | "pinnedCount">,
) {
  const { chat, open, setOpen, onClosed, onMove, pinnedCount } = props;
  return (
    <Menu
      open={open}
      onOpenChange={setOpen}
      onCloseAutoFocus={(event) => {
        event.preventDefault();
        onClosed();
      }}
      align="start"
      trigger={<IconButton icon={Ellipsis} size="sm" label="Actions" tooltip={false} tabIndex={-1} aria-hidden="true" className="sidebar-row-more" />}
    >
      <ChatMenuItems chat={chat} onMove={onMove} pinnedCount={pinnedCount} />
    </Menu>
  );
}

const ChatRow = memo(function ChatRow(props: ChatRowProps) {
  const { chat, place, hasChildren, isOpen, isCurrent, isFocusable, modelName, search, drag } = props;
  const [menuOpen, setMenuOpen] = useState(false);
  const link = useRef<HTMLAnchorElement>(null);
  const child = isSubagent(chat);
  const isRead = !isUnread(chat) && (chat.status === "waiting" || chat.status === "archived" || chat.status === "error" || chat.status === "pending");

  const fold = (event: MouseEvent) => {
    if (!hasChildren) return;
    event.preventDefault();
    props.onFold(chat.id, !isOpen);
  };
  const openMenu = (event: { preventDefault: () => void }) => {
    event.preventDefault();
    setMenuOpen(true);
  };
  return (
    <div
      className={classes("sidebar-row-box", menuOpen && "is-menu-open")}
      {...(drag && {
        draggable: true,
        onDragStart: (event: DragEvent) => {
          event.dataTransfer.effectAllowed = "move";
          drag.onStart(chat.id);
        },
        onDragOver: (event: DragEvent) => event.preventDefault(),
        onDrop: (event: DragEvent) => {
          event.preventDefault();
          drag.onDropOn(chat.id);
        },
      })}
    >
      <Link
        ref={link}
        href={search === "" ? chatPath(chat.id) : `${chatPath(chat.id)}?${search}`}
        className={classes("sidebar-row", isCurrent && "is-on", isRead && "is-read")}
        role="treeitem"
        data-key={chat.id}
        aria-level={place.level}
        aria-posinset={place.position}
        aria-setsize={place.count}
        aria-expanded={hasChildren ? isOpen : undefined}
        aria-current={isCurrent ? "page" : undefined}
        aria-selected={isCurrent}
        tabIndex={isFocusable ? 0 : -1}
        title={chat.title}
        onFocus={() => props.onFocus(chat.id)}
        onContextMenu={openMenu}
        draggable={false}
      >
        <span className={classes("sidebar-row-icon", hasChildren && "is-foldable")} onClick={fold}>
          <StatusIcon status={shownStatus(chat)} />
          {hasChildren && <Icon of={isOpen ? ChevronDown : ChevronRight} className="ui-chevron" />}
        </span>
        <span className="sidebar-row-title">{chat.title === "" ? "New chat" : chat.title}</span>
        <RowEnd chat={chat} isCurrent={isCurrent} />
        {!child && <RowSubtitle chat={chat} modelName={modelName} />}
      </Link>
      <RowMenu chat={chat} open={menuOpen} setOpen={setMenuOpen} onClosed={() => link.current?.focus()} onMove={props.onMove} pinnedCount={props.pinnedCount} />
    </div>
  );
});
