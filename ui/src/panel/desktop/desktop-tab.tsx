/** The desktop of the chat's workspace: its screen, who has mouse and keyboard, and what agents did there. */
import "@/styles/desktop.css";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Eye, Hand, MonitorOff, MonitorPlay } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, EmptyState, errorWords, Icon } from "@/components";
import { toast, toastOnError } from "@/platform/toasts";
import { chatSocketUrl, LostNote, NoAnswer, PanelNote, RefusedNote, Unread, WorkspaceFrame } from "../workspace/workspace-frame";
import { DesktopConnection, type ScreenState } from "./desktop-connection";
import { Filmstrip } from "./filmstrip";

type Desktop = components["schemas"]["DesktopReply"];

const POLL_MS = 3000;

export function DesktopTab({ chatId }: { readonly chatId: string }) {
  const reader = (
    <EmptyState icon={MonitorOff} title="The desktop is not shared">
      Only the owner of this chat watches the desktop of its workspace.
    </EmptyState>
  );
  return (
    <WorkspaceFrame chatId={chatId} reader={reader}>
      {(workspaceId) => (
        <div className="desktop-tab">
          <WorkspaceDesktop key={workspaceId} chatId={chatId} workspaceId={workspaceId} />
          <Filmstrip chatId={chatId} />
        </div>
      )}
    </WorkspaceFrame>
  );
}

function WorkspaceDesktop({ chatId, workspaceId }: { readonly chatId: string; readonly workspaceId: string }) {
  const client = useQueryClient();
  const queryKey = queryKeys.workspace(workspaceId, "desktop");
  const path = { chat_id: chatId };
  const state = useQuery({
    queryKey,
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/desktop", { path, signal }),
    refetchInterval: POLL_MS,
    staleTime: 0,
    retry: false,
  });
  const [isWanted, setWanted] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const change = async (act: "take" | "release") => {
    setBusy(true);
    try {
      const request =
        act === "take" ? api.POST("/api/v1/chats/{chat_id}/desktop/take", { path }) : api.POST("/api/v1/chats/{chat_id}/desktop/release", { path });
      const now = await request;
      await client.cancelQueries({ queryKey });
      client.setQueryData(queryKey, now);
    } catch (caught) {
      toast({ text: errorWords(caught).text, tone: "danger" });
    } finally {
      setBusy(false);
    }
  };
  const desktop = state.data;
  const isMine = useRef(false);
  useEffect(() => {
    isMine.current = desktop?.taken_by_you === true;
  }, [desktop]);
  useEffect(() => {
    const giveBack = () => toastOnError(api.POST("/api/v1/chats/{chat_id}/desktop/release", { path: { chat_id: chatId } }));
    return () => {
      if (isMine.current) toast({ text: "You still have mouse and keyboard of the desktop; agents wait.", action: { label: "Give back", run: giveBack } });
    };
  }, [chatId]);
  if (desktop === undefined) {
    if (state.error === null) return <Unread error={null} />;
    return <NoAnswer error={state.error} onRetry={() => void state.refetch()} />;
  }
  if (!desktop.enabled)
    return (
      <EmptyState icon={MonitorOff} title="This workspace has no desktop">
        Its template does not have one. A template with <code>desktop = true</code> gives its workspaces a screen, a mouse and a keyboard.
      </EmptyState>
    );
  if (desktop.missing.length > 0)
    return (
      <EmptyState icon={MonitorOff} title="The desktop cannot be started" actions={<Button onClick={() => void state.refetch()}>Try again</Button>}>
        The workspace lacks programs. Install the Debian packages <code>{desktop.missing.join(" ")}</code> where its programs come from: on the host, or in its
        image.
      </EmptyState>
    );
  if (!desktop.running && !isWanted)
    return (
      <EmptyState
        icon={MonitorPlay}
        title="The desktop does not run yet"
        actions={
          <Button variant="primary" onClick={() => setWanted(true)}>
            Start the desktop
          </Button>
        }
      >
        An agent starts it with its first click. You can start it too, and use its programs yourself.
      </EmptyState>
    );
  return (
    <>
      <DriverBar desktop={desktop} isBusy={isBusy} onChange={(act) => void change(act)} />
      <DesktopScreen chatId={chatId} canAct={desktop.taken_by_you} />
      {state.error !== null && <PanelNote>{errorWords(state.error).text}</PanelNote>}
    </>
  );
}

interface DriverBarProps {
  readonly desktop: Desktop;
  readonly isBusy: boolean;
  readonly onChange: (act: "take" | "release") => void;
}

/** Who has mouse and keyboard, and how to change it. */
function DriverBar({ desktop, isBusy, onChange }: DriverBarProps) {
  const isMine = desktop.taken_by_you;
  const words = isMine
    ? "You have mouse and keyboard. Agents wait, and are told."
    : desktop.taken
      ? "Another person has mouse and keyboard. You watch."
      : "You watch. Agents have mouse and keyboard.";
  return (
    <div className="panel-bar desktop-bar">
      <Icon of={isMine ? Hand : Eye} className={isMine ? "tone-accent" : "tone-muted"} />
      <span className="ui-grow" role="status">
        {words}
      </span>
      {isMine ? (
        <Button size="sm" variant="primary" disabled={isBusy} onClick={() => onChange("release")}>
          Give back
        </Button>
      ) : (
        <Button size="sm" disabled={isBusy || desktop.taken} onClick={() => onChange("take")}>
          Take over
        </Button>
      )}
    </div>
  );
}

function DesktopScreen({ chatId, canAct }: { readonly chatId: string; readonly canAct: boolean }) {
  const host = useRef<HTMLDivElement>(null);
  const connection = useRef<DesktopConnection | null>(null);
  const [state, setState] = useState<ScreenState>({ name: "connecting" });
  useEffect(() => {
    if (host.current === null) return undefined;
    const made = new DesktopConnection(host.current, () => new WebSocket(chatSocketUrl(chatId, "desktop/stream")), setState);
    connection.current = made;
    made.start();
    return () => made.stop();
  }, [chatId]);
  useEffect(() => connection.current?.setCanAct(canAct), [canAct, chatId]);
  return (
    <>
      <div
        ref={host}
        className="desktop-screen"
        data-taken={canAct}
        onKeyDownCapture={(event) => {
          if (!canAct || !event.altKey || event.key !== "ArrowUp") return;
          event.preventDefault();
          event.stopPropagation();
          connection.current?.releaseAlt();
          event.currentTarget.parentElement?.querySelector<HTMLElement>(".desktop-bar button")?.focus();
        }}
      />
      <ConnectionNote state={state} onRetry={() => connection.current?.start()} />
    </>
  );
}

const REFUSALS: Readonly<Record<string, string>> = {
  no_agent: "The workspace does not run.",
  no_desktop: "The desktop could not be started. The log of the workspace says why.",
  too_many_viewers: "Eight viewers watch this desktop already. Close one, then try again.",
  agent_outdated: "The workspace was started by an older version. Stop it and start it again.",
  signed_out: "You are signed out.",
};

function ConnectionNote({ state, onRetry }: { readonly state: ScreenState; readonly onRetry: () => void }) {
  switch (state.name) {
    case "open":
      return null;
    case "connecting":
      return <PanelNote>Connecting</PanelNote>;
    case "waiting":
      return (
        <LostNote retryAt={state.retryAt} onRetry={onRetry}>
          The connection was lost.
        </LostNote>
      );
    case "refused":
      return <RefusedNote onRetry={onRetry}>{REFUSALS[state.code] ?? `The desktop cannot be watched now (${state.code}).`}</RefusedNote>;
  }
}
