/** Tokens of the user for git hosts, with which chatd finds pull requests. */
import { Plus, Trash2 } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Dialog, EmptyState, ErrorNote, Field, IconButton, TextField, Time } from "@/components";
import { Loaded, Section } from "../frame";
import { fieldErrors } from "../server/provider-drawer";
import { readAll, useResource, useSave } from "../resource";

type GitHost = components["schemas"]["GitCredentialReply"];
type Kind = GitHost["kind"];

const KEY = ["git-credentials"];
/** Where the API of each kind is, on a host of one's own. */
const USUAL_ADDRESS: Readonly<Record<Kind, string>> = { github: "/api/v3", gitlab: "/api/v4", gitea: "/api/v1" };

export function GitHosts() {
  const hosts = useResource(KEY, () => readAll((query) => api.GET("/api/v1/git-credentials", { query })));
  const [adding, setAdding] = useState(false);
  return (
    <Section title="Git hosts" end={<Button icon={Plus} onClick={() => setAdding(true)}>Add a token</Button>}>
      <p className="settings-section-lead">A token that may read repositories shows the pull request of a chat's branch and its checks. It is stored encrypted and never reaches a workspace.</p>
      <Loaded query={hosts}>
        {(list) =>
          list.length === 0 ? <EmptyState>No tokens yet.</EmptyState> : <div className="settings-card">{list.map((one) => <HostRow key={one.id} host={one} />)}</div>
        }
      </Loaded>
      {adding && <NewToken onClose={() => setAdding(false)} />}
    </Section>
  );
}

function HostRow({ host }: { host: GitHost }) {
  const [deleting, setDeleting] = useState(false);
  const remove = useSave(() => api.DELETE("/api/v1/git-credentials/{credential_id}", { path: { credential_id: host.id } }), { refresh: [KEY], quiet: true });
  return (
    <div className="settings-row">
      <div className="ui-grow">
        <div className="ui-strong">{host.host}</div>
        <p className="tone-muted">Sent to {host.api_url}. Given <Time at={host.created_at} />.</p>
      </div>
      <IconButton icon={Trash2} label={`Delete the token of ${host.host}`} onClick={() => setDeleting(true)} />
      <ConfirmDialog
        open={deleting}
        onOpenChange={setDeleting}
        title={`Delete the token of ${host.host}?`}
        description="Chats no longer show pull requests of this host. The token itself stays valid there: revoke it at the host."
        action="Delete"
        onConfirm={() => remove.mutateAsync(undefined)}
      />
    </div>
  );
}

function NewToken({ onClose }: { onClose: () => void }) {
  const [host, setHost] = useState("");
  const [kind, setKind] = useState<Kind>("github");
  const [token, setToken] = useState("");
  const [address, setAddress] = useState("");
  const saving = useSave(
    () => api.POST("/api/v1/git-credentials", { body: { host: host.trim(), kind, token: token.trim(), ...(address.trim() === "" ? {} : { api_url: address.trim() }) } }),
    { refresh: [KEY], quiet: true, done: "Saved. The next change of a chat asks the host.", onDone: onClose },
  );
  const wrong = fieldErrors(saving.error);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(undefined);
  };
  const usual = host.trim() === "" || host.trim() === "github.com" ? "" : `https://${host.trim()}${USUAL_ADDRESS[kind]}`;
  return (
    <Dialog open onOpenChange={(open) => { if (!open) onClose(); }} title="Add a token of a git host">
      <form className="ui-dialog-form" onSubmit={submit}>
        <TextField label="Host" required placeholder="github.com" value={host} error={wrong.get("host")} onChange={(event) => setHost(event.target.value)} />
        <Field label="Kind" error={wrong.get("kind")}>
          {(names) => (
            <select {...names} className="ui-select" value={kind} onChange={(event) => setKind(event.target.value as Kind)}>
              <option value="github">GitHub</option>
              <option value="gitlab">GitLab</option>
              <option value="gitea">Gitea or Forgejo</option>
            </select>
          )}
        </Field>
        <TextField label="Token" required type="password" autoComplete="off" value={token} error={wrong.get("token")} onChange={(event) => setToken(event.target.value)} />
        <TextField label="API address" aside="optional" placeholder={usual} hint="Only if the API is not at its usual place." value={address} error={wrong.get("api_url")} onChange={(event) => setAddress(event.target.value)} />
        {saving.error !== null && <ErrorNote error={saving.error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={saving.isPending} disabled={host.trim() === "" || token.trim() === ""}>Save</Button>
        </footer>
      </form>
    </Dialog>
  );
}
