/** Commands that the shell takes itself: they move between chats and open panels. */
import { lazy, Suspense, useEffect, useState } from "react";
import { useLocation, useSearch } from "wouter";
import { ErrorBoundary, loadPopups } from "@/components";
import { useChatList } from "@/connection";
import { focusComposer, type PanelTab, useAction } from "@/platform/actions";
import { onNotificationPress } from "@/platform/browser";
import { useCommand, useKeys } from "@/platform/keys";
import { useIsPhone } from "@/platform/media";
import { readPreference, setPreference } from "@/platform/preferences";
import { chatOfPath, chatPath, HOME_PATH, isKnownPath, NEW_CHAT_PATH, projectOfPath, PROJECTS_PATH, SEARCH_PATH, usePanelTab } from "@/platform/routes";
import { DemoPanel, Panel } from "./areas";
import { useNotices } from "./attention";
import { ChatDialogs } from "./chat-menu";
import { ChatPage, GonePage, NewChatPage } from "./chat-page";
import { Columns } from "./columns";
import { familyNeedsYou, type ListChat, needsYou } from "./sidebar/list-chat";
import { Sidebar } from "./sidebar/sidebar";

interface CommandPlaces {
  chatId: string | null;
  tab: PanelTab | null;
  setTab: (tab: PanelTab | null) => void;
  openPalette: () => void;
  openHelp: () => void;
}

/** The next chat that waits for a person, after the open one; a subagent stands for itself. */
function nextThatNeedsYou(chats: readonly ListChat[], currentId: string | null): string | null {
  const waiting = chats.filter(familyNeedsYou).flatMap((chat) => [chat, ...(chat.children ?? [])].filter(needsYou).map((one) => one.id));
  if (waiting.length === 0) return null;
  const at = currentId === null ? -1 : waiting.indexOf(currentId);
  return waiting[(at + 1) % waiting.length] ?? null;
}

function useShellCommands({ chatId, tab, setTab, openPalette, openHelp }: CommandPlaces): void {
  const [, navigate] = useLocation();
  const { chats } = useChatList();
  const togglePanel = (wanted: PanelTab) => {
    if (chatId === null) return false;
    setTab(tab === wanted ? null : wanted);
    return true;
  };
  useEffect(() => onNotificationPress(navigate), [navigate]);
  useCommand("palette.open", openPalette);
  useCommand("help.open", openHelp);
  useCommand("chat.new", () => {
    navigate(NEW_CHAT_PATH);
    focusComposer();
  });
  useCommand("composer.focus", focusComposer);
  useCommand("chat.nth", (digit) => {
    const chat = digit === null ? undefined : chats[digit - 1];
    if (chat === undefined) return false;
    navigate(chatPath(chat.id));
    return true;
  });
  useCommand("chat.needsYou", () => {
    const next = nextThatNeedsYou(chats, chatId);
    if (next === null) return false;
    navigate(chatPath(next));
    return true;
  });
  useCommand("sidebar.toggle", () => setPreference("sidebarHidden", !readPreference("sidebarHidden")));
  useCommand("panel.toggle", () => togglePanel(tab ?? "changes"));
  useCommand("panel.changes", () => togglePanel("changes"));
  useCommand("panel.runs", () => togglePanel("runs"));
  useCommand("panel.terminal", () => togglePanel("terminal"));
}

const Palette = lazy(async () => ({ default: (await import("./palette")).Palette }));
const HelpDialog = lazy(async () => ({ default: (await import("@/components/shortcuts")).HelpDialog }));
const ProjectsPage = lazy(async () => ({ default: (await import("./projects/project-list")).ProjectsPage }));
const ProjectPage = lazy(async () => ({ default: (await import("./projects/project-page")).ProjectPage }));
const SearchPage = lazy(async () => ({ default: (await import("./search-page")).SearchPage }));

