/** Who is signed in decides what is shown: the page, the sign-in page, or the dialog over the page. */
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { useLocation, useSearch } from "wouter";
import { onSignedOut } from "@/api/client";
import { ME_KEY } from "@/api/queries";
import { Button, EmptyState } from "@/components";
import { useConnection, useMe } from "@/connection";
import { CloudOff } from "lucide-react";
import { SIGN_IN_PATH } from "../routes";
import { claimBrowser } from "./browser-owner";
import { ExpiredDialog } from "./expired-dialog";
import { SignInPage } from "./sign-in-page";

function Unreachable({ onRetry }: { onRetry: () => void }) {
  return (
    <main className="chat" id="main">
      <EmptyState icon={CloudOff} title="The server cannot be reached" actions={<Button onClick={onRetry}>Try again</Button>}>
        Check the connection, and that chatd runs. Chats go on without this page.
      </EmptyState>
    </main>
  );
}

function useExpired(isSignedIn: boolean): [boolean, (expired: boolean) => void] {
  const [expired, setExpired] = useState(false);
  useEffect(() => onSignedOut(() => {
    if (isSignedIn) setExpired(true);
  }), [isSignedIn]);
  return [expired, setExpired];
}

/** Shows its children to somebody who is signed in. */
export function Session({ children }: { children: ReactNode }) {
  const me = useMe();
  const client = useQueryClient();
  const [path, navigate] = useLocation();
  const search = useSearch();
  const user = me.data?.user;
  const { state, retryNow } = useConnection();
  const [expired, setExpired] = useExpired(user !== undefined);
  const refused = me.error?.status === 401;
  const isSignInPath = path === SIGN_IN_PATH;

  useEffect(() => {
    if (!refused || isSignInPath || user !== undefined) return;
    const here = search === "" ? path : `${path}?${search}`;
    navigate(here === "/" ? SIGN_IN_PATH : `${SIGN_IN_PATH}?next=${encodeURIComponent(here)}`, { replace: true });
  }, [refused, isSignInPath, user, path, search, navigate]);

  const userId = user?.id;
  useEffect(() => {
    // Another user than before: nothing of the former may stay in memory either.
    if (userId !== undefined && claimBrowser(window.localStorage, userId)) window.location.reload();
  }, [userId]);

  const enter = async (next: string) => {
    await client.resetQueries({ queryKey: ME_KEY });
    navigate(next, { replace: true });
  };
  const resume = async () => {
    await client.invalidateQueries();
    setExpired(false);
    retryNow();
  };
  const leave = () => {
    client.clear();
    window.location.assign(`${SIGN_IN_PATH}?next=${encodeURIComponent(window.location.pathname + window.location.search)}`);
  };

  if (isSignInPath) return <SignInPage onSignedIn={(next) => void enter(next)} />;
  if (user === undefined) {
    return me.error !== null && !refused ? <Unreachable onRetry={() => void me.refetch()} /> : null;
  }
  return (
    <>
      {children}
      {(expired || state === "signed_out") && <ExpiredDialog username={user.username} onSignedIn={() => void resume()} onLeave={leave} />}
    </>
  );
}
