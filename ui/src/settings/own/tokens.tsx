/** API tokens of the user: create one, copy it once, revoke it. */
import { Copy, Plus } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Dialog, EmptyState, ErrorNote, Field, IconButton, TextField, Time } from "@/components";
import { copyText } from "@/platform/plain-http";
import { toast } from "@/platform/toasts";
import { Loaded, readAll, Section, SettingsPage, Table, useResource, useSave } from "../frame";

type Token = components["schemas"]["TokenReply"];
type Scope = NonNullable<components["schemas"]["NewTokenBody"]["scopes"]>[number];

const SCOPES: readonly { scope: Scope; text: string }[] = [
  { scope: "chat:read", text: "Read chats and their streams" },
  { scope: "chat:write", text: "Send messages, change chats" },
  { scope: "files", text: "Upload and load files" },
  { scope: "account", text: "Your account, tokens and keys" },
  { scope: "admin", text: "Administer the server" },
];
export const LIFETIMES = [
  { days: 7, text: "7 days" },
  { days: 30, text: "30 days" },
  { days: 365, text: "A year" },
  { days: 0, text: "No end" },
];
export const DAY_MS = 86_400_000;

export function TokensPage() {
  const tokens = useResource(["tokens"], () => readAll((query) => api.GET("/api/v1/auth/tokens", { query })));
  const [creating, setCreating] = useState(false);
  return (
    <SettingsPage title="API tokens" lead="For scripts and programs that use the API as you. A token is shown once, when it is created.">
      <Section
        title="Tokens"
        end={
          <Button icon={Plus} onClick={() => setCreating(true)}>
            Create a token
          </Button>
        }
      >
        <Loaded query={tokens}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState>No tokens yet. Create one to use the API from a script.</EmptyState>
            ) : (
              <Table label="API tokens" heads={["Name", "Begins with", "Scopes", "Ends", "Last used", ""]}>
                {list.map((token) => (
                  <TokenRow key={token.id} token={token} />
                ))}
              </Table>
            )
          }
        </Loaded>
      </Section>
      {creating && <NewToken onClose={() => setCreating(false)} />}
    </SettingsPage>
  );
}

function TokenRow({ token }: { token: Token }) {
  const [revoking, setRevoking] = useState(false);
  const revoke = useSave(() => api.DELETE("/api/v1/auth/tokens/{token_id}", { path: { token_id: token.id } }), {
    refresh: [["tokens"]],
    done: "The token is revoked. Its streams have ended.",
    quiet: true,
  });
  return (
    <tr>
      <td className="ui-strong">{token.name}</td>
      <td>
        <code>{token.prefix}</code>
      </td>
      <td className="tone-muted">{token.scopes?.join(", ") ?? "all"}</td>
      <td>{token.expires_at ? <Time at={token.expires_at} isFuture /> : "never"}</td>
      <td>{token.last_used_at ? <Time at={token.last_used_at} /> : "never"}</td>
      <td className="settings-right">
        <Button size="sm" onClick={() => setRevoking(true)}>
          Revoke
        </Button>
        <ConfirmDialog
          open={revoking}
          onOpenChange={setRevoking}
          title={`Revoke ${token.name}?`}
          description="Programs that use it are refused at once, on every replica."
          action="Revoke"
          onConfirm={() => revoke.mutateAsync(undefined)}
        />
      </td>
    </tr>
  );
}

function NewToken({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [days, setDays] = useState(30);
  const [scopes, setScopes] = useState<readonly Scope[]>(["chat:read", "chat:write", "files"]);
  const create = useSave(
    () => {
      const expires = days === 0 ? null : new Date(Date.now() + days * DAY_MS).toISOString();
      return api.POST("/api/v1/auth/tokens", { body: { name: name.trim(), scopes: [...scopes], expires_at: expires } });
    },
    { refresh: [["tokens"]], quiet: true },
  );
  const toggle = (scope: Scope) => setScopes(scopes.includes(scope) ? scopes.filter((one) => one !== scope) : [...scopes, scope]);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    create.mutate(undefined);
  };
  const close = (open: boolean) => {
    if (!open) onClose();
  };
  if (create.data) {
    return (
      <Dialog
        open
        onOpenChange={close}
        title="Copy the token now"
        description="It is not shown again."
        footer={
          <Button variant="primary" onClick={onClose}>
            Done
          </Button>
        }
      >
        <ShownSecret text={create.data.token} />
      </Dialog>
    );
  }
  return (
    <Dialog open onOpenChange={close} title="Create a token">
      <form className="ui-dialog-form" onSubmit={submit}>
        <TextField label="Name" required autoFocus placeholder="CI" value={name} onChange={(event) => setName(event.target.value)} />
        <Field label="Ends">
          {(names) => (
            <select {...names} className="ui-select" value={days} onChange={(event) => setDays(Number(event.target.value))}>
              {LIFETIMES.map((one) => (
                <option key={one.days} value={one.days}>
                  {one.text}
                </option>
              ))}
            </select>
          )}
        </Field>
        <fieldset className="ui-form-field">
          <legend className="ui-label">May</legend>
          <ul className="settings-list">
            {SCOPES.map(({ scope, text }) => (
              <li key={scope}>
                <label className="settings-inline ui-grow">
                  <input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} />
                  <span className="ui-grow">{text}</span>
                  <code className="tone-subtle">{scope}</code>
                </label>
              </li>
            ))}
          </ul>
        </fieldset>
        {create.error !== null && <ErrorNote error={create.error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={create.isPending} disabled={name.trim() === "" || scopes.length === 0}>
            Create
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

/** A secret that is shown once, with a button that copies it. */
export function ShownSecret({ text, label = "Copy" }: { text: string; label?: string }) {
  const copy = async () => {
    toast((await copyText(text)) ? "Copied." : "The browser did not allow copying. Select the text and copy it.");
  };
  return (
    <div className="settings-secret">
      <code className="ui-grow">{text}</code>
      <IconButton icon={Copy} label={label} onClick={() => void copy()} />
    </div>
  );
}
