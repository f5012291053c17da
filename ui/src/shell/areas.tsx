/** The other areas of the page, each loaded when it is first shown. */
import { type ComponentType, lazy, type LazyExoticComponent } from "react";
import type { PanelTab } from "./actions";

type Area = Record<string, ComponentType<never>>;

const found = import.meta.glob<Area>(["../timeline/index.ts", "../composer/index.ts", "../panel/index.ts", "../settings/index.ts", "../demo/index.ts"]);

const Nothing: ComponentType = () => null;

function area<P extends object>(directory: string, name: string): LazyExoticComponent<ComponentType<P>> {
  return lazy(async () => {
    const module = await found[`../${directory}/index.ts`]?.();
    return { default: (module?.[name] ?? Nothing) as unknown as ComponentType<P> };
  });
}

export interface PanelProps {
  chatId: string;
  tab: PanelTab;
  onTab: (tab: PanelTab) => void;
  onClose: () => void;
}

export const Timeline = area<{ chatId: string }>("timeline", "Timeline");
export const Composer = area<{ chatId: string | null }>("composer", "Composer");
export const Panel = area<PanelProps>("panel", "Panel");
export const SettingsPages = area<object>("settings", "SettingsPages");
export const FirstScreen = area<object>("demo", "FirstScreen");
export const DemoPanel = area<{ chatId: string }>("demo", "DemoPanel");
export const CoachMark = area<{ chatId: string }>("demo", "CoachMark");
