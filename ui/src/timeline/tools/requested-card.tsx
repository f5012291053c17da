import { useState } from "react";
import { Button, StatusIcon } from "@/components";
import { useTimelineActions } from "../actions";
import { humanize } from "../rows/brief";
import { Deadline } from "./approval-card";
import type { CardProps } from "./frame";

/** A call whose result a program outside must send. */
export function RequestedCard({ call }: CardProps) {
  const { answer } = useTimelineActions();
  const [isSent, setSent] = useState(false);
  const decline = () => {
    setSent(true);
    void answer(call.id, { error: "The user declined this call." }).catch(() => setSent(false));
  };
  return (
    <section className="ask-card" aria-label="Needs you">
      <header>
        <StatusIcon status="requires_action" decorative />
        {`Waiting for the result of ${humanize(call.name)}`}
      </header>
      <div className="ask-body">
        <pre className="ask-command" tabIndex={0} aria-label="Arguments">
          {JSON.stringify(call.args ?? {}, null, 2)}
        </pre>
        <dl className="ask-reasons">
          <dt>Why it waits</dt>
          <dd>A program outside of chatd runs this tool and sends its result. The chat goes on by itself then.</dd>
        </dl>
      </div>
      <footer>
        <Button size="sm" busy={isSent} onClick={decline}>
          Decline
        </Button>
        <span className="ui-grow" />
        <Deadline at={call.request?.deadline ?? null} />
      </footer>
    </section>
  );
}
