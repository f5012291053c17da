import { ChevronDown, ChevronRight } from "lucide-react";
import { type KeyboardEvent, useMemo, useRef, useState } from "react";
import { classes, Icon } from "@/components";
import { usePreference } from "@/platform/preferences";
import { ChatRow } from "./chat-row";
import { type ChatNode, pinMoves, type Section, treeMove, visibleRows } from "./tree-model";

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
  const [focusKey, setFocusKey] = useState<string | null>(null);
  const dragged = useRef<string | null>(null);
  const tree = useRef<HTMLDivElement>(null);
  const keys = new Set(rows.map((row) => row.key));
  const inOrder = [focusKey, currentId, rows[0]?.key ?? null].find((key) => key !== null && keys.has(key)) ?? null;
  const pinned = sections.find((section) => section.name === "pinned")?.nodes.map((node) => node.chat) ?? [];

  const focusRow = (key: string) => tree.current?.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`)?.focus();
  const movePin = (id: string, by: -1 | 1) => onMovePins(pinMoves(pinned, id, pinned.findIndex((chat) => chat.id === id) + by));
  const dropOn = (target: string) => {
    if (dragged.current !== null && dragged.current !== target) {
      onMovePins(pinMoves(pinned, dragged.current, pinned.findIndex((chat) => chat.id === target)));
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
    const move = treeMove(rows, key, event.key);
    if (move === null) return;
    event.preventDefault();
    if ("focus" in move) focusRow(move.focus);
    else fold("open" in move ? move.open : move.close, "open" in move);
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
          isFocusable={node.key === inOrder}
          modelName={modelName(node.chat.last_model_config_id ?? null)}
          search={search}
          pinnedCount={pinned.length}
          onFold={fold}
          onFocus={setFocusKey}
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
    <div role="tree" aria-label="Chats" ref={tree} onKeyDown={press}>
      {sections.map((section, index) => (
        <SectionRows
          key={section.key}
          section={section}
          position={index + 1}
          count={sections.length}
          isOpen={!folded.has(section.key)}
          isFocusable={section.key === inOrder}
          onFold={fold}
          onFocus={setFocusKey}
        >
          {section.nodes.map((node, at) => renderNode(node, section, 2, at + 1, section.nodes.length))}
        </SectionRows>
      ))}
    </div>
  );
}

const SECTION_KEYS: Readonly<Record<string, true>> = { needs: true, pinned: true, shared: true, today: true, yesterday: true, week: true, older: true, found: true };

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
