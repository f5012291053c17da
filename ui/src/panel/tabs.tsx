/** The tabs of the panel, each loaded when it is first opened. */
import { type ComponentType, lazy, type LazyExoticComponent } from "react";
import type { PanelTab } from "@/shell";

export interface TabProps {
  readonly chatId: string;
}

type Module = Record<string, ComponentType<TabProps>>;

const found = import.meta.glob<Module>(["./*/*-tab.tsx", "./files/index.ts", "./terminal/index.ts"]);

interface PanelTabEntry {
  readonly label: string;
  readonly module: string;
  readonly component: string;
  /** In the menu "More panels" until it is open. */
  readonly isExtra?: boolean;
}

const ENTRIES: Readonly<Record<PanelTab, PanelTabEntry>> = {
  changes: { label: "Changes", module: "./changes/changes-tab.tsx", component: "ChangesTab" },
  runs: { label: "Runs", module: "./runs/runs-tab.tsx", component: "RunsTab" },
  terminal: { label: "Terminal", module: "./terminal/index.ts", component: "TerminalTab" },
  files: { label: "Files", module: "./files/index.ts", component: "FilesTab" },
  workspace: { label: "Workspace", module: "./workspace/workspace-tab.tsx", component: "WorkspaceTab", isExtra: true },
  debug: { label: "Debug", module: "./debug/debug-tab.tsx", component: "DebugTab", isExtra: true },
};

export interface KnownTab extends PanelTabEntry {
  readonly value: PanelTab;
  readonly Content: LazyExoticComponent<ComponentType<TabProps>>;
}

/** The tabs that this build of the page has, in their order. */
export const TABS: readonly KnownTab[] = (Object.keys(ENTRIES) as PanelTab[]).flatMap((value) => {
  const entry = ENTRIES[value];
  const load = found[entry.module];
  return load === undefined ? [] : [{ ...entry, value, Content: lazy(async () => ({ default: named(await load(), entry) })) }];
});

function named(module: Module, entry: PanelTabEntry): ComponentType<TabProps> {
  const component = module[entry.component];
  if (component === undefined) throw new Error(`${entry.module} has no ${entry.component}`);
  return component;
}