function MainScreen({ path }: { path: string }) {
  const chatId = chatOfPath(path);
  if (chatId !== null) return <ChatPage key={chatId} chatId={chatId} />;
  if (path === SEARCH_PATH)
    return (
      <Suspense>
        <SearchPage />
      </Suspense>
    );
  const projectId = projectOfPath(path);
  if (projectId !== null || path === PROJECTS_PATH)
    return <Suspense>{projectId === null ? <ProjectsPage /> : <ProjectPage key={projectId} id={projectId} />}</Suspense>;
  return isKnownPath(path) ? <NewChatPage /> : <GonePage />;
}

function PanelScreen({ chatId, tab, setTab }: { chatId: string; tab: PanelTab; setTab: (tab: PanelTab | null) => void }) {
  return (
    <ErrorBoundary what="The panel cannot be shown." resetKey={`${tab} ${chatId}`} className="app-error">
      <Suspense>
        <Panel chatId={chatId} tab={tab} onTab={setTab} onClose={() => setTab(null)} />
        {tab === "runs" && <DemoPanel chatId={chatId} />}
      </Suspense>
    </ErrorBoundary>
  );
}

const POPUPS_AFTER_MS = 1500;

/** After another page was opened, focus is on it and not on a link that is gone. */
function useFocusOnMove(path: string): void {
  useEffect(() => {
    if (document.activeElement === document.body) document.getElementById("main")?.focus({ preventScroll: true });
  }, [path]);
}

/** What the first press of a button may open is there by then, and not before the page. */
function usePopupsSoon(): void {
  useEffect(() => {
    const timer = setTimeout(() => void loadPopups().catch(() => undefined), POPUPS_AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
}

/** The page of somebody who is signed in: list, chat, panel. */
export function Shell() {
  const [path] = useLocation();
  const search = useSearch();
  const chatId = chatOfPath(path);
  const [tab, setTab] = usePanelTab();
  const [paletteOpen, setPaletteOpen] = useState(false);
  const [helpOpen, setHelpOpen] = useState(false);
  const isPhone = useIsPhone();
  useKeys();
  useNotices(chatId);
  useFocusOnMove(path);
  usePopupsSoon();
  useShellCommands({ chatId, tab, setTab, openPalette: () => setPaletteOpen(true), openHelp: () => setHelpOpen(true) });
  useAction("openPalette", () => setPaletteOpen(true));
  useAction("openPanel", (wanted) => {
    if (chatId !== null) setTab(wanted);
  });
  useAction("closePanel", () => setTab(null));

  const hasPanel = chatId !== null && tab !== null;
  const isList = isPhone && path === HOME_PATH && !new URLSearchParams(search).has("new");
  return (
    <>
      <a className="app-skip-link" href="#box" onClick={skipToBox}>
        Skip to the message box
      </a>
      <Columns
        sidebar={
          <ErrorBoundary what="The list of chats cannot be shown." className="app-error">
            <Sidebar onHide={() => setPreference("sidebarHidden", true)} />
          </ErrorBoundary>
        }
        main={
          <ErrorBoundary what="This page cannot be shown." resetKey={path} className="app-error">
            <MainScreen path={path} />
          </ErrorBoundary>
        }
        mainLabel={chatId === null ? (path === NEW_CHAT_PATH || path === HOME_PATH ? "New chat" : "Page") : "Chat"}
        panel={hasPanel ? <PanelScreen chatId={chatId} tab={tab} setTab={setTab} /> : null}
        onClosePanel={() => setTab(null)}
        screen={isList ? "list" : hasPanel ? "panel" : "main"}
      />
      <ErrorBoundary what="The dialog cannot be shown." className="app-error is-corner">
        <ChatDialogs />
        {helpOpen && (
          <Suspense>
            <HelpDialog onClose={() => setHelpOpen(false)} />
          </Suspense>
        )}
      </ErrorBoundary>
      {paletteOpen && (
        <ErrorBoundary what="The search cannot be shown." className="app-error is-corner">
          <Suspense>
            <Palette onClose={() => setPaletteOpen(false)} />
          </Suspense>
        </ErrorBoundary>
      )}
    </>
  );
}

function skipToBox(event: { preventDefault: () => void }): void {
  event.preventDefault();
  const box = document.querySelector<HTMLElement>("#main textarea") ?? document.getElementById("main");
  box?.focus();
}
