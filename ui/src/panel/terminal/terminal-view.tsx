/** One terminal on the screen: xterm, and the connection to its shell. */
import "@xterm/xterm/css/xterm.css";
import { FitAddon } from "@xterm/addon-fit";
import { type ITheme, Terminal } from "@xterm/xterm";
import { useEffect, useRef, useState } from "react";
import { Button } from "@/components";
import { copyText } from "@/platform/plain-http";
import { toast } from "@/platform/toasts";
import { chatSocketUrl, LostNote, PanelNote, RefusedNote } from "../workspace/workspace-frame";
import { TerminalSocket, type TerminalState } from "./terminal-socket";

interface TerminalViewProps {
  readonly chatId: string;
  readonly id: string;
  readonly label: string;
  readonly isShown: boolean;
  readonly onGone: () => void;
  readonly onRestart: () => void;
  readonly register: (id: string, close: () => void) => () => void;
}

export function TerminalView({ chatId, id, label, isShown, onGone, onRestart, register }: TerminalViewProps) {
  const host = useRef<HTMLDivElement>(null);
  const socket = useRef<TerminalSocket | null>(null);
  const fit = useRef<(() => void) | null>(null);
  const [state, setState] = useState<TerminalState>({ name: "connecting" });

  useEffect(() => {
    const element = host.current;
    if (element === null) return undefined;
    const mounted = mount(element, chatId, id, label, setState);
    socket.current = mounted.socket;
    fit.current = mounted.fit;
    const unregister = register(id, () => mounted.socket.close());
    return () => {
      unregister();
      mounted.dispose();
    };
  }, [chatId, id, label, register]);

  useEffect(() => {
    if (isShown) fit.current?.();
  }, [isShown]);

  return (
    <div className="terminal-view" hidden={!isShown} role="group" aria-label={label}>
      <div className="terminal-host" ref={host} />
      <TerminalNote state={state} onRetry={() => socket.current?.start()} onRestart={onRestart} onGone={onGone} />
    </div>
  );
}

interface NoteProps {
  readonly state: TerminalState;
  readonly onRetry: () => void;
  readonly onRestart: () => void;
  readonly onGone: () => void;
}

/** What keeps the terminal from being used, and what to do about it. */
function TerminalNote({ state, onRetry, onRestart, onGone }: NoteProps) {
  switch (state.name) {
    case "open":
      return null;
    case "connecting":
      return <PanelNote>Connecting</PanelNote>;
    case "waiting":
      return (
        <LostNote retryAt={state.retryAt} onRetry={onRetry}>
          The connection was lost; the shell goes on, and what you type is kept.
        </LostNote>
      );
    case "taken":
      return (
        <PanelNote
          action={
            <Button size="sm" onClick={onRetry}>
              Use it here
            </Button>
          }
        >
          This terminal was opened elsewhere.
        </PanelNote>
      );
    case "exited":
      return (
        <PanelNote
          action={
            <>
              <Button size="sm" onClick={onRestart}>
                New shell
              </Button>
              <Button size="sm" variant="quiet" onClick={onGone}>
                Close
              </Button>
            </>
          }
        >
          The shell has ended{state.exitCode > 0 ? ` with code ${state.exitCode}` : ""}.
        </PanelNote>
      );
    case "refused":
      return <RefusedNote onRetry={onRetry}>{state.message}</RefusedNote>;
  }
}

interface Mounted {
  readonly socket: TerminalSocket;
  readonly fit: () => void;
  readonly dispose: () => void;
}

function mount(element: HTMLElement, chatId: string, id: string, label: string, onState: (state: TerminalState) => void): Mounted {
  const style = getComputedStyle(element);
  const terminal = new Terminal({
    fontFamily: style.fontFamily,
    fontSize: 12,
    lineHeight: 1.35,
    scrollback: 5000,
    screenReaderMode: true,
    cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
    theme: readTheme(element),
    // Links in output may come from anybody: none is opened.
    linkHandler: { activate: () => undefined },
  });
  const fitter = new FitAddon();
  terminal.loadAddon(fitter);
  terminal.open(element);
  // The Tab key is for the shell: another key must lead out of it.
  terminal.textarea?.setAttribute("aria-label", `${label}. Alt and Arrow up leave it.`);
  const fit = (): void => {
    if (element.clientWidth > 0 && element.clientHeight > 0) fitter.fit();
  };
  fit();
  const socket = new TerminalSocket(
    (size) => new WebSocket(chatSocketUrl(chatId, "terminal", { terminal: id, cols: String(size.cols), rows: String(size.rows) })),
    { cols: terminal.cols, rows: terminal.rows },
    {
      onState,
      onReset: () => terminal.reset(),
      onOutput: (data) => terminal.write(data),
      onNotice: (message) => toast(message),
    },
  );
  terminal.onData((text) => socket.input(text));
  terminal.onResize(({ cols, rows }) => socket.resize({ cols, rows }));
  terminal.attachCustomKeyEventHandler((event) => !isLeaveKey(event, element) && !isClipboardKey(event, terminal));
  let frame = 0;
  const observer = new ResizeObserver(() => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(fit);
  });
  observer.observe(element);
  const stopTheme = onThemeChange(() => {
    terminal.options.theme = readTheme(element);
  });
  socket.start();
  terminal.focus();
  return {
    socket,
    fit: () => {
      fit();
      terminal.focus();
    },
    dispose: () => {
      cancelAnimationFrame(frame);
      observer.disconnect();
      stopTheme();
      socket.stop();
      terminal.dispose();
    },
  };
}

/** Alt and Arrow up move the focus to the tab of the shell. */
function isLeaveKey(event: KeyboardEvent, element: HTMLElement): boolean {
  if (!event.altKey || event.key !== "ArrowUp") return false;
  event.preventDefault();
  if (event.type === "keydown") element.closest(".terminal-tab")?.querySelector<HTMLElement>('.terminal-pick [aria-pressed="true"]')?.focus();
  return true;
}

/** Ctrl Shift C copies the selection, Ctrl Shift V pastes by the browser's own key. */
function isClipboardKey(event: KeyboardEvent, terminal: Terminal): boolean {
  if (event.type !== "keydown" || !event.ctrlKey || !event.shiftKey || event.altKey) return false;
  if (event.code === "KeyV") return true;
  if (event.code !== "KeyC" || !terminal.hasSelection()) return false;
  event.preventDefault();
  void copyText(terminal.getSelection()).then((done) => {
    if (!done) toast("The browser did not allow copying.");
  });
  return true;
}

// The colours of the page for xterm, which takes no variables.

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

function readTheme(host: HTMLElement): ITheme {
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
function onThemeChange(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", changed);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", changed);
  };
}
