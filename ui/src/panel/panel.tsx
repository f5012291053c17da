/** The panel beside a chat: what it changed, who ran it, where it works. */
import { AppWindow, Bug, Container, type LucideIcon, MonitorDot, Plus, X } from "lucide-react";
import { type ComponentType, lazy, type LazyExoticComponent, Suspense } from "react";
import { ErrorBoundary, IconButton, Menu, MenuItem, Skeleton, Tabs } from "@/components";
import { useChatDetails } from "@/connection";
import type { PanelTab } from "@/platform/actions";

interface PanelProps {
  chatId: string;
  tab: PanelTab;
  onTab: (tab: PanelTab) => void;
  onClose: () => void;
}

const HINTS: Partial<Record<PanelTab, { icon: LucideIcon; hint: string }>> = {
  preview: { icon: AppWindow, hint: "Ports of the workspace, in a frame or a tab" },
  desktop: { icon: MonitorDot, hint: "The screen that agents see: watch, or take over" },
  workspace: { icon: Container, hint: "Where tools act: state, builds, instructions" },
  debug: { icon: Bug, hint: "Model calls with request and answer" },
};

export function Panel({ chatId, tab, onTab, onClose }: PanelProps) {
  const changed = useChangedFiles(chatId);
  const shown = TABS.find((one) => one.value === tab) ?? TABS[0];
  if (shown === undefined) return null;
  const inBar = TABS.filter((one) => one.isExtra !== true || one === shown);
  const inMenu = TABS.filter((one) => !inBar.includes(one));
  return (
    <Tabs
      label="Panel"
      value={shown.value}
      options={inBar.map(({ value, label }) => ({ value, label, count: value === "changes" ? changed : undefined }))}
      onChange={onTab}
      end={
        <>
          {inMenu.length > 0 && (
            <Menu label="More panels" trigger={<IconButton icon={Plus} label="More panels" />}>
              {inMenu.map(({ value, label }) => (
                <MenuItem key={value} icon={HINTS[value]?.icon} hint={HINTS[value]?.hint} onSelect={() => onTab(value)}>
                  {label}
                </MenuItem>
              ))}
            </Menu>
          )}
          <IconButton icon={X} label="Close panel" shortcut="]" onClick={onClose} />
        </>
      }
    >
      <ErrorBoundary key={`${shown.value} ${chatId}`} what={`${shown.label} cannot be shown.`} className="panel-scroll is-top">
        <Suspense
          fallback={
            <div className="panel-scroll">
              <Skeleton rows={4} />
            </div>
          }
        >
          <shown.Content chatId={chatId} />
        </Suspense>
      </ErrorBoundary>
    </Tabs>
  );
}

// The tabs of the panel, each loaded when it is first opened.

interface TabProps {
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
  preview: { label: "Preview", load: async () => (await import("./preview/preview-tab")).PreviewTab, isExtra: true },
  desktop: { label: "Desktop", load: async () => (await import("./desktop/desktop-tab")).DesktopTab, isExtra: true },
  workspace: { label: "Workspace", load: async () => (await import("./workspace/workspace-tab")).WorkspaceTab, isExtra: true },
  debug: { label: "Debug", load: async () => (await import("./debug/debug-tab")).DebugTab, isExtra: true },
};

interface KnownTab extends PanelTabEntry {
  readonly value: PanelTab;
  readonly Content: LazyExoticComponent<ComponentType<TabProps>>;
}

/** The tabs in their order. */
const TABS: readonly KnownTab[] = (Object.keys(ENTRIES) as PanelTab[]).map((value) => {
  const entry = ENTRIES[value];
  return { ...entry, value, Content: lazy(async () => ({ default: await entry.load() })) };
});

/** How many files the chat has changed, for its tab. */
function useChangedFiles(chatId: string): number | undefined {
  return useChatDetails(chatId).data?.diff_status?.changed_files;
}
