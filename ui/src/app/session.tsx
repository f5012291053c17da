/** Who is signed in decides what is shown: the page, the sign-in page, or the dialog over the page. */
import { useQueryClient } from "@tanstack/react-query";
import { CloudOff } from "lucide-react";
import { Fragment, lazy, type ReactNode, Suspense, useEffect, useState } from "react";
import { useLocation, useSearch } from "wouter";
import { type Me, queryKeys, useMe } from "@/api/queries";
import { Button, EmptyState } from "@/components";
import { claimBrowser } from "@/platform/browser";
import { SIGN_IN_PATH } from "@/platform/routes";

const ExpiredDialog = lazy(async () => ({ default: (await import("./sign-in")).ExpiredDialog }));
const RestoredNotice = lazy(async () => ({ default: (await import("./restored-notice")).RestoredNotice }));
const SignInPage = lazy(async () => ({ default: (await import("./sign-in")).SignInPage }));

function Unreachable({ onRetry }: { onRetry: () => void }) {
  return (
    <main className="app-chat" id="main">
      <EmptyState icon={CloudOff} title="The server cannot be reached" actions={<Button onClick={onRetry}>Try again</Button>}>
        Check the connection, and that chatd runs. Chats go on without this page.
      </EmptyState>
    </main>
  );
}

/** Who was signed in last on this page. The page stays as it is when the session ends. */
function useKnownUser(user: Me["user"] | undefined): Me["user"] | null {
  const [known, setKnown] = useState<Me["user"] | null>(user ?? null);
  if (user !== undefined && user !== known) setKnown(user);
  return user ?? known;
}

/** Shows its children to somebody who is signed in. */
export function Session({ children }: { children: ReactNode }) {
  const me = useMe();
  const client = useQueryClient();
  const [path, navigate] = useLocation();
  const search = useSearch();
  const user = useKnownUser(me.data?.user);
  const refused = me.error?.status === 401;
  const isSignInPath = path === SIGN_IN_PATH;

  useEffect(() => {
    if (!refused || isSignInPath || user !== null) return;
    const here = search === "" ? path : `${path}?${search}`;
    navigate(here === "/" ? SIGN_IN_PATH : `${SIGN_IN_PATH}?next=${encodeURIComponent(here)}`, { replace: true });
  }, [refused, isSignInPath, user, path, search, navigate]);

  const userId = user?.id;
  useEffect(() => {
    // Another user than before: nothing of the former may stay in memory either.
    if (userId !== undefined && claimBrowser(window.localStorage, userId)) window.location.reload();
  }, [userId]);

  const enter = async (next: string) => {
    await client.resetQueries({ queryKey: queryKeys.me });
    navigate(next, { replace: true });
  };
  const resume = async () => {
    // First who it is: with that the connection begins again. Then all that was refused meanwhile.
    await client.resetQueries({ queryKey: queryKeys.me });
    await client.invalidateQueries();
  };
  const leave = () => {
    client.clear();
    window.location.assign(`${SIGN_IN_PATH}?next=${encodeURIComponent(window.location.pathname + window.location.search)}`);
  };

  if (isSignInPath) {
    return (
      <Suspense fallback={null}>
        <SignInPage onSignedIn={(next) => void enter(next)} />
      </Suspense>
    );
  }
  if (user === null) {
    return me.error !== null && !refused ? <Unreachable onRetry={() => void me.refetch()} /> : null;
  }
  return (
    <>
      <Suspense fallback={null}>{me.data?.restored_from != null && <RestoredNotice me={me.data} />}</Suspense>
      <Fragment key={user.id}>{children}</Fragment>
      <Suspense fallback={null}>{refused && <ExpiredDialog username={user.username} onSignedIn={() => void resume()} onLeave={leave} />}</Suspense>
    </>
  );
}
