import { type CSSProperties, type KeyboardEvent as KeyPress, type PointerEvent, type ReactNode, useEffect, useRef } from "react";
import { PhoneScreen } from "@/components";
import { useIsNarrow, useIsPhone } from "@/platform/media";
import { usePreference } from "@/platform/preferences";

const SIDEBAR_LIMITS = { min: 220, max: 420, initial: 264 } as const;
const PANEL_LIMITS = { min: 360, max: 1100, initial: 480 } as const;

interface ColumnsProps {
  sidebar: ReactNode;
  main: ReactNode;
  mainLabel: string;
  /** Null: no panel is open. */
  panel: ReactNode;
  onClosePanel: () => void;
  /** On a phone one of the three is shown. */
  screen: "list" | "main" | "panel";
}

/** Escape closes a panel that lies over the chat. */
function useEscape(active: boolean, close: () => void): void {
  useEffect(() => {
    if (!active) return;
    const take = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !event.defaultPrevented) {
        event.preventDefault();
        close();
      }
    };
    document.addEventListener("keydown", take);
    return () => document.removeEventListener("keydown", take);
  }, [active, close]);
}

/** Sidebar, chat and panel side by side; at most 1024 px the panel lies over the chat; on a phone one at a time. */
export function Columns({ sidebar, main, mainLabel, panel, onClosePanel, screen }: ColumnsProps) {
  const [hidden] = usePreference("sidebarHidden");
  const [sidebarWidth, setSidebarWidth] = usePreference("sidebarWidth");
  const [panelWidth, setPanelWidth] = usePreference("panelWidth");
  const isPhone = useIsPhone();
  const isNarrow = useIsNarrow();
  const overlay = panel !== null && isNarrow && !isPhone;
  useEscape(overlay, onClosePanel);
  const showSidebar = isPhone ? screen === "list" : !hidden;
  const style = { "--side": `${sidebarWidth}px`, "--panel": `${panelWidth}px` } as CSSProperties;
  return (
    <div
      className={`app-layout ${showSidebar ? "app-with-sidebar" : ""} ${panel !== null && !isNarrow ? "app-with-panel" : ""}`}
      style={style}
      data-screen={screen}
    >
      {showSidebar && isPhone && (
        <PhoneScreen title="Chats">
          <nav className="sidebar-column" id="sidebar" aria-label="Chats">
            {sidebar}
          </nav>
        </PhoneScreen>
      )}
      {showSidebar && !isPhone && (
        <nav className="sidebar-column" id="sidebar" aria-label="Chats">
          {sidebar}
          <Separator label="Width of the sidebar" controls="sidebar" side="right" value={sidebarWidth} {...SIDEBAR_LIMITS} onChange={setSidebarWidth} />
        </nav>
      )}
      {(!isPhone || screen === "main") && (
        <main className="app-chat" id="main" aria-label={mainLabel} tabIndex={-1}>
          {main}
        </main>
      )}
      {overlay && <div className="ui-scrim" onClick={onClosePanel} aria-hidden="true" />}
      {panel !== null && isPhone && screen === "panel" && (
        <PhoneScreen title="Panel">
          <aside className="panel-column" id="panel" aria-label="Panel">
            {panel}
          </aside>
        </PhoneScreen>
      )}
      {panel !== null && !isPhone && (
        <aside className={`panel-column ${overlay ? "is-over" : ""}`} id="panel" aria-label="Panel">
          <Separator label="Width of the panel" controls="panel" side="left" value={panelWidth} {...PANEL_LIMITS} onChange={setPanelWidth} />
          {panel}
        </aside>
      )}
    </div>
  );
}

interface SeparatorProps {
  label: string;
  /** The id of the element whose width it changes. */
  controls: string;
  /** The side of that element on which it stands. */
  side: "left" | "right";
  value: number;
  min: number;
  max: number;
  initial: number;
  onChange: (width: number) => void;
}

const STEP = 16;

/** The edge of a column, to be dragged or moved with the arrow keys. A double click sets the first width again. */
function Separator({ label, controls, side, value, min, max, initial, onChange }: SeparatorProps) {
  const start = useRef<{ x: number; width: number } | null>(null);
  const direction = side === "right" ? 1 : -1;
  const set = (width: number) => onChange(Math.round(Math.min(max, Math.max(min, width))));

  const take = (event: PointerEvent<HTMLDivElement>) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    start.current = { x: event.clientX, width: value };
  };
  const move = (event: PointerEvent<HTMLDivElement>) => {
    if (start.current !== null) set(start.current.width + (event.clientX - start.current.x) * direction);
  };
  const press = (event: KeyPress<HTMLDivElement>) => {
    const widths: Record<string, number> = {
      ArrowLeft: value - STEP * direction,
      ArrowRight: value + STEP * direction,
      Home: min,
      End: max,
      Enter: initial,
    };
    const width = widths[event.key];
    if (width === undefined) return;
    event.preventDefault();
    set(width);
  };

  return (
    <div
      className={`app-separator is-${side}`}
      role="separator"
      aria-orientation="vertical"
      aria-label={label}
      aria-controls={controls}
      aria-valuenow={value}
      aria-valuemin={min}
      aria-valuemax={max}
      tabIndex={0}
      onPointerDown={take}
      onPointerMove={move}
      onPointerUp={() => (start.current = null)}
      onLostPointerCapture={() => (start.current = null)}
      onDoubleClick={() => set(initial)}
      onKeyDown={press}
    />
  );
}
