import { useDemoModel } from "@/api/models";
import { STATUS_LOOKS, StatusIcon } from "@/components";
import { useChatDetails } from "@/connection";
import { usePreference } from "@/platform/preferences";
import { KillCard } from "./kill-card";
import { NextLinks } from "./next-links";
import { nextStep, TOUR_STEPS, type TourStep, useTour } from "./tour";

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
        Your first minute<span className="ui-grow" />
        <span className="ui-meta tone-subtle">
          {done.length} of {TOUR_STEPS.length}
        </span>
      </h3>
      <ol className="demo-tour">
        {TOUR_STEPS.map((step) => {
          const isDone = done.includes(step);
          return (
            <li key={step} className={step === next ? "is-now" : undefined}>
              {isDone ? <span className="tone-ok"><StatusIcon status="done" /></span> : <StatusIcon status={step === next ? "running" : "waiting"} decorative />}
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
