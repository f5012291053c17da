/** The other areas of the page, each loaded when it is first shown. */
import { lazy } from "react";

export const Timeline = lazy(async () => ({ default: (await import("@/timeline")).Timeline }));
export const Composer = lazy(async () => ({ default: (await import("@/composer")).Composer }));
export const Panel = lazy(async () => ({ default: (await import("@/panel")).Panel }));
export const EmbeddedChat = lazy(async () => ({ default: (await import("./embedded-chat")).EmbeddedChat }));
export const ChatPolicyDialog = lazy(async () => ({ default: (await import("@/settings")).ChatPolicyDialog }));
export const SettingsPages = lazy(async () => ({ default: (await import("@/settings")).SettingsPages }));
export const FirstScreen = lazy(async () => ({ default: (await import("@/demo")).FirstScreen }));
export const DemoPanel = lazy(async () => ({ default: (await import("@/demo")).DemoPanel }));
export const CoachMark = lazy(async () => ({ default: (await import("@/demo")).CoachMark }));
