import { type CSSProperties, type ReactNode, useEffect } from "react";
import { PhoneScreen } from "@/components";
import { usePreference } from "@/platform/preferences";
import { useIsNarrow, useIsPhone } from "@/platform/use-media";
import { Separator } from "./separator";

export const SIDEBAR_LIMITS = { min: 220, max: 420, initial: 264 } as const;
export const PANEL_LIMITS = { min: 360, max: 1100, initial: 480 } as const;

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
    <div className={`app-layout ${showSidebar ? "app-with-sidebar" : ""} ${panel !== null && !isNarrow ? "app-with-panel" : ""}`} style={style} data-screen={screen}>
      {showSidebar && isPhone && <PhoneScreen title="Chats"><nav className="sidebar-column" id="sidebar" aria-label="Chats">{sidebar}</nav></PhoneScreen>}
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
      {panel !== null && isPhone && screen === "panel" && <PhoneScreen title="Panel"><aside className="panel-column" id="panel" aria-label="Panel">{panel}</aside></PhoneScreen>}
      {panel !== null && !isPhone && (
        <aside className={`panel-column ${overlay ? "is-over" : ""}`} id="panel" aria-label="Panel">
          <Separator label="Width of the panel" controls="panel" side="left" value={panelWidth} {...PANEL_LIMITS} onChange={setPanelWidth} />
          {panel}
        </aside>
      )}
    </div>
  );
}
