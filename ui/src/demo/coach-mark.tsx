import { type CSSProperties, useEffect, useRef, useState } from "react";
import { useDemoModel } from "@/api/queries";
import { isWorking } from "@/chat-state/reducer";
import { Button, STATUS_LOOKS, StatusIcon } from "@/components";
import { useChatDetails, useSettledChat } from "@/connection";
import { openPanel } from "@/platform/actions";
import { useIsPhone } from "@/platform/media";
import { usePreference } from "@/platform/preferences";
import { usePanelTab } from "@/platform/routes";
import { KillButton, KillCard, NextLinks, useDemo } from "./demo-worker";
import { nextStep, TOUR_STEPS, type TourStep, useTour } from "./tour";

interface Tip {
  title: string;
  text: string;
}

const TIPS: Readonly<Record<TourStep, Tip>> = {
  start: { title: "Start a task", text: "Send a message: the agent begins at once." },
  queue: { title: "Ask for something else", text: "It will queue. You can edit, move or remove it until its turn comes." },
  stop: { title: "Press Esc to stop it", text: "What it has said stays, and the queue goes on." },
  kill: { title: "Now kill its worker", text: "End the process in mid-sentence, or reload this page. The chat goes on." },
  runs: { title: "See what happened", text: "Runs shows which worker had the chat, how the death was noticed, and who went on." },
};

/** Where the message box begins, so that the mark stands above it and covers nothing it speaks of. */
function useAboveComposer(shown: boolean): CSSProperties {
  const [place, setPlace] = useState<CSSProperties>({ visibility: "hidden" });
  useEffect(() => {
    const dock = document.querySelector<HTMLElement>("#main .composer-dock");
    const main = document.getElementById("main");
    if (!shown || dock === null || main === null) return;
    const measure = () => {
      const [outer, inner] = [main.getBoundingClientRect(), (dock.querySelector(".composer-column") ?? dock).getBoundingClientRect()];
      setPlace({ left: inner.left - outer.left, bottom: outer.bottom - inner.top + 14 });
    };
    const observer = new ResizeObserver(measure);
    observer.observe(dock);
    observer.observe(main);
    return () => observer.disconnect();
  }, [shown]);
  return place;
}

function StepAction({ step, onQueueTwo }: { step: TourStep; onQueueTwo: () => void }) {
  if (step === "queue")
    return (
      <Button size="xs" variant="primary" onClick={onQueueTwo}>
        Queue two for me
      </Button>
    );
  if (step === "kill") return <KillButton size="xs" />;
  if (step === "runs")
    return (
      <Button size="xs" variant="primary" onClick={() => openPanel("runs")}>
        Open Runs
      </Button>
    );
  return null;
}

function EndMark({ style, onClose }: { style: CSSProperties; onClose: () => void }) {
  return (
    <div className="demo-coach" role="note" aria-label="End of the tour" style={style}>
      <h4>That was the first minute</h4>
      <p>Messages, answers and commands survive what you just did. Now with a model of yours:</p>
      <div className="demo-next-links">
        <NextLinks />
      </div>
      <footer>
        <span className="ui-grow" />
        <Button size="xs" variant="quiet" onClick={onClose}>
          Close
        </Button>
      </footer>
    </div>
  );
}

/** One tip at a time, in chats of the demo model only. */
export function CoachMark({ chatId }: { chatId: string }) {
  const [ended, setEnded] = usePreference("tourEnded");
  const modelId = useChatDetails(chatId).data?.last_model_config_id ?? null;
  const isDemo = useDemoModel(modelId);
  const isPhone = useIsPhone();
  return !isDemo || ended || isPhone ? null : <Tour chatId={chatId} onEnd={() => setEnded(true)} />;
}

function Tour({ chatId, onEnd }: { chatId: string; onEnd: () => void }) {
  const [tab] = usePanelTab();
  const done = useTour(chatId, tab === "runs");
  const chat = useSettledChat(chatId);
  const demo = useDemo();
  const step = nextStep(done);
  const style = useAboveComposer(true);
  const sent = useRef(false);
  const isBusy = isWorking(chat.state.status);
  if (!chat.state.loaded) return null;
  if (step === null) return <EndMark style={style} onClose={onEnd} />;
  // Queueing and stopping need an answer that is being written.
  if ((step === "queue" || step === "stop") && !isBusy) return null;
  const queueTwo = () => {
    if (sent.current) return;
    sent.current = true;
    for (const text of ["think about it", "run a command"]) chat.send({ content: [{ type: "text", text }], busyBehavior: "queue" });
  };
  const tip =
    step === "kill" && demo?.available !== true ? { title: "Reload this page", text: "The answer goes on where it was, in the middle of a word." } : TIPS[step];
  return (
    <div className="demo-coach" role="note" aria-label={`Tip ${TOUR_STEPS.indexOf(step) + 1} of ${TOUR_STEPS.length}`} style={style}>
      <h4>{tip.title}</h4>
      <p>{tip.text}</p>
      <footer>
        <StepAction step={step} onQueueTwo={queueTwo} />
        <Button size="xs" variant="quiet" onClick={onEnd}>
          Skip the tour
        </Button>
        <span className="ui-grow" />
        <span className="ui-number">
          {TOUR_STEPS.indexOf(step) + 1} of {TOUR_STEPS.length}
        </span>
      </footer>
    </div>
  );
}

const TEXTS: Readonly<Record<TourStep, { text: string; key?: string }>> = {
  start: { text: "Start a task" },
  queue: { text: "Queue another request while it works" },
  stop: { text: "Stop it, and keep what it said", key: "Esc" },
  kill: { text: "Kill the worker, or reload the page" },
  runs: { text: "See who went on, in Runs", key: "R" },
};

function Steps({ chatId }: { chatId: string }) {
  const done = useTour(chatId, true);
  const next = nextStep(done);
  return (
    <>
      <h3 className="panel-heading">
        Your first minute
        <span className="ui-grow" />
        <span className="ui-meta tone-subtle">
          {done.length} of {TOUR_STEPS.length}
        </span>
      </h3>
      <ol className="demo-tour">
        {TOUR_STEPS.map((step) => {
          const isDone = done.includes(step);
          return (
            <li key={step} className={step === next ? "is-now" : undefined}>
              {isDone ? (
                <span className="tone-ok">
                  <StatusIcon status="done" />
                </span>
              ) : (
                <StatusIcon status={step === next ? "running" : "waiting"} decorative />
              )}
              <span>
                {step === next ? <b>{TEXTS[step].text}</b> : TEXTS[step].text}
                <span className="ui-screen-reader">{isDone ? `, ${STATUS_LOOKS.done.word}` : ", to do"}</span>
              </span>
              {TEXTS[step].key === undefined ? <span /> : <kbd>{TEXTS[step].key}</kbd>}
            </li>
          );
        })}
      </ol>
      <div className="demo-next-links">
        <NextLinks withDocs={false} />
      </div>
    </>
  );
}

/** Below the panel Runs, in chats of the demo model: kill the worker, and what there is to try. */
export function DemoPanel({ chatId }: { chatId: string }) {
  const modelId = useChatDetails(chatId).data?.last_model_config_id ?? null;
  const [ended] = usePreference("tourEnded");
  if (!useDemoModel(modelId)) return null;
  return (
    <div className="demo-panel">
      <KillCard />
      {!ended && <Steps chatId={chatId} />}
    </div>
  );
}
