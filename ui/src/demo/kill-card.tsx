import { Power } from "lucide-react";
import { useState } from "react";
import { Button, ErrorNote } from "@/components";
import { announce } from "@/platform/announcer";
import { useDemo, useDemoWorker } from "./demo-worker";

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
