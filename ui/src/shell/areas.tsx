/** The other areas of the page, each loaded when it is first shown. */
import { type ComponentType, lazy } from "react";
import type { PanelTab } from "./actions";

export interface PanelProps {
  chatId: string;
  tab: PanelTab;
  onTab: (tab: PanelTab) => void;
  onClose: () => void;
}

type PanelModule = Record<string, ComponentType<PanelProps>>;
const panels = import.meta.glob<PanelModule>("../panel/index.ts");
const Nothing: ComponentType<PanelProps> = () => null;

export const Timeline = lazy(async () => ({ default: (await import("@/timeline")).Timeline }));
export const Composer = lazy(async () => ({ default: (await import("@/composer")).Composer }));
export const Panel = lazy(async () => ({ default: (await panels["../panel/index.ts"]?.())?.Panel ?? Nothing }));
export const SettingsPages = lazy(async () => ({ default: (await import("@/settings")).SettingsPages }));
export const FirstScreen = lazy(async () => ({ default: (await import("@/demo")).FirstScreen }));
export const DemoPanel = lazy(async () => ({ default: (await import("@/demo")).DemoPanel }));
export const CoachMark = lazy(async () => ({ default: (await import("@/demo")).CoachMark }));
