import { useQuery } from "@tanstack/react-query";
import { KeyRound } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api, setCsrfToken } from "@/api/client";
import { Button, ErrorNote, Icon, TextField } from "@/components";

interface SignInFormProps {
  /** Where the OpenID provider sends the browser back to: a path of this server. */
  next: string;
  onSignedIn: () => void;
  username?: string | undefined;
}

/** Ways to sign in that this server offers. */
export function useSignInMethods() {
  return useQuery({
    queryKey: ["sign-in-methods"],
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
export function SignInForm({ next, onSignedIn, username }: SignInFormProps) {
  const methods = useSignInMethods();
  if (methods.error !== null) {
    return <ErrorNote error={methods.error} action={<Button size="xs" onClick={() => void methods.refetch()}>Try again</Button>} />;
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
