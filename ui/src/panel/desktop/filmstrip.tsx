/** What agents did at the desktop: the picture after each action, the newest last. */
import { MonitorX } from "lucide-react";
import { type KeyboardEvent, useEffect, useMemo, useRef, useState } from "react";
import { Link } from "wouter";
import { Icon } from "@/components";
import { Lightbox } from "@/components/lightbox";
import { useSettledChat } from "@/connection";
import { plural } from "@/platform/words";
import { chatPath } from "@/platform/routes";
import { type ActionFrame, actionFrames, computerAgent } from "@/text/computer-actions";

const MAX_FRAMES = 60;

/** Of the chat itself, or of the subagent that it started last to use the desktop. */
export function Filmstrip({ chatId }: { readonly chatId: string }) {
  const { messages } = useSettledChat(chatId).state;
  const frames = useMemo(() => actionFrames(messages), [messages]);
  const agent = useMemo(() => (frames.length === 0 ? computerAgent(messages) : null), [frames, messages]);
  if (agent !== null) return <AgentStrip chatId={agent} />;
  return <Strip frames={frames} agent={null} />;
}

function AgentStrip({ chatId }: { readonly chatId: string }) {
  const { messages } = useSettledChat(chatId).state;
  return <Strip frames={useMemo(() => actionFrames(messages), [messages])} agent={chatId} />;
}

function Strip({ frames, agent }: { readonly frames: readonly ActionFrame[]; readonly agent: string | null }) {
  const list = useRef<HTMLOListElement>(null);
  const [opened, setOpened] = useState<string | null>(null);
  const [current, setCurrent] = useState<string | null>(null);
  const shown = frames.slice(-MAX_FRAMES);
  const newest = shown.at(-1)?.key;
  useEffect(() => {
    if (list.current !== null) list.current.scrollLeft = list.current.scrollWidth;
  }, [newest]);
  if (shown.length === 0) return null;
  const pictures = shown.filter((frame) => frame.url !== null);
  const at = pictures.findIndex((frame) => frame.key === opened);
  const large = pictures[at];
  const focused = shown.some((frame) => frame.key === current) ? current : newest;
  const move = (event: KeyboardEvent<HTMLElement>) => {
    const step = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    const next = shown[shown.findIndex((frame) => frame.key === focused) + step];
    if (step === 0 || next === undefined) return;
    event.preventDefault();
    setCurrent(next.key);
    list.current?.querySelectorAll<HTMLElement>("button")[shown.indexOf(next)]?.focus();
  };
  return (
    <section className="desktop-film" aria-label="Actions">
      <header>
        <span className="ui-grow">{plural(frames.length, "action")}</span>
        {agent !== null && (
          <Link className="ui-link" href={chatPath(agent)}>
            Open the subagent
          </Link>
        )}
      </header>
      <ol ref={list} onKeyDown={move}>
        {shown.map((frame) => (
          <li key={frame.key}>
            <button
              type="button"
              className="desktop-frame"
              tabIndex={frame.key === focused ? 0 : -1}
              title={[frame.action, frame.subject, frame.note].filter(Boolean).join(" ")}
              aria-disabled={frame.url === null}
              onFocus={() => setCurrent(frame.key)}
              onClick={() => setOpened(frame.url === null ? null : frame.key)}
            >
              {frame.url === null ? (
                <span className="desktop-frame-none">
                  <Icon of={MonitorX} />
                </span>
              ) : (
                <img src={frame.url} alt="" loading="lazy" decoding="async" />
              )}
              <span className="ui-ellipsis">
                <b>{frame.action}</b> {frame.subject}
              </span>
            </button>
          </li>
        ))}
      </ol>
      {large?.url != null && (
        <Lightbox
          url={large.url}
          name={`${large.action} ${large.subject}`.trim()}
          file="screenshot.png"
          onClose={() => setOpened(null)}
          onMove={(step) => setOpened(pictures[at + step]?.key ?? large.key)}
        />
      )}
    </section>
  );
}
