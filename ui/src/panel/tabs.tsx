/** The tabs of the panel, each loaded when it is first opened. */
import { type ComponentType, lazy, type LazyExoticComponent } from "react";
import type { PanelTab } from "@/platform/actions";

export interface TabProps {
  readonly chatId: string;
}

interface PanelTabEntry {
  readonly label: string;
  readonly load: () => Promise<ComponentType<TabProps>>;
  /** In the menu "More panels" until it is open. */
  readonly isExtra?: boolean;
}

const ENTRIES: Readonly<Record<PanelTab, PanelTabEntry>> = {
  changes: { label: "Changes", load: async () => (await import("./changes/changes-tab")).ChangesTab },
  runs: { label: "Runs", load: async () => (await import("./runs/runs-tab")).RunsTab },
  terminal: { label: "Terminal", load: async () => (await import("./terminal/terminal-tab")).TerminalTab },
  files: { label: "Files", load: async () => (await import("./files/files-tab")).FilesTab },
  workspace: { label: "Workspace", load: async () => (await import("./workspace/workspace-tab")).WorkspaceTab, isExtra: true },
  debug: { label: "Debug", load: async () => (await import("./debug/debug-tab")).DebugTab, isExtra: true },
};

export interface KnownTab extends PanelTabEntry {
  readonly value: PanelTab;
  readonly Content: LazyExoticComponent<ComponentType<TabProps>>;
}

/** The tabs in their order. */
export const TABS: readonly KnownTab[] = (Object.keys(ENTRIES) as PanelTab[]).map((value) => {
  const entry = ENTRIES[value];
  return { ...entry, value, Content: lazy(async () => ({ default: await entry.load() })) };
});
