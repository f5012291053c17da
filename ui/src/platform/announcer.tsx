import { useSyncExternalStore } from "react";

interface Spoken {
  polite: string;
  assertive: string;
}

let spoken: Spoken = { polite: "", assertive: "" };
const listeners = new Set<() => void>();

const subscribe = (listener: () => void) => {
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
  };
};

/** The same text twice is spoken twice: a no-break space at its end makes it a new one. */
const renewed = (before: string, text: string): string => (before === text ? `${text} ` : text);

/** Says a sentence to screen readers, at the borders of a turn only. Assertive: errors and approvals. */
export function announce(text: string, assertive = false): void {
  spoken = assertive
    ? { ...spoken, assertive: renewed(spoken.assertive, text) }
    : { ...spoken, polite: renewed(spoken.polite, text) };
  for (const listener of listeners) listener();
}

/** The only live regions of the page. */
export function Announcer() {
  const now = useSyncExternalStore(subscribe, () => spoken);
  return (
    <>
      <div className="ui-screen-reader" role="status" aria-live="polite">
        {now.polite}
      </div>
      <div className="ui-screen-reader" role="alert" aria-live="assertive">
        {now.assertive}
      </div>
    </>
  );
}
