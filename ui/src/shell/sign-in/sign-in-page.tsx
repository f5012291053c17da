import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useSearch } from "wouter";
import { api } from "@/api/client";
import { Logo } from "@/components";
import { safeNextPath } from "../routes";
import { LinkForm } from "./link-form";
import { SignInForm, useSignInMethods } from "./sign-in-form";
import { SignInScene } from "./sign-in-scene";

/** The secret of a one-time link: the part of the address that browsers do not send. */
const secretOfHash = (): string => window.location.hash.slice(1);

/** Whether this server waits for its first sign-in, and what to do then. */
function useSetup() {
  return useQuery({ queryKey: ["setup"], queryFn: ({ signal }) => api.GET("/api/v1/setup", { signal }) });
}

function Footnote() {
  const setup = useSetup().data;
  const methods = useSignInMethods().data;
  if (setup?.needed === true) {
    return (
      <div className="result" role="status">
        <div>
          <b className="b">Nobody has signed in here yet.</b>
          <p>{setup.message}</p>
        </div>
      </div>
    );
  }
  return (
    <p className="s in-note">
      {methods?.password === true && "Forgot the password? "}
      Ask whoever runs this server for a sign-in link: <code>chatd admin sign-in-link --user NAME</code> prints one.
    </p>
  );
}

/** Sign in by a password, an OpenID provider or a one-time link. */
export function SignInPage({ onSignedIn }: { onSignedIn: (next: string) => void }) {
  const next = safeNextPath(new URLSearchParams(useSearch()).get("next"));
  const [secret, setSecret] = useState(secretOfHash);
  const done = () => onSignedIn(next);
  const useOther = () => {
    window.history.replaceState(null, "", window.location.pathname + window.location.search);
    setSecret("");
  };
  return (
    <div className="in">
      <main className="in-l" id="main">
        <div className="in-f">
          <Logo size={36} />
          <div>
            <h1>Sign in to chatd</h1>
            <p className="m in-host">{window.location.host}</p>
          </div>
          {secret === "" ? <SignInForm next={next} onSignedIn={done} /> : <LinkForm secret={secret} onSignedIn={done} onOther={useOther} />}
          {secret === "" && <Footnote />}
        </div>
      </main>
      <aside className="in-r">
        <SignInScene />
      </aside>
    </div>
  );
}
