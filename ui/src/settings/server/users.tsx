/** Users and service accounts, for administrators. */
import { Ellipsis, Plus, Trash2 } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import type { components } from "@/api/schema";
import {
  Button,
  Chip,
  ConfirmDialog,
  Dialog,
  EmptyState,
  ErrorNote,
  Field,
  IconButton,
  Menu,
  MenuItem,
  MenuSeparator,
  Segmented,
  Tag,
  TextField,
  Time,
} from "@/components";
import { plural } from "@/platform/words";
import { Loaded, readAll, Section, SettingsPage, Table, useResource, useSave } from "../frame";
import { ShownSecret } from "../own/tokens";
import { fieldErrors } from "./provider-drawer";

export type User = components["schemas"]["UserReply"];
type Role = User["role"];

export const useUsers = () => useResource(["users"], () => readAll((query) => api.GET("/api/v1/users", { query })));

const REFRESH = [["users"]];
const ROLES: readonly { value: Role; label: string; hint: string }[] = [
  { value: "member", label: "Member", hint: "Has own chats." },
  { value: "viewer", label: "Viewer", hint: "Reads all chats and settings, changes nothing. Reads are in the audit log." },
  { value: "admin", label: "Administrator", hint: "Changes settings, users and limits; reads all chats." },
];

export function UsersPage() {
  const users = useUsers();
  const [creating, setCreating] = useState(false);
  return (
    <SettingsPage title="Users" lead="Who may use this server. A suspended user is refused within a second, on every replica, and open streams end.">
      <Section
        title="Users"
        end={
          <Button icon={Plus} onClick={() => setCreating(true)}>
            Add a user
          </Button>
        }
      >
        <Loaded query={users}>
          {(list) => (
            <Table label="Users" heads={["User", "Role", "Signs in", "Last seen", ""]}>
              {list.map((user) => (
                <UserRow key={user.id} user={user} />
              ))}
            </Table>
          )}
        </Loaded>
      </Section>
      {creating && <NewUser onClose={() => setCreating(false)} />}
    </SettingsPage>
  );
}

type Asked = "delete" | "password" | "token" | null;

function UserRow({ user }: { user: User }) {
  const isMe = useMe().data?.user.id === user.id;
  const [asked, setAsked] = useState<Asked>(null);
  const path = { user_id: user.id };
  const change = useSave((body: components["schemas"]["UserPatchBody"]) => api.PATCH("/api/v1/users/{user_id}", { path, body }), {
    refresh: REFRESH,
    done: "Saved.",
  });
  const close = () => setAsked(null);
  return (
    <tr>
      <td>
        <span className="ui-strong">{user.username}</span> {user.is_service && <Tag>service account</Tag>}{" "}
        {user.status === "suspended" && <Tag tone="danger">suspended</Tag>} {isMe && <Tag tone="accent">you</Tag>}
        <p>{[user.name, user.email].filter(Boolean).join(" · ")}</p>
      </td>
      <td>
        <select
          className="ui-select"
          aria-label={`Role of ${user.username}`}
          value={user.role}
          disabled={isMe}
          onChange={(event) => change.mutate({ role: event.target.value as Role })}
        >
          {ROLES.map((role) => (
            <option key={role.value} value={role.value}>
              {role.label}
            </option>
          ))}
        </select>
      </td>
      <td className="tone-muted">{user.is_service ? "by tokens" : user.has_password ? "by password" : "by link or OpenID"}</td>
      <td>{user.last_seen_at ? <Time at={user.last_seen_at} /> : "never"}</td>
      <td className="settings-right">
        <Menu trigger={<IconButton icon={Ellipsis} label={`More for ${user.username}`} />}>
          {user.is_service ? (
            <MenuItem onSelect={() => setAsked("token")}>Create a token</MenuItem>
          ) : (
            <MenuItem onSelect={() => setAsked("password")} hint="The user is signed out everywhere.">
              Set a password
            </MenuItem>
          )}
          <MenuItem disabled={isMe} onSelect={() => change.mutate({ status: user.status === "active" ? "suspended" : "active" })}>
            {user.status === "active" ? "Suspend" : "Let in again"}
          </MenuItem>
          <MenuSeparator />
          <MenuItem danger disabled={isMe} onSelect={() => setAsked("delete")}>
            Delete
          </MenuItem>
        </Menu>
        <ConfirmDialog
          open={asked === "delete"}
          onOpenChange={close}
          title={`Delete ${user.username}?`}
          description="The user cannot sign in again. Chats and costs are kept."
          action="Delete"
          onConfirm={async () => {
            await api.DELETE("/api/v1/users/{user_id}", { path });
            change.mutate({});
          }}
        />
        {asked === "password" && <NewPassword user={user} onClose={close} />}
        {asked === "token" && <ServiceToken user={user} onClose={close} />}
      </td>
    </tr>
  );
}

