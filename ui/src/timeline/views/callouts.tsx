/** What holds the chat up now, how an answer ended, and that the chat works. */
import { CircleStop, Clock, Pause, Play, RotateCcw, ScissorsLineDashed, ShieldAlert, TriangleAlert } from "lucide-react";
import { useState, type ReactNode } from "react";
import { Button, Countdown, Icon, StatusIcon } from "@/components";
import type { ChatError, RetryState } from "@/chat-state/types";
import { useTimelineActions } from "../actions";
import type { ActivityRow, Callout, Note, NoteRow } from "../rows/row";
import { failureOf, RETRY_TITLES, type NextStep } from "./failures";

export function CalloutView({ callout }: { readonly callout: Callout }) {
  switch (callout.type) {
    case "retrying":
      return <Retrying retry={callout.retry} canHurry={callout.canHurry} hasSaid={callout.hasSaid} />;
    case "failed":
      return <Failed error={callout.error} />;
    case "held":
      return <Held queued={callout.queued} />;
  }
}

function Retrying({ retry, canHurry, hasSaid }: { readonly retry: RetryState; readonly canHurry: boolean; readonly hasSaid: boolean }) {
  const { tryAgain, switchModel } = useTimelineActions();
  const [isOpen, setOpen] = useState(false);
  const until = retry.retrying_at ?? null;
  return (
    <div className="timeline-callout" role="status">
      <Icon of={Clock} />
      <div className="ui-grow">
        <h4>{RETRY_TITLES[retry.kind ?? ""] ?? "The provider did not answer"}</h4>
        <p>Retry {retry.attempt} starts by itself{hasSaid ? ", and answers anew; the text above stays until it has said as much" : ". Nothing is lost"}.</p>
        {isOpen && <Details texts={[retry.error, retry.detail, statusText(retry.status_code)]} />}
        <div className="ui-actions">
          {canHurry && (
            <Button size="xs" icon={RotateCcw} onClick={tryAgain}>
              Retry now
            </Button>
          )}
          <Button size="xs" variant="quiet" onClick={switchModel}>
            Switch model
          </Button>
          <Button size="xs" variant="quiet" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            Details
          </Button>
        </div>
      </div>
      {until !== null && (
        <span className="ui-countdown">
          in <Countdown until={until} />
        </span>
      )}
    </div>
  );
}

function Failed({ error }: { readonly error: ChatError }) {
  const [isOpen, setOpen] = useState(false);
  const failure = failureOf(error);
  const hasDetails = Boolean(error.detail) || Boolean(error.status_code);
  return (
    <div className="timeline-callout is-bad" role="status">
      <Icon of={TriangleAlert} />
      <div className="ui-grow">
        <h4>{failure.title}</h4>
        <p>
          {error.message} {failure.advice}
        </p>
        {isOpen && <Details texts={[error.detail, statusText(error.status_code)]} />}
        <div className="ui-actions">
          {failure.steps.map((step, index) => (
            <StepButton key={step} step={step} isFirst={index === 0} />
          ))}
          {hasDetails && (
            <Button size="xs" variant="quiet" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
              Details
            </Button>
          )}
        </div>
      </div>
    </div>
  );
}

function StepButton({ step, isFirst }: { readonly step: NextStep; readonly isFirst: boolean }) {
  const actions = useTimelineActions();
  const variant = isFirst ? undefined : "quiet";
  switch (step) {
    case "try_again":
      return (
        <Button size="xs" variant={variant} icon={RotateCcw} onClick={actions.tryAgain}>
          Try again
        </Button>
      );
    case "switch_model":
      return (
        <Button size="xs" variant={variant} onClick={actions.switchModel}>
          Switch model
        </Button>
      );
    case "open_keys":
      return (
        <Button size="xs" variant={variant} onClick={() => actions.openSettings(actions.isAdmin ? "/admin/providers" : "/settings/keys")}>
          {actions.isAdmin ? "Open providers" : "Open keys"}
        </Button>
      );
    case "open_models":
      return (
        <Button size="xs" variant={variant} onClick={() => actions.openSettings("/admin/models")}>
          Open models
        </Button>
      );
  }
}

function Held({ queued }: { readonly queued: number }) {
  const { resume } = useTimelineActions();
  const [isBusy, setBusy] = useState(false);
  return (
    <div className="timeline-callout" role="status">
      <Icon of={Pause} />
      <div className="ui-grow">
        <h4>The queue is held</h4>
        <p>
          You stopped the chat and held its queue. {queued === 1 ? "One message waits." : `${queued} messages wait.`}
        </p>
        <div className="ui-actions">
          <Button
            size="xs"
            icon={Play}
            busy={isBusy}
            onClick={() => {
              setBusy(true);
              void resume().catch(() => setBusy(false));
            }}
          >
            Resume
          </Button>
        </div>
      </div>
    </div>
  );
}

function Details({ texts }: { readonly texts: readonly (string | null | undefined)[] }) {
  const shown = texts.filter(Boolean);
  return shown.length === 0 ? null : <pre className="timeline-callout-details">{shown.join("\n")}</pre>;
}

function statusText(status: number | null | undefined): string | null {
  return status ? `HTTP ${status}` : null;
}

const NOTES: Readonly<Record<Note, readonly [ReactNode, string]>> = {
  length: [<Icon key="i" of={ScissorsLineDashed} />, "Cut at the output limit of the model."],
  "content-filter": [<Icon key="i" of={ShieldAlert} className="tone-warn" />, "The provider’s content filter stopped the answer."],
  refusal: [<Icon key="i" of={ShieldAlert} className="tone-warn" />, "The model declined to answer. Change the message, or choose another model."],
  error: [<Icon key="i" of={TriangleAlert} className="tone-danger" />, "The answer broke off here. What had arrived is kept."],
};

export function NoteLine({ row }: { readonly row: NoteRow }) {
  const { send } = useTimelineActions();
  const [icon, text] = NOTES[row.note];
  const canContinue = row.canContinue && (row.note === "length" || row.note === "error");
  return (
    <div className="timeline-note" role="note">
      {icon}
      <span>{text}</span>
      {canContinue && (
        <Button size="xs" icon={Play} onClick={() => send("Continue where you stopped.")}>
          Continue
        </Button>
      )}
    </div>
  );
}

export function ActivityLine({ row }: { readonly row: ActivityRow }) {
  switch (row.activity) {
    case "working":
      return (
        <div className="timeline-live">
          <StatusIcon status="running" size="sm" decorative />
          Working
        </div>
      );
    case "pending":
      return (
        <div className="timeline-live">
          <StatusIcon status="pending" size="sm" decorative />
          Waiting for a worker. It starts by itself.
        </div>
      );
    case "interrupting":
      return (
        <div className="timeline-live">
          <Icon of={CircleStop} size="sm" />
          Stopping. What was said is kept.
        </div>
      );
  }
}
