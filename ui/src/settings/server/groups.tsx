/** Groups of users: for limits and for sharing. */
import { Plus, Trash2 } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, Chip, ConfirmDialog, EmptyState, IconButton } from "@/components";
import { Loaded, Section, SettingsPage } from "../frame";
import { readAll, useResource, useSave } from "../resource";
import { useUsers } from "./users";

type Group = components["schemas"]["GroupReply"];

export function GroupsPage() {
  const groups = useResource(["groups"], () => readAll((query) => api.GET("/api/v1/groups", { query })));
  const [name, setName] = useState("");
  const create = useSave(() => api.POST("/api/v1/groups", { body: { name: name.trim() } }), { refresh: [["groups"]], onDone: () => setName("") });
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (name.trim() !== "") create.mutate(undefined);
  };
  const form = (
    <form className="settings-inline" onSubmit={submit}>
      <div className="ui-field"><input aria-label="Name of a new group" placeholder="New group" value={name} onChange={(event) => setName(event.target.value)} /></div>
      <Button type="submit" icon={Plus} busy={create.isPending} disabled={name.trim() === ""}>Add</Button>
    </form>
  );
  return (
    <SettingsPage title="Groups" lead="Chats can be shared with a group, and each member of a group can have its limit.">
      <Section title="Groups" end={form}>
        <Loaded query={groups}>
          {(list) =>
            list.length === 0 ? <EmptyState>No groups yet.</EmptyState> : <div className="settings-card">{list.map((group) => <GroupRow key={group.id} group={group} />)}</div>
          }
        </Loaded>
      </Section>
    </SettingsPage>
  );
}

function GroupRow({ group }: { group: Group }) {
  const [open, setOpen] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const remove = useSave(() => api.DELETE("/api/v1/groups/{group_id}", { path: { group_id: group.id } }), { refresh: [["groups"]], quiet: true });
  return (
    <div className="settings-row settings-wraps">
      <div className="ui-grow">
        <div className="ui-strong">{group.name}</div>
        <p className="tone-muted">{group.member_count === 1 ? "1 member" : `${group.member_count} members`}</p>
      </div>
      <Button size="sm" aria-expanded={open} onClick={() => setOpen(!open)}>Members</Button>
      <IconButton icon={Trash2} label={`Delete ${group.name}`} onClick={() => setDeleting(true)} />
      {open && <Members group={group} />}
      <ConfirmDialog open={deleting} onOpenChange={setDeleting} title={`Delete ${group.name}?`} description="Its members lose the chats that are shared with it, and its limit." action="Delete" onConfirm={() => remove.mutateAsync(undefined)} />
    </div>
  );
}

function Members({ group }: { group: Group }) {
  const path = { group_id: group.id };
  const name = ["members", group.id];
  const members = useResource(name, () => readAll((query) => api.GET("/api/v1/groups/{group_id}/members", { path, query })));
  const users = useUsers();
  const refresh = [name, ["groups"]];
  const at = (user_id: string) => ({ path: { ...path, user_id } });
  const add = useSave((id: string) => api.PUT("/api/v1/groups/{group_id}/members/{user_id}", at(id)), { refresh });
  const remove = useSave((id: string) => api.DELETE("/api/v1/groups/{group_id}/members/{user_id}", at(id)), { refresh });
  return (
    <div className="settings-inline settings-members">
      <Loaded query={members}>
        {(list) => {
          const others = (users.data ?? []).filter((user) => !list.some((member) => member.id === user.id));
          return (
            <>
              {list.map((member) => <Chip key={member.id} onRemove={() => remove.mutate(member.id)} removeLabel={`Remove ${member.username}`}>{member.username}</Chip>)}
              <select className="ui-select" aria-label={`Add a member to ${group.name}`} value="" onChange={(event) => add.mutate(event.target.value)}>
                <option value="" disabled>Add a member</option>
                {others.map((user) => <option key={user.id} value={user.id}>{user.username}</option>)}
              </select>
            </>
          );
        }}
      </Loaded>
    </div>
  );
}
