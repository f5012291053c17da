/** Tokens of the user for git hosts, with which chatd finds pull requests. */
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, EmptyState, ErrorNote, Field, TextField, Time } from "@/components";
import { Loaded, Section } from "../frame";
import { fieldErrors } from "../server/provider-drawer";
import { readAll, useResource, useSave } from "../resource";

type Kind = components["schemas"]["GitCredentialReply"]["kind"];

const KEY = ["git-credentials"];

export function GitHosts() {
  const hosts = useResource(KEY, () => readAll((query) => api.GET("/api/v1/git-credentials", { query })));
  const remove = useSave((id: string) => api.DELETE("/api/v1/git-credentials/{credential_id}", { path: { credential_id: id } }), { refresh: [KEY], done: "Deleted." });
  return (
    <Section title="Git hosts">
      <p className="m">A token that may read repositories shows the pull request of a chat's branch and its checks. It is stored encrypted and never reaches a workspace.</p>
      <Loaded query={hosts}>
        {(list) =>
          list.length === 0 ? (
            <EmptyState>No tokens yet.</EmptyState>
          ) : (
            <div className="cardx">
              {list.map((one) => (
                <div className="setting" key={one.id}>
                  <div className="grow">
                    <div className="b">{one.host}</div>
                    <p className="m">Sent to {one.api_url}. Given <Time at={one.created_at} />.</p>
                  </div>
                  <Button size="sm" variant="danger" onClick={() => remove.mutate(one.id)}>Delete</Button>
                </div>
              ))}
            </div>
          )
        }
      </Loaded>
      <NewToken />
    </Section>
  );
}

function NewToken() {
  const [host, setHost] = useState("github.com");
  const [kind, setKind] = useState<Kind>("github");
  const [token, setToken] = useState("");
  const saving = useSave(() => api.POST("/api/v1/git-credentials", { body: { host: host.trim(), kind, token: token.trim() } }), {
    refresh: [KEY],
    quiet: true,
    done: "Saved. The next change of a chat asks the host.",
    onDone: () => setToken(""),
  });
  const wrong = fieldErrors(saving.error);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(undefined);
  };
  return (
    <form className="form" onSubmit={submit}>
      <TextField label="Host" required value={host} error={wrong.get("host")} onChange={(event) => setHost(event.target.value)} />
      <Field label="Kind" error={wrong.get("kind")}>
        {(names) => (
          <select {...names} className="select" value={kind} onChange={(event) => setKind(event.target.value as Kind)}>
            <option value="github">GitHub</option>
            <option value="gitlab">GitLab</option>
            <option value="gitea">Gitea or Forgejo</option>
          </select>
        )}
      </Field>
      <TextField label="Token" required type="password" autoComplete="off" value={token} error={wrong.get("token")} onChange={(event) => setToken(event.target.value)} />
      {saving.error !== null && <div className="f w"><ErrorNote error={saving.error} /></div>}
      <div className="f w"><Button type="submit" busy={saving.isPending} disabled={host.trim() === "" || token.trim() === ""}>Save the token</Button></div>
    </form>
  );
}
