/** The user's own account: password and the browsers that are signed in. */
import { type SyntheticEvent, useState } from "react";
import { api, ApiError } from "@/api/client";
import { useMe } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ErrorNote, Tag, TextField, Time } from "@/components";
import { forgetUser, switchPushOff } from "@/platform/browser";
import { SIGN_IN_PATH } from "@/platform/routes";
import { Loaded, readAll, Section, SettingsPage, Table, useResource, useSave } from "../frame";
import { fieldErrors } from "../server/provider-drawer";

export function AccountPage() {
  const me = useMe();
  return (
    <SettingsPage title="Account" lead={me.data ? `Signed in as ${me.data.user.username}, ${roleText(me.data.user.role)}.` : undefined} end={<SignOutButton />}>
      <PasswordForm hasPassword={me.data?.user.has_password === true} />
      <Sessions />
    </SettingsPage>
  );
}

/** Notifications end first: they would go on to show chats in a browser where nobody is signed in. */
function SignOutButton() {
  const end = useSave(
    async () => {
      await switchPushOff().catch(() => undefined);
      await api.POST("/api/v1/auth/logout");
    },
    {
      refresh: [],
      onDone: () => {
        forgetUser(window.localStorage);
        window.location.assign(SIGN_IN_PATH);
      },
    },
  );
  return (
    <Button busy={end.isPending} onClick={() => end.mutate(undefined)}>
      Sign out
    </Button>
  );
}

export function roleText(role: components["schemas"]["UserReply"]["role"]): string {
  return { admin: "administrator", member: "member", viewer: "viewer: reads everything, changes nothing" }[role];
}

function PasswordForm({ hasPassword }: { hasPassword: boolean }) {
  const [current, setCurrent] = useState("");
  const [next, setNext] = useState("");
  const save = useSave(() => api.POST("/api/v1/auth/password", { body: { current_password: hasPassword ? current : null, new_password: next } }), {
    refresh: [["sessions"]],
    quiet: true,
    done: "The password is set. Other browsers are signed out.",
    onDone: () => {
      setCurrent("");
      setNext("");
    },
  });
  const wrong = fieldErrors(save.error);
  const refused = save.error instanceof ApiError && save.error.code === "wrong_password";
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    save.mutate(undefined);
  };
  return (
    <Section title="Password" hint={hasPassword ? undefined : "There is none yet: you sign in by a link or your organization"}>
      <form className="settings-card" onSubmit={submit}>
        <div className="settings-form">
          {hasPassword && (
            <TextField
              label="Current password"
              type="password"
              autoComplete="current-password"
              value={current}
              error={refused ? "This is not the current password." : undefined}
              onChange={(event) => setCurrent(event.target.value)}
            />
          )}
          <TextField
            label="New password"
            type="password"
            autoComplete="new-password"
            hint="At least 12 characters."
            value={next}
            error={wrong.get("new_password")}
            onChange={(event) => setNext(event.target.value)}
          />
          {save.error !== null && !refused && wrong.size === 0 && (
            <div className="ui-form-field is-wide">
              <ErrorNote error={save.error} />
            </div>
          )}
        </div>
        <div className="ui-save-bar">
          <Button type="submit" variant="primary" busy={save.isPending} disabled={next === ""}>
            Set the password
          </Button>
        </div>
      </form>
    </Section>
  );
}

function Sessions() {
  const sessions = useResource(["sessions"], () => readAll((query) => api.GET("/api/v1/auth/sessions", { query })));
  const end = useSave((id: string) => api.DELETE("/api/v1/auth/sessions/{session_id}", { path: { session_id: id } }), {
    refresh: [["sessions"]],
    done: "That browser is signed out.",
  });
  return (
    <Section title="Signed-in browsers">
      <Loaded query={sessions}>
        {(list) => (
          <Table label="Signed-in browsers" heads={["Browser", "Address", "Last used", ""]}>
            {list.map((session) => (
              <tr key={session.id}>
                <td>
                  {browserText(session.user_agent)} {session.is_current && <Tag tone="accent">this one</Tag>}
                </td>
                <td>
                  <code>{session.ip ?? ""}</code>
                </td>
                <td>{session.last_used_at ? <Time at={session.last_used_at} /> : "never"}</td>
                <td className="settings-right">
                  {!session.is_current && (
                    <Button size="sm" onClick={() => end.mutate(session.id)}>
                      Sign out
                    </Button>
                  )}
                </td>
              </tr>
            ))}
          </Table>
        )}
      </Loaded>
    </Section>
  );
}

/** "Firefox on Linux" of a user agent. */
export function browserText(agent: string | null | undefined): string {
  if (!agent) return "Unknown browser";
  const browser = (/(Firefox|Edg|OPR|Chrome|Safari)\//.exec(agent)?.[1] ?? "Browser").replace("Edg", "Edge").replace("OPR", "Opera");
  const system = /(Android|iPhone|iPad|Windows|Mac OS X|Linux)/.exec(agent)?.[1]?.replace("Mac OS X", "macOS");
  return system === undefined ? browser : `${browser} on ${system}`;
}
