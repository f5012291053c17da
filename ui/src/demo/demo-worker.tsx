/** The worker process of the demo: whether it runs, and how to start and kill it. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { BookOpen, KeyRound, Power, Upload } from "lucide-react";
import { useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { api, ApiError } from "@/api/client";
import { queryKeys, useMe } from "@/api/queries";
import { Button, ErrorNote, errorWords, Icon, Spinner } from "@/components";
import { useCreatedChat } from "@/connection";
import { chatPath, HELP_PATH } from "@/platform/routes";
import { announce, toast } from "@/platform/toasts";

/** Null while it is not known, and for those who may not ask. */
export function useDemo() {
  const role = useMe().data?.user.role;
  const { data } = useQuery({
    queryKey: queryKeys.demoWorker,
    queryFn: ({ signal }) => api.GET("/api/v1/demo", { signal }),
    enabled: role === "admin",
    refetchInterval: 15_000,
  });
  return data ?? null;
}

export function useDemoWorker() {
  const client = useQueryClient();
  const start = async () => {
    client.setQueryData(queryKeys.demoWorker, await api.POST("/api/v1/demo/worker"));
  };
  /** Starts the next one at once, so that there is one to kill again. */
  const kill = async () => {
    await api.POST("/api/v1/demo/kill-worker");
    await client.invalidateQueries({ queryKey: queryKeys.demoWorker });
  };
  return { start, kill };
}

/** Starts the worker where that is allowed. Without it the demo still runs, on the server's own worker. */
export async function startIfAllowed(start: () => Promise<void>): Promise<void> {
  try {
    await start();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}

/** Ends the worker that runs this chat, in the middle of its work. */
export function KillButton({ size = "sm" }: { size?: "sm" | "xs" }) {
  const demo = useDemo();
  const { start, kill } = useDemoWorker();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  if (demo?.available !== true) return null;
  const act = async () => {
    setBusy(true);
    setError(null);
    try {
      if (demo.worker_running) {
        await kill();
        announce("The worker was killed");
      } else {
        await start();
      }
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      {error !== null && <ErrorNote error={error} />}
      <Button size={size} variant={demo.worker_running ? "danger" : undefined} icon={Power} busy={busy} onClick={() => void act()}>
        {demo.worker_running ? "Kill the worker" : "Start another worker"}
      </Button>
    </>
  );
}

/** The card in the panel Runs. Only in the demo. */
export function KillCard() {
  const demo = useDemo();
  if (demo?.available !== true) return null;
  return (
    <div className="demo-kill">
      <h4>Nothing is lost. Try it.</h4>
      <p>
        {demo.worker_running
          ? "End the worker process that runs this chat, in the middle of what it does. Another takes over in about three seconds, and no command runs twice."
          : "The worker process has ended, and the server itself runs the chat. Start another process: the next turn runs there, and can be killed."}
      </p>
      <div className="demo-kill-actions">
        <KillButton />
        <span className="tone-subtle">Only in the demo</span>
      </div>
    </div>
  );
}

/** Opens a run that any chatd has exported. */
function ImportLink() {
  const input = useRef<HTMLInputElement>(null);
  const [busy, setBusy] = useState(false);
  const [, navigate] = useLocation();
  const onCreated = useCreatedChat();
  const take = async (file: File | undefined) => {
    if (file === undefined) return;
    setBusy(true);
    try {
      const chat = await api.POST("/api/v1/chats/import", { body: file, headers: { "Content-Type": "application/jsonl" } });
      onCreated(chat);
      navigate(chatPath(chat.id));
    } catch (error) {
      toast({ text: errorWords(error).text, tone: "danger" });
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button type="button" onClick={() => input.current?.click()}>
        {busy ? <Spinner /> : <Icon of={Upload} />}
        Import a run
      </button>
      <input
        ref={input}
        type="file"
        accept=".jsonl,application/jsonl"
        hidden
        onChange={(event) => {
          void take(event.target.files?.[0]);
          event.target.value = "";
        }}
      />
    </>
  );
}

/** Where to go after the demo. */
export function NextLinks({ withDocs = true }: { withDocs?: boolean }) {
  const isAdmin = useMe().data?.user.role === "admin";
  return (
    <>
      {isAdmin && (
        <Link className="ui-link" href="/admin/providers">
          <Icon of={KeyRound} />
          Add a provider
        </Link>
      )}
      <ImportLink />
      {withDocs && (
        <a href={HELP_PATH}>
          <Icon of={BookOpen} />
          Read the docs
        </a>
      )}
    </>
  );
}
