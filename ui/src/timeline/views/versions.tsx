/** Versions of a message, which an edit or a repeated turn has kept; and the answer again, by another model or effort. */
import { createContext, lazy, type ReactNode, Suspense, useContext, useState } from "react";
import type { components } from "@/api/schema";
import type { ChatState } from "@/chat-state/types";

type VersionGroup = components["schemas"]["VersionGroup"];

export interface Versions {
  /** The group of each version, also of those that are not shown. */
  readonly groups: ReadonlyMap<number, VersionGroup>;
  /** The chat works: no other version can be shown. */
  readonly isBusy: boolean;
  /** The message whose answer can be repeated; null if there is none now. */
  readonly repeatable: number | null;
  /** The command that this message runs in the workspace; null: a model answers it. */
  readonly command: string | null;
  /** The last answer, which can be rated now; null if there is none. */
  readonly rateable: number | null;
  readonly modelId: string | null;
}

const Context = createContext<Versions | null>(null);
const Control = lazy(() => import("./version-controls"));

export function VersionsProvider({ state, children }: { readonly state: ChatState; readonly children: ReactNode }) {
  const [versions, setVersions] = useState<Versions | null>(null);
  return (
    <Context value={versions}>
      {children}
      <Suspense>
        <Control state={state} onRead={setVersions} />
      </Suspense>
    </Context>
  );
}

/** ‹ 1/2 › below a message that has versions; «Answer again» below the last answer, where there is room for it before it is loaded. */
export function VersionControl({ messageId }: { readonly messageId: number | null }) {
  const versions = useContext(Context);
  const control = versions !== null && (messageId === null ? versions.repeatable !== null : versions.groups.has(messageId)) && (
    <Suspense>
      <Control versions={versions} messageId={messageId} />
    </Suspense>
  );
  return messageId === null ? <div className="timeline-again">{control}</div> : control;
}
