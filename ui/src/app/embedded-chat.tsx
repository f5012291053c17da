/** A chat alone, for a frame of another page: no list, no panel. What it cannot show opens beside it. */
import { ExternalLink, Unplug } from "lucide-react";
import { Suspense } from "react";
import { useLocation } from "wouter";
import { EmptyState, ErrorBoundary, Icon } from "@/components";
import { useChatDetails, useSettledChat } from "@/connection";
import { useAction } from "@/platform/actions";
import { useKeys } from "@/platform/keys";
import { chatOfPath, chatPath } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import { Composer, Timeline } from "./areas";
import { useSpeech } from "./attention";
import { TopState } from "./top-bar";

export function EmbeddedChat() {
  const [path] = useLocation();
  const chatId = chatOfPath(path);
  useKeys();
  useAction("openPanel", () => toast("The panel is in the full page: Open in chatd."));
  return (
    <div className="app-layout">
      <main className="app-chat" id="main" aria-label="Chat" tabIndex={-1}>
        {chatId === null ? <Nothing /> : <OneChat key={chatId} chatId={chatId} />}
      </main>
    </div>
  );
}

function Nothing() {
  return <EmptyState icon={Unplug}>This chat does not exist, or is not shared with you.</EmptyState>;
}

function OneChat({ chatId }: { chatId: string }) {
  const { gone } = useSettledChat(chatId);
  const details = useChatDetails(chatId);
  useSpeech(chatId);
  if (gone || details.error !== null) return <Nothing />;
  return (
    <>
      <header className="app-bar">
        <div className="app-bar-title">
          <h1 className="ui-ellipsis">{details.data?.title ?? ""}</h1>
          <TopState chatId={chatId} />
        </div>
        <a className="ui-button is-sm is-quiet" href={chatPath(chatId)} target="_blank" rel="noopener">
          <Icon of={ExternalLink} />
          Open in chatd
        </a>
      </header>
      <ErrorBoundary what="The chat cannot be shown." className="timeline-log app-error">
        <Suspense fallback={<div className="timeline-log" />}>
          <Timeline chatId={chatId} />
          <Composer chatId={chatId} />
        </Suspense>
      </ErrorBoundary>
    </>
  );
}
