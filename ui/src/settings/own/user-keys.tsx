/** Keys of the user's own, for providers that allow it. */
import { useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, EmptyState, Tag } from "@/components";
import { Loaded, Section, SettingsPage } from "../frame";
import { readAll, useResource, useSave } from "../resource";

type UserKey = components["schemas"]["UserKeyReply"];

export function UserKeysPage() {
  const keys = useResource(["user-keys"], () => readAll((query) => api.GET("/api/v1/user-keys", { query })));
  return (
    <SettingsPage title="Model keys" lead="Your own keys, where the administrator allows them. They are used for your chats only, stored encrypted and never shown again.">
      <Section title="Providers">
        <Loaded query={keys}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState>No provider takes keys of users. Chats use those of the server.</EmptyState>
            ) : (
              <div className="settings-card">{list.map((one) => <KeyRow key={one.provider_id} entry={one} />)}</div>
            )
          }
        </Loaded>
      </Section>
    </SettingsPage>
  );
}

function KeyRow({ entry }: { entry: UserKey }) {
  const [typed, setTyped] = useState("");
  const refresh = [["user-keys"]];
  const save = useSave(() => api.POST("/api/v1/user-keys", { body: { provider: entry.provider, api_key: typed.trim() } }), {
    refresh,
    done: "Saved. Your next message uses it.",
    onDone: () => setTyped(""),
  });
  const remove = useSave((id: string) => api.DELETE("/api/v1/user-keys/{key_id}", { path: { key_id: id } }), { refresh, done: "Deleted." });
  const key = entry.key ?? null;
  return (
    <div className="settings-row">
      <div className="ui-grow">
        <div className="ui-strong">{entry.display_name} {entry.is_moved === true && <Tag tone="warn">address changed</Tag>}</div>
        <p className="tone-muted">
          {key === null ? "No key of yours." : `Key ${key.masked}.`} Sent to {entry.destination}.
          {entry.is_moved === true && " The provider has another address now, so your key is not used. Enter it again if you trust the new one."}
        </p>
      </div>
      <div className="ui-field">
        <input type="password" autoComplete="off" aria-label={`Key for ${entry.display_name}`} placeholder={key === null ? "Enter a key" : "Replace it"} value={typed} onChange={(event) => setTyped(event.target.value)} />
      </div>
      <Button size="sm" busy={save.isPending} disabled={typed.trim() === ""} onClick={() => save.mutate(undefined)}>Save</Button>
      {key !== null && <Button size="sm" variant="danger" onClick={() => remove.mutate(key.id)}>Delete</Button>}
    </div>
  );
}
