import { Clock } from "lucide-react";
import { type ComponentType, useState } from "react";
import { useLocation } from "wouter";
import { api } from "@/api/client";
import { ErrorNote, Icon, Spinner } from "@/components";
import { useCreatedChat } from "@/connection";
import { newUuid } from "@/platform/plain-http";
import { chatPath } from "@/platform/routes";
import { NextLinks, startIfAllowed, useDemo, useDemoWorker } from "./demo-worker";

/** Small pictures on the demo cards. */
const frame = { viewBox: "0 0 216 76", preserveAspectRatio: "xMidYMid meet", "aria-hidden": true } as const;

const FixArt = () => (
  <svg {...frame} className="is-mono">
    <rect x="18" y="12" width="180" height="18" rx="3" fill="var(--del-bg)" />
    <rect x="18" y="30" width="180" height="18" rx="3" fill="var(--add-bg)" />
    <text x="26" y="24.5" fill="var(--danger)">
      − return amount - percent
    </text>
    <text x="26" y="42.5" fill="var(--ok)">
      + return amount * (100 - perc…
    </text>
    <text x="26" y="64" fill="var(--muted)">
      3 passed
    </text>
  </svg>
);

const KillArt = () => (
  <svg {...frame}>
    <text x="18" y="27" fill="var(--muted)">
      a1
    </text>
    <text x="18" y="57" fill="var(--muted)">
      b2
    </text>
    <rect x="38" y="15" width="76" height="16" rx="4" fill="var(--danger-soft)" stroke="var(--danger)" />
    <rect x="126" y="45" width="72" height="16" rx="4" fill="var(--ok-soft)" stroke="var(--ok)" />
    <path d="M114 23c10 0 2 30 12 30" fill="none" stroke="var(--ok)" strokeWidth="1.5" />
    <text x="122" y="27" fill="var(--danger)">
      killed
    </text>
    <text x="134" y="56.5" fill="var(--ok)">
      goes on
    </text>
  </svg>
);

const TreeArt = () => (
  <svg {...frame}>
    <path d="M52 38h24M76 38c10 0 6-18 16-18h10M76 38c10 0 6 18 16 18h10" fill="none" stroke="var(--border-strong)" strokeWidth="1.2" />
    <circle cx="42" cy="38" r="9" fill="var(--accent-soft)" stroke="var(--accent)" strokeWidth="1.2" />
    {[20, 56].map((y) => (
      <g key={y}>
        <rect x="102" y={y - 9} width="86" height="18" rx="4" fill="var(--ok-soft)" stroke="var(--ok)" />
        <path d={`m110 ${y}.3 2.4 2.4 4.6-5.2`} fill="none" stroke="var(--ok)" strokeWidth="1.4" strokeLinecap="round" />
      </g>
    ))}
    <text x="124" y="24" fill="var(--ok)">
      the code
    </text>
    <text x="124" y="60" fill="var(--ok)">
      the tests
    </text>
  </svg>
);

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
  {
    title: "Fix a failing test",
    text: "It writes a small project, runs its tests, finds the bug and fixes it.",
    seconds: 30,
    prompt: "fix the failing test",
    art: FixArt,
  },
  {
    title: "Lose a worker",
    text: "Kill the process in mid-sentence and see another go on. Stop it when you have seen enough.",
    seconds: null,
    prompt: "tell me a long story",
    art: KillArt,
    panel: "runs",
  },
  {
    title: "Work with subagents",
    text: "Two agents look at the code and the tests at the same time, and report.",
    seconds: 15,
    prompt: "review this with subagents",
    art: TreeArt,
  },
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
      headers: { "Idempotency-Key": newUuid() },
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
