export * from "./actions";
export { onCommand, runCommand, useCommand } from "./keys/commands";
export { type Command, isMac, keyText, shortcutOf, SHORTCUTS } from "./keys/keymap";
export { ShortcutList } from "./keys/help-dialog";
export { PhoneScreen } from "./layout/columns";
export { useIsNarrow, useIsPhone, useMedia } from "./layout/use-media";
export { readPreference, type Preferences, setPreference, type Theme, usePreference } from "./preferences";
export { forgetUser } from "./sign-in/browser-owner";
export { cameBack, chatPath, HOME_PATH, NEW_CHAT_PATH, SIGN_IN_PATH, useChatId, usePanelTab } from "./routes";
