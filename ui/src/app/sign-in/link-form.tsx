import { type SyntheticEvent, useState } from "react";
import { api, setCsrfToken } from "@/api/client";
import { Button, ErrorNote } from "@/components";

interface LinkFormProps {
  secret: string;
  onSignedIn: () => void;
  onOther: () => void;
}

/** A one-time link. It is used only by a press: a preview of the link does not spend it. */
export function LinkForm({ secret, onSignedIn, onOther }: LinkFormProps) {
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
