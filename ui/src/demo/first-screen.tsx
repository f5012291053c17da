import { Clock } from "lucide-react";
import { type ComponentType, useState } from "react";
import { useLocation } from "wouter";
import { api } from "@/api/client";
import { ErrorNote, Icon, Spinner } from "@/components";
import { useCreatedChat } from "@/connection";
import { chatPath } from "@/platform/routes";
import { FixArt, KillArt, TreeArt } from "./card-art";
import { startIfAllowed, useDemo, useDemoWorker } from "./demo-worker";
import { NextLinks } from "./next-links";

interface DemoCard {
  title: string;
  text: string;
  /** About how long; null: until the user stops it. */
  seconds: number | null;
  prompt: string;
  art: ComponentType;
  panel?: string;
}

/** Requests that the demo model plays a script for. The queue, the worker, the tools and the stream are real. */
const CARDS: readonly DemoCard[] = [
  { title: "Fix a failing test", text: "It writes a small project, runs its tests, finds the bug and fixes it.", seconds: 30, prompt: "fix the failing test", art: FixArt },
  { title: "Lose a worker", text: "Kill the process in mid-sentence and see another go on. Stop it when you have seen enough.", seconds: null, prompt: "tell me a long story", art: KillArt, panel: "runs" },
  { title: "Work with subagents", text: "Two agents look at the code and the tests at the same time, and report.", seconds: 15, prompt: "review this with subagents", art: TreeArt },
];

function useStartDemo() {
  const [, navigate] = useLocation();
  const onCreated = useCreatedChat();
  const demo = useDemo();
  const { start } = useDemoWorker();
  return async (card: DemoCard) => {
    if (demo?.available === true && !demo.worker_running) await startIfAllowed(start);
    const chat = await api.POST("/api/v1/chats", {
      body: { content: [{ type: "text", text: card.prompt }] },
      headers: { "Idempotency-Key": crypto.randomUUID() },
    });
    onCreated(chat);
    navigate(card.panel === undefined ? chatPath(chat.id) : `${chatPath(chat.id)}?panel=${card.panel}`);
  };
}

/** What there is to try without a key. Below the empty composer. */
export function FirstScreen() {
  const start = useStartDemo();
  const [busy, setBusy] = useState<string | null>(null);
  const [error, setError] = useState<unknown>(null);
  const play = async (card: DemoCard) => {
    setBusy(card.title);
    setError(null);
    try {
      await start(card);
    } catch (caught) {
      setError(caught);
      setBusy(null);
    }
  };
  return (
    <>
      <div className="demo-head">
        <h2 className="ui-strong">No key needed: try the demo agent</h2>
        <span className="ui-grow" />
        <span className="tone-subtle">Scripted answers, real tools, free</span>
      </div>
      {error !== null && <ErrorNote error={error} />}
      <div className="demo-cards">
        {CARDS.map((card) => (
          <button
            key={card.title}
            type="button"
            className="demo-card"
            aria-busy={busy === card.title}
            onClick={() => {
              if (busy === null) void play(card);
            }}
          >
            <span className="demo-art">
              <card.art />
            </span>
            <b>{card.title}</b>
            <span className="demo-text">{card.text}</span>
            <span className="demo-foot">
              {busy === card.title ? <Spinner label="Starting" /> : <Icon of={Clock} size="sm" />}
              {card.seconds === null ? "as long as you like" : `${card.seconds} s`}
            </span>
          </button>
        ))}
      </div>
      <div className="demo-next-links">
        <NextLinks />
        <span className="ui-grow" />
        <span className="tone-subtle">
          Shortcuts <kbd>?</kbd>
        </span>
      </div>
    </>
  );
}
