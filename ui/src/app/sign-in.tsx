import { useQuery } from "@tanstack/react-query";
import { ChevronDown, KeyRound, Power, ShieldCheck, SquareTerminal } from "lucide-react";
import { type SyntheticEvent, useEffect, useState } from "react";
import { useSearch } from "wouter";
import { api, setCsrfToken } from "@/api/client";
import { queryKeys } from "@/api/queries";
import { Button, Dialog, ErrorNote, Icon, Logo, TextField } from "@/components";
import { safeNextPath } from "@/platform/routes";

interface SignInFormProps {
  /** Where the OpenID provider sends the browser back to: a path of this server. */
  next: string;
  onSignedIn: () => void;
  username?: string | undefined;
}

/** Ways to sign in that this server offers. */
function useSignInMethods() {
  return useQuery({
    queryKey: queryKeys.signInMethods,
    queryFn: ({ signal }) => api.GET("/api/v1/auth/methods", { signal }),
    staleTime: 5 * 60_000,
  });
}

function PasswordForm({ onSignedIn, username: known }: Omit<SignInFormProps, "next">) {
  const [username, setUsername] = useState(known ?? "");
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const signIn = async () => {
    setBusy(true);
    setError(null);
    try {
      const reply = await api.POST("/api/v1/auth/login", { body: { username, password } });
      setCsrfToken(reply.csrf_token);
      onSignedIn();
    } catch (caught) {
      setError(caught);
      setBusy(false);
    }
  };
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (!busy) void signIn();
  };
  return (
    <form className="signin-form" onSubmit={submit}>
      {error !== null && <ErrorNote error={error} />}
      <TextField
        label="User name or email"
        name="username"
        autoComplete="username"
        autoCapitalize="none"
        spellCheck={false}
        required
        autoFocus={known === undefined}
        value={username}
        onChange={(event) => setUsername(event.target.value)}
      />
      <TextField
        label="Password"
        name="password"
        type="password"
        autoComplete="current-password"
        required
        autoFocus={known !== undefined}
        value={password}
        onChange={(event) => setPassword(event.target.value)}
      />
      <Button type="submit" variant="primary" wide busy={busy}>
        Sign in
      </Button>
    </form>
  );
}

/** Password and single sign-on, as the server allows. */
function SignInForm({ next, onSignedIn, username }: SignInFormProps) {
  const methods = useSignInMethods();
  if (methods.error !== null) {
    return (
      <ErrorNote
        error={methods.error}
        action={
          <Button size="xs" onClick={() => void methods.refetch()}>
            Try again
          </Button>
        }
      />
    );
  }
  if (methods.data === undefined) return null;
  const { password, oidc } = methods.data;
  return (
    <>
      {password && <PasswordForm onSignedIn={onSignedIn} username={username} />}
      {password && oidc !== null && <div className="signin-or">or</div>}
      {oidc !== null && (
        <a className="ui-button is-wide" href={`/api/v1/auth/oidc/start?next=${encodeURIComponent(next)}`}>
          <Icon of={KeyRound} />
          {oidc === "" ? "Single sign-on" : oidc}
        </a>
      )}
    </>
  );
}

interface LinkFormProps {
  secret: string;
  onSignedIn: () => void;
  onOther: () => void;
}

/** A one-time link. It is used only by a press: a preview of the link does not spend it. */
function LinkForm({ secret, onSignedIn, onOther }: LinkFormProps) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const signIn = async () => {
    setBusy(true);
    setError(null);
    try {
      const reply = await api.POST("/api/v1/auth/link", { body: { secret } });
      setCsrfToken(reply.csrf_token);
      onSignedIn();
    } catch (caught) {
      setError(caught);
      setBusy(false);
    }
  };
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (!busy) void signIn();
  };
  return (
    <form className="signin-form" onSubmit={submit}>
      {error === null ? <p className="tone-muted">This link signs this browser in. It works once.</p> : <ErrorNote error={error} />}
      <Button type="submit" variant="primary" wide busy={busy} autoFocus>
        Sign in
      </Button>
      {error !== null && (
        <Button variant="quiet" onClick={onOther}>
          Sign in another way
        </Button>
      )}
    </form>
  );
}

/** What this server is about, as a picture: a worker dies, another goes on. */
function SignInScene() {
  return (
    <div className="signin-scene" aria-hidden="true">
      <div className="timeline-prompt">Rename the column, and migrate what is there.</div>
      <details className="tool-card" open>
        <summary tabIndex={-1}>
          <Icon of={SquareTerminal} />
          <b>Ran</b>
          <code>chatd migrate --dry-run</code>
          <span className="ui-meta">
            1.2 s <Icon of={ChevronDown} size="sm" />
          </span>
        </summary>
        <pre className="tool-output">
          2 migrations, <span className="tone-ok">0 conflicts</span>
        </pre>
      </details>
      <div className="timeline-mark">
        <Icon of={Power} className="tone-danger" />
        <span>
          <b>Worker a1 was killed</b> in mid-sentence
        </span>
      </div>
      <div className="timeline-mark">
        <Icon of={ShieldCheck} className="tone-ok" />
        <span>
          <b>Recovered on worker b2</b> after 2.1 s
        </span>
      </div>
      <div className="markdown-text">
        <p>
          The column is renamed in both tables. Old clients keep working, because the view still offers the former na
          <span className="markdown-caret" />
        </p>
      </div>
    </div>
  );
}

/** The secret of a one-time link: the part of the address that browsers do not send. */
const secretOfHash = (): string => window.location.hash.slice(1);

/** Whether this server waits for its first sign-in, and what to do then. */
function useSetup() {
  return useQuery({ queryKey: queryKeys.setup, queryFn: ({ signal }) => api.GET("/api/v1/setup", { signal }) });
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
  identity_refused:
    "The sign-in at the provider did not come to an end: it was refused there, took longer than ten minutes, or began in another browser. Begin again here.",
  identity_not_allowed:
    "The provider knows you, but there is no active account for you on this server. Ask an administrator to add you, with the email address that the provider has.",
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

interface ExpiredDialogProps {
  username: string;
  onSignedIn: () => void;
  /** Leave the page for the whole sign-in page. */
  onLeave: () => void;
}

/** The session has ended while the page was open. What was written stays where it is. */
export function ExpiredDialog({ username, onSignedIn, onLeave }: ExpiredDialogProps) {
  const here = window.location.pathname + window.location.search;
  return (
    <Dialog open onOpenChange={onLeave} title="Your session has ended" description="Sign in again to go on here. What you have written is kept.">
      <SignInForm next={here} onSignedIn={onSignedIn} username={username} />
    </Dialog>
  );
}
