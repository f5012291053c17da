/** The colours of the page for xterm, which takes no variables. */
import type { ITheme } from "@xterm/xterm";

const TOKENS = {
  background: "--bg",
  foreground: "--fg",
  cursor: "--accent",
  cursorAccent: "--bg",
  selectionBackground: "--accent-line",
  black: "--surface",
  red: "--danger",
  green: "--ok",
  yellow: "--warn",
  blue: "--code-fn",
  magenta: "--code-kw",
  cyan: "--chart-2",
  white: "--muted",
  brightBlack: "--subtle",
  brightRed: "--danger",
  brightGreen: "--ok",
  brightYellow: "--warn",
  brightBlue: "--accent",
  brightMagenta: "--chart-4",
  brightCyan: "--info",
  brightWhite: "--fg",
} as const;

export function readTheme(host: HTMLElement): ITheme {
  const probe = document.createElement("span");
  host.append(probe);
  const theme: Record<string, string> = {};
  for (const [name, token] of Object.entries(TOKENS)) {
    probe.style.color = `var(${token})`;
    theme[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return theme;
}

/** Calls back when the theme of the page or of the system changes. */
export function onThemeChange(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", changed);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", changed);
  };
}
