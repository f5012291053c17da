/** The other areas of the page, each loaded when it is first shown. */
import { lazy } from "react";

export const Timeline = lazy(async () => ({ default: (await import("@/timeline/list/timeline")).Timeline }));
export const Composer = lazy(async () => ({ default: (await import("@/composer/composer")).Composer }));
export const Panel = lazy(async () => ({ default: (await import("@/panel/panel")).Panel }));
export const EmbeddedChat = lazy(async () => ({ default: (await import("./embedded-chat")).EmbeddedChat }));
export const ChatPolicyDialog = lazy(async () => ({ default: (await import("@/settings/policy/policy-pages")).ChatPolicyDialog }));
export const SettingsPages = lazy(async () => ({ default: (await import("@/settings/settings-pages")).SettingsPages }));
export const FirstScreen = lazy(async () => ({ default: (await import("@/demo/first-screen")).FirstScreen }));
export const DemoPanel = lazy(async () => ({ default: (await import("@/demo/coach-mark")).DemoPanel }));
export const CoachMark = lazy(async () => ({ default: (await import("@/demo/coach-mark")).CoachMark }));
