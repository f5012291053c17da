import { CloudOff } from "lucide-react";
import { Countdown, Icon } from "@/components";
import { useConnection } from "@/connection";

/** Says that the page is not connected, and for how long. Silent while all is well. */
export function ConnectionBadge() {
  const { state, retryAt, retryNow } = useConnection();
  if (state !== "waiting" && state !== "offline") return null;
  return (
    <div className="app-offline" role="status">
      <Icon of={CloudOff} size="sm" />
      <span className="ui-grow">
        {state === "offline" || retryAt === null ? "Offline" : <>Reconnecting in <Countdown until={retryAt} /></>}
        <span className="tone-subtle">What you send is kept.</span>
      </span>
      <button type="button" className="ui-link" onClick={retryNow}>
        Retry now
      </button>
    </div>
  );
}
