import { Unplug } from "lucide-react";
import { lazy, Suspense, useRef, useState } from "react";
import { Link, useSearch } from "wouter";
import { ApiError } from "@/api/client";
import { useIsDemo, useModels } from "@/api/queries";
import { Button, EmptyState, ErrorBoundary, ErrorNote } from "@/components";
import { useChatDetails, useSettledChat } from "@/connection";
import { focusComposer, insertText } from "@/platform/actions";
import { useCommand } from "@/platform/keys";
import { useIsPhone } from "@/platform/media";
import { usePreference } from "@/platform/preferences";
import { NEW_CHAT_PATH } from "@/platform/routes";
import { CoachMark, Composer, FirstScreen, Timeline } from "./areas";
import { useSpeech } from "./attention";
import { ConnectionBadge, SidebarButton, TopBar } from "./top-bar";

const NewChatProject = lazy(async () => ({ default: (await import("./projects/chosen-project")).NewChatProject }));
const OpenBar = lazy(async () => ({ default: (await import("./find-bar")).OpenBar }));

function FindBar({ chatId }: { chatId: string }) {
  const [isOpen, setIsOpen] = useState(false);
  const box = useRef<HTMLInputElement>(null);
  useCommand("chat.find", () => {
    setIsOpen(true);
    box.current?.focus();
    box.current?.select();
  });
  return (
    isOpen && (
      <Suspense>
        <OpenBar chatId={chatId} box={box} onClose={() => setIsOpen(false)} />
      </Suspense>
    )
  );
}

/** A chat that is not there, or not for this user; the two cannot be told apart. */
export function GonePage() {
  return (
    <>
      <header className="app-bar">
        <SidebarButton />
        <h1 className="ui-screen-reader">No such chat</h1>
      </header>
      <EmptyState
        icon={Unplug}
        actions={
          <Link className="ui-button" href={NEW_CHAT_PATH}>
            New chat
          </Link>
        }
      >
        This chat does not exist, or is not shared with you.
      </EmptyState>
    </>
  );
}

/** One chat: bar, timeline, composer. */
export function ChatPage({ chatId }: { chatId: string }) {
  const { gone } = useSettledChat(chatId);
  const details = useChatDetails(chatId);
  useSpeech(chatId);
  const isPhone = useIsPhone();
  if (gone || (details.error instanceof ApiError && [403, 404, 400].includes(details.error.status))) return <GonePage />;
  return (
    <>
      <TopBar chatId={chatId} />
      <FindBar key={`${chatId}-find`} chatId={chatId} />
      {isPhone && <ConnectionBadge />}
      {details.error !== null && (
        <ErrorNote
          error={details.error}
          action={
            <Button size="xs" onClick={() => void details.refetch()}>
              Try again
            </Button>
          }
        />
      )}
      <ErrorBoundary what="The messages of this chat cannot be shown." className="timeline-log app-error">
        <Suspense fallback={<div className="timeline-log" />}>
          <Timeline key={chatId} chatId={chatId} />
        </Suspense>
      </ErrorBoundary>
      <ErrorBoundary what="The message box cannot be shown." className="app-error">
        <Suspense>
          <Composer key={`${chatId}-box`} chatId={chatId} />
          <CoachMark chatId={chatId} />
        </Suspense>
      </ErrorBoundary>
    </>
  );
}

/** What people ask for first; the text can be changed before it is sent. */
const SUGGESTIONS = [
  "Explain how this repository is organised, and where to begin reading.",
  "Find a bug in the tests that fail, and fix it.",
  "Write tests for what has none yet, the riskiest part first.",
  "Compare two ways to do this, with what each costs: ",
] as const;

function Suggestions() {
  return (
    <div className="app-suggestions" role="group" aria-label="Suggestions">
      {SUGGESTIONS.map((text) => (
        <button
          key={text}
          type="button"
          className="ui-button is-sm"
          onClick={() => {
            insertText(text);
            focusComposer();
          }}
        >
          {text.split(",")[0]?.replace(/[:.]\s*$/, "")}
        </button>
      ))}
    </div>
  );
}

/** An empty composer. Without a provider it is the first screen, with the demos. */
export function NewChatPage() {
  const projectId = new URLSearchParams(useSearch()).get("project");
  const isDemo = useIsDemo();
  const hasModels = (useModels().data?.length ?? 0) > 0;
  const isPhone = useIsPhone();
  const [hidden] = usePreference("sidebarHidden");
  return (
    <>
      {(isPhone || hidden) && (
        <header className="app-bar is-plain">
          <SidebarButton />
        </header>
      )}
      <div className="app-home">
        <div className="app-home-column">
          <h1>What should the agent do?</h1>
          <p className="ui-lead">It keeps working when you close this page, and another worker takes over if one breaks.</p>
          <Suspense>
            <Composer chatId={null} projectId={projectId} />
          </Suspense>
          <Suspense>
            <NewChatProject id={projectId} />
          </Suspense>
          {/* On its own: while it is loaded, the box keeps its focus. */}
          <Suspense>{isDemo && <FirstScreen />}</Suspense>
          {hasModels && !isDemo && <Suggestions />}
        </div>
      </div>
    </>
  );
}
