/** What holds the chat up now, how an answer ended, and that the chat works. */
import { CircleStop, Clock, Pause, Play, RotateCcw, ScissorsLineDashed, ShieldAlert, TriangleAlert, Unplug } from "lucide-react";
import { type ReactNode, useState } from "react";
import type { ChatError, RetryState } from "@/chat-state/types";
import { Button, Countdown, Icon, StatusIcon } from "@/components";
import { useTimelineActions } from "../actions";
import type { ActivityRow, Callout, Note, NoteRow } from "../rows/row";

export function CalloutView({ callout }: { readonly callout: Callout }) {
  switch (callout.type) {
    case "retrying":
      return <Retrying retry={callout.retry} canRetryNow={callout.canRetryNow} hasSaid={callout.hasSaid} />;
    case "waits":
      return <Waits text={callout.text} />;
    case "failed":
      return <Failed error={callout.error} />;
    case "held":
      return <Held queued={callout.queued} />;
  }
}

function Retrying({ retry, canRetryNow, hasSaid }: { readonly retry: RetryState; readonly canRetryNow: boolean; readonly hasSaid: boolean }) {
  const { tryAgain, switchModel } = useTimelineActions();
  const [isOpen, setOpen] = useState(false);
  const until = retry.retrying_at ?? null;
  return (
    <div className="timeline-callout" role="status">
      <Icon of={Clock} />
      <div className="ui-grow">
        <h4>{RETRY_TITLES[retry.kind ?? ""] ?? "The provider did not answer"}</h4>
        <p>
          Retry {retry.attempt} starts by itself{hasSaid ? ", and answers anew; the text above stays until it has said as much" : ". Nothing is lost"}.
        </p>
        {isOpen && <Details texts={[retry.error, retry.detail, statusText(retry.status_code)]} />}
        <div className="ui-actions">
          {canRetryNow && (
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

function Waits({ text }: { readonly text: string }) {
  return (
    <div className="timeline-callout" role="status">
      <Icon of={Unplug} />
      <div className="ui-grow">
        <h4>The chat waits for a machine</h4>
        <p>{text} It goes on by itself.</p>
      </div>
    </div>
  );
}

function Held({ queued }: { readonly queued: number }) {
  const { resume } = useTimelineActions();
  const [isBusy, setBusy] = useState(false);
  return (
    <div className="timeline-callout" role="status">
      <Icon of={Pause} />
      <div className="ui-grow">
        <h4>The queue is held</h4>
        <p>You stopped the chat and held its queue. {queued === 1 ? "One message waits." : `${queued} messages wait.`}</p>
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

// What a chat's error means to the person who reads it: whose side it is on, and what to do next.

type NextStep = "try_again" | "switch_model" | "open_keys" | "open_models";

export interface Failure {
  readonly title: string;
  readonly advice: string;
  readonly steps: readonly NextStep[];
}

const PROVIDER = "It is on the provider’s side. Nothing is lost.";

const FAILURES: Readonly<Record<string, Failure>> = {
  rate_limit: { title: "The provider limits the rate", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  overloaded: { title: "The provider is overloaded", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  timeout: { title: "The provider did not answer in time", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  stream_silence_timeout: { title: "The provider stopped sending", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  provider_paused: { title: "The provider paused too often", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  auth: { title: "The key was refused", advice: "Set a new key, or choose a model with another one.", steps: ["open_keys", "switch_model"] },
  missing_key: { title: "No key is set", advice: "Add one, or choose another model.", steps: ["open_keys", "switch_model"] },
  provider_disabled: { title: "The provider is switched off", advice: "An admin can switch it on.", steps: ["switch_model", "open_models"] },
  model_removed: { title: "The chat’s model was removed", advice: "", steps: ["switch_model", "open_models"] },
  usage_limit: { title: "A limit is reached", advice: "", steps: ["try_again", "switch_model"] },
  config: { title: "The configuration does not fit", advice: "", steps: ["open_models", "switch_model"] },
  context_overflow: { title: "The chat is too long for the model", advice: "Choose a model with a larger context.", steps: ["switch_model", "try_again"] },
  summary_failed: { title: "The chat is full, and its summary failed", advice: "", steps: ["try_again", "switch_model"] },
  output_limit: { title: "The output limit is too low", advice: "", steps: ["open_models", "try_again"] },
  stream_content_timeout: { title: "The provider sent no answer", advice: PROVIDER, steps: ["try_again", "switch_model"] },
  answer_too_large: { title: "The answer was too large", advice: "What had arrived is kept.", steps: ["try_again", "switch_model"] },
  content_filter: {
    title: "The provider’s filter stopped the answer",
    advice: "Change your message, or choose another model.",
    steps: ["switch_model", "try_again"],
  },
  refusal: { title: "The model declined to answer", advice: "Change your message, or choose another model.", steps: ["switch_model", "try_again"] },
  crashed: { title: "The turn crashed", advice: "It is on the server’s side. What was said is kept.", steps: ["try_again"] },
  internal: { title: "Something is wrong in the server", advice: "What was said is kept.", steps: ["try_again"] },
  unreadable_record: { title: "A stored message cannot be read", advice: "An admin finds more in the server’s log.", steps: ["try_again"] },
};

const OTHER: Failure = { title: "The turn failed", advice: "What was said is kept.", steps: ["try_again", "switch_model"] };

function failureOf(error: ChatError): Failure {
  return FAILURES[error.kind ?? ""] ?? OTHER;
}

const RETRY_TITLES: Readonly<Record<string, string>> = {
  rate_limit: "Rate limited by the provider",
  overloaded: "The provider is overloaded",
  timeout: "The provider did not answer in time",
  stream_silence_timeout: "The provider stopped sending",
};
