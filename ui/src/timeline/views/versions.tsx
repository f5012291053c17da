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
  readonly modelId: string | null;
}

const Context = createContext<Versions | null>(null);
/** Null until they are read. */
const useVersions = (): Versions | null => useContext(Context);

const controls = () => import("./version-controls");
const VersionReader = lazy(async () => ({ default: (await controls()).VersionReader }));
const Steps = lazy(async () => ({ default: (await controls()).VersionSteps }));
const Again = lazy(async () => ({ default: (await controls()).AnswerAgain }));

export function VersionsProvider({ state, children }: { readonly state: ChatState; readonly children: ReactNode }) {
  const [versions, setVersions] = useState<Versions | null>(null);
  return (
    <Context value={versions}>
      {children}
      <Suspense>
        <VersionReader state={state} onRead={setVersions} />
      </Suspense>
    </Context>
  );
}

/** Below a message that has versions. */
export function VersionSteps({ messageId }: { readonly messageId: number }) {
  const versions = useVersions();
  return (
    versions?.groups.has(messageId) && (
      <Suspense>
        <Steps versions={versions} messageId={messageId} />
      </Suspense>
    )
  );
}

/** Below the last answer. */
export function AnswerAgain() {
  const versions = useVersions();
  return (
    versions !== null &&
    versions.repeatable !== null && (
      <Suspense>
        <Again versions={versions} messageId={versions.repeatable} />
      </Suspense>
    )
  );
}
