import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { useSearch } from "wouter";
import { api } from "@/api/client";
import { ErrorNote, Logo } from "@/components";
import { safeNextPath } from "@/platform/routes";
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
      <div className="ui-result" role="status">
        <div>
          <b className="ui-strong">Nobody has signed in here yet.</b>
          <p>{setup.message}</p>
        </div>
      </div>
    );
  }
  return (
    <p className="tone-subtle signin-note">
      {methods?.password === true && "Forgot the password? "}
      Ask whoever runs this server for a sign-in link: <code>chatd admin sign-in-link --user NAME</code> prints one.
    </p>
  );
}

const PROBLEMS: Readonly<Record<string, string>> = {
  identity_refused: "The sign-in at the provider did not come to an end: it was refused there, took longer than ten minutes, or began in another browser. Begin again here.",
  identity_not_allowed: "The provider knows you, but there is no active account for you on this server. Ask an administrator to add you, with the email address that the provider has.",
  identity_provider_failed: "The provider did not answer as it should. Try again in a minute. If it lasts, tell the administrator: the server's log says why.",
};

/** What went wrong at the OpenID provider, by the code that the server put into the address. */
function identityProblem(code: string | null): string | null {
  return code === null ? null : (PROBLEMS[code] ?? "The sign-in did not work. Begin again.");
}

/** Sign in by a password, an OpenID provider or a one-time link. */
export function SignInPage({ onSignedIn }: { onSignedIn: (next: string) => void }) {
  const query = new URLSearchParams(useSearch());
  const next = safeNextPath(query.get("next"));
  const problem = identityProblem(query.get("problem"));
  const [secret, setSecret] = useState(secretOfHash);
  useEffect(() => {
    // A link that is opened in a tab that shows this page changes the address and loads nothing.
    const read = () => setSecret(secretOfHash());
    window.addEventListener("hashchange", read);
    return () => window.removeEventListener("hashchange", read);
  }, []);
  const done = () => onSignedIn(next);
  const useOther = () => {
    window.history.replaceState(null, "", window.location.pathname + window.location.search);
    setSecret("");
  };
  return (
    <div className="signin-page">
      <main className="signin-main" id="main">
        <div className="signin-column">
          <Logo size={36} />
          <div>
            <h1>Sign in to chatd</h1>
            <p className="tone-muted signin-host">{window.location.host}</p>
          </div>
          {problem !== null && secret === "" && <ErrorNote error={new Error(problem)} />}
          {secret === "" ? <SignInForm next={next} onSignedIn={done} /> : <LinkForm key={secret} secret={secret} onSignedIn={done} onOther={useOther} />}
          {secret === "" && <Footnote />}
        </div>
      </main>
      <aside className="signin-side">
        <SignInScene />
      </aside>
    </div>
  );
}
