import { ChevronDown, ChevronRight, Ellipsis } from "lucide-react";
import { type DragEvent, memo, type MouseEvent, type ReactNode, useRef, useState } from "react";
import { Link } from "wouter";
import { classes, Elapsed, Icon, IconButton, Menu, PlusMinus, StatusIcon, Time } from "@/components";
import { chatPath } from "@/platform/routes";
import { ChatMenuItems } from "../chat-menu";
import { isSubagent, isUnread, type ListChat, shownStatus, subtitle } from "./list-chat";

export interface RowPlace {
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
  if (chat.status === "running") return isSubagent(chat) ? <time><Elapsed since={chat.created_at} /></time> : <span />;
  return isSubagent(chat) ? <span /> : <Time at={chat.updated_at} />;
}

function RowSubtitle({ chat, modelName }: { chat: ListChat; modelName: string | null }) {
  const text = subtitle(chat, modelName);
  const labels = Object.entries(chat.labels).slice(0, 2);
  const changes = chat.diff_status ?? null;
  if (text === null && labels.length === 0 && changes === null) return null;
  return (
    <span className="sidebar-row-subtitle">
      <span className="ui-ellipsis">{text}</span>
      {labels.map(([key, value]) => (
        <span key={key} className="sidebar-label ui-ellipsis" title={`${key}: ${value}`}>
          {value === "" ? key : value}
        </span>
      ))}
      {changes !== null && changes.additions + changes.deletions > 0 && <PlusMinus added={changes.additions} removed={changes.deletions} />}
    </span>
  );
}

/** The menu of a row. For keys it opens with Shift F10; the button is for the pointer. */
function RowMenu(props: { chat: ListChat; open: boolean; setOpen: (open: boolean) => void; onClosed: () => void } & Pick<ChatRowProps, "onMove" | "pinnedCount">) {
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

export const ChatRow = memo(function ChatRow(props: ChatRowProps) {
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