function NewUser({ onClose }: { onClose: () => void }) {
  const [kind, setKind] = useState<"person" | "service">("person");
  const [username, setUsername] = useState("");
  const [email, setEmail] = useState("");
  const [password, setPassword] = useState("");
  const [role, setRole] = useState<Role>("member");
  const service = kind === "service";
  const create = useSave(
    () =>
      api.POST("/api/v1/users", {
        body: { username: username.trim(), role, is_service: service, email: email.trim() || null, password: service || password === "" ? null : password },
      }),
    { refresh: REFRESH, quiet: true, done: "Added.", onDone: onClose },
  );
  const wrong = fieldErrors(create.error);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    create.mutate(undefined);
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title="Add a user"
    >
      <form className="ui-dialog-form" onSubmit={submit}>
        <Segmented
          label="Kind"
          value={kind}
          options={[
            { value: "person", label: "Person" },
            { value: "service", label: "Service account" },
          ]}
          onChange={setKind}
        />
        <TextField
          label="Username"
          required
          autoFocus
          autoComplete="off"
          value={username}
          error={wrong.get("username")}
          onChange={(event) => setUsername(event.target.value)}
        />
        {!service && (
          <TextField label="E-mail" aside="optional" type="email" value={email} error={wrong.get("email")} onChange={(event) => setEmail(event.target.value)} />
        )}
        {!service && (
          <TextField
            label="First password"
            aside="optional"
            type="password"
            autoComplete="new-password"
            hint="At least 12 characters. Without one the user signs in by OpenID or a link."
            value={password}
            error={wrong.get("password")}
            onChange={(event) => setPassword(event.target.value)}
          />
        )}
        <Field label="Role" hint={ROLES.find((one) => one.value === role)?.hint}>
          {(names) => (
            <select {...names} className="ui-select" value={role} onChange={(event) => setRole(event.target.value as Role)}>
              {ROLES.map((one) => (
                <option key={one.value} value={one.value}>
                  {one.label}
                </option>
              ))}
            </select>
          )}
        </Field>
        {create.error !== null && wrong.size === 0 && <ErrorNote error={create.error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={create.isPending} disabled={username.trim() === ""}>
            Add
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

function NewPassword({ user, onClose }: { user: User; onClose: () => void }) {
  const [password, setPassword] = useState("");
  const save = useSave(() => api.POST("/api/v1/users/{user_id}/password", { path: { user_id: user.id }, body: { password } }), {
    refresh: REFRESH,
    quiet: true,
    done: "The password is set.",
    onDone: onClose,
  });
  const wrong = fieldErrors(save.error);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    save.mutate(undefined);
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title={`Password of ${user.username}`}
    >
      <form className="ui-dialog-form" onSubmit={submit}>
        <TextField
          label="New password"
          type="password"
          autoComplete="new-password"
          autoFocus
          hint="At least 12 characters."
          value={password}
          error={wrong.get("password")}
          onChange={(event) => setPassword(event.target.value)}
        />
        {save.error !== null && wrong.size === 0 && <ErrorNote error={save.error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={save.isPending} disabled={password === ""}>
            Set it
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

function ServiceToken({ user, onClose }: { user: User; onClose: () => void }) {
  const create = useSave(
    () =>
      api.POST("/api/v1/users/{user_id}/tokens", {
        path: { user_id: user.id },
        body: { name: "created in the settings", scopes: ["chat:read", "chat:write", "files"] },
      }),
    { refresh: REFRESH, quiet: true },
  );
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title={`Token of ${user.username}`}
      description={create.data ? "Copy it now. It is not shown again." : "It may read and write chats and files, and does not end."}
      footer={
        create.data ? (
          <Button variant="primary" onClick={onClose}>
            Done
          </Button>
        ) : (
          <Button variant="primary" busy={create.isPending} onClick={() => create.mutate(undefined)}>
            Create
          </Button>
        )
      }
    >
      {create.data && <ShownSecret text={create.data.token} />}
      {create.error !== null && <ErrorNote error={create.error} />}
    </Dialog>
  );
}

// Groups of users: for limits and for sharing.

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
      <div className="ui-field">
        <input aria-label="Name of a new group" placeholder="New group" value={name} onChange={(event) => setName(event.target.value)} />
      </div>
      <Button type="submit" icon={Plus} busy={create.isPending} disabled={name.trim() === ""}>
        Add
      </Button>
    </form>
  );
  return (
    <SettingsPage title="Groups" lead="Chats can be shared with a group, and each member of a group can have its limit.">
      <Section title="Groups" end={form}>
        <Loaded query={groups}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState>No groups yet.</EmptyState>
            ) : (
              <div className="settings-card">
                {list.map((group) => (
                  <GroupRow key={group.id} group={group} />
                ))}
              </div>
            )
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
        <p className="tone-muted">{plural(group.member_count, "member")}</p>
      </div>
      <Button size="sm" aria-expanded={open} onClick={() => setOpen(!open)}>
        Members
      </Button>
      <IconButton icon={Trash2} label={`Delete ${group.name}`} onClick={() => setDeleting(true)} />
      {open && <Members group={group} />}
      <ConfirmDialog
        open={deleting}
        onOpenChange={setDeleting}
        title={`Delete ${group.name}?`}
        description="Its members lose the chats that are shared with it, and its limit."
        action="Delete"
        onConfirm={() => remove.mutateAsync(undefined)}
      />
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
              {list.map((member) => (
                <Chip key={member.id} onRemove={() => remove.mutate(member.id)} removeLabel={`Remove ${member.username}`}>
                  {member.username}
                </Chip>
              ))}
              <select className="ui-select" aria-label={`Add a member to ${group.name}`} value="" onChange={(event) => add.mutate(event.target.value)}>
                <option value="" disabled>
                  Add a member
                </option>
                {others.map((user) => (
                  <option key={user.id} value={user.id}>
                    {user.username}
                  </option>
                ))}
              </select>
            </>
          );
        }}
      </Loaded>
    </div>
  );
}
