/** The panel beside a chat: what it changed, who ran it, where it works. */
import { Bug, Container, type LucideIcon, Plus, X } from "lucide-react";
import { Suspense } from "react";
import { ErrorBoundary, IconButton, Menu, MenuItem, Skeleton, Tabs } from "@/components";
import type { PanelTab } from "@/platform/actions";
import { useChangedFiles } from "./changes/changed-files";
import { TABS } from "./tabs";

export interface PanelProps {
  chatId: string;
  tab: PanelTab;
  onTab: (tab: PanelTab) => void;
  onClose: () => void;
}

const HINTS: Partial<Record<PanelTab, { icon: LucideIcon; hint: string }>> = {
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
        <Suspense fallback={<div className="panel-scroll"><Skeleton rows={4} /></div>}>
          <shown.Content chatId={chatId} />
        </Suspense>
      </ErrorBoundary>
    </Tabs>
  );
}
