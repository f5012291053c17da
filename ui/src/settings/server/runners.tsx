/** Runners: the machines that offer workspaces, their tokens, and why builds wait. */
import { useQuery } from "@tanstack/react-query";
import { Ellipsis, Plus } from "lucide-react";
import { Fragment, type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import {
  Button,
  ConfirmDialog,
  Dialog,
  Drawer,
  EmptyState,
  ErrorNote,
  Field,
  IconButton,
  Menu,
  MenuItem,
  MenuSeparator,
  Meter,
  Tag,
  TextField,
  Time,
} from "@/components";
import { plural } from "@/platform/words";
import { Loaded, readAll, Section, SettingsPage, Table, useResource, useSave } from "../frame";
import { DAY_MS, LIFETIMES, ShownSecret } from "../own/tokens";
import { fieldErrors } from "./provider-drawer";
import {
  hasOwnRunners,
  loadText,
  marksOf,
  offerText,
  poolError,
  poolText,
  problemsOf,
  type Runner,
  type RunnerToken,
  startCommands,
  whyNotRemovable,
} from "./runner-rules";

type Waiting = components["schemas"]["WaitingBuildReply"];

const REFRESH = [["runners"], ["waiting-builds"], ["runner-tokens"]];
const EVERY_MS = 5000;

export function RunnersPage() {
  const runners = useQuery({
    queryKey: queryKeys.settings("runners"),
    queryFn: () => readAll((query) => api.GET("/api/v1/runners", { query })),
    refetchInterval: EVERY_MS,
  });
  const waiting = useQuery({
    queryKey: queryKeys.settings("waiting-builds"),
    queryFn: () => readAll((query) => api.GET("/api/v1/builds/waiting", { query })),
    refetchInterval: EVERY_MS,
  });
  const [creating, setCreating] = useState(false);
  return (
    <SettingsPage
      title="Runners"
      lead="The machines on which workspaces run. Every server has one for its own host; others connect to it from elsewhere, with a token."
    >
      {waiting.data !== undefined && waiting.data.length > 0 && <WaitingBuilds list={waiting.data} />}
      <Section title="Runners" hint={runners.data ? `${runners.data.filter((one) => one.connected).length} connected` : undefined}>
        <Loaded query={runners}>
          {(list) => (
            <>
              {list.length > 0 && (
                <Table label="Runners" heads={["Runner", "Pool", "Makes", "Running", "Version", "Seen", ""]}>
                  {list.map((runner) => (
                    <RunnerRow key={runner.id} runner={runner} />
                  ))}
                </Table>
              )}
              {!hasOwnRunners(list) && <FirstRunner />}
            </>
          )}
        </Loaded>
      </Section>
      <Tokens onCreate={() => setCreating(true)} />
      {creating && <NewToken onClose={() => setCreating(false)} />}
    </SettingsPage>
  );
}

/** Shown until a runner has connected with a token. */
function FirstRunner() {
  return (
    <div className="settings-card settings-padded settings-apart settings-start">
      <h3 className="ui-strong">Workspaces on another machine</h3>
      <p className="tone-muted">
        A runner is a process on a machine of yours that makes workspaces there. It connects to this server, so the machine needs no open port. Create a token
        below, then run these three commands on that machine.
      </p>
      <Commands token="TOKEN" />
    </div>
  );
}

function Commands({ token }: { token: string }) {
  return (
    <ol className="settings-commands" aria-label="Commands that start a runner">
      {startCommands(window.location.origin, token).map((command, place) => (
        <li key={command.label}>
          <span className="tone-muted">
            {place + 1}. {command.label}
          </span>
          <ShownSecret text={command.text} label={`Copy: ${command.label}`} />
        </li>
      ))}
    </ol>
  );
}

// Builds that wait

function WaitingBuilds({ list }: { list: readonly Waiting[] }) {
  return (
    <Section title="Waiting builds" hint={plural(list.length, "build")}>
      <Table label="Waiting builds" heads={["Workspace", "Owner", "Needs", "Since", "Why it waits"]}>
        {list.map((build) => (
          <tr key={build.id}>
            <td>
              <span className="ui-strong">{build.workspace}</span> <Tag>{build.transition}</Tag>
              <p>{build.template}</p>
            </td>
            <td>{build.owner ?? "a deleted user"}</td>
            <td className="tone-muted">{[build.backend, build.pool, ...build.labels].filter(Boolean).join(" · ")}</td>
            <td>
              <Time at={build.created_at} />
            </td>
            <td className="settings-wraps">{build.reason}</td>
          </tr>
        ))}
      </Table>
    </Section>
  );
}

// Runners

type Asked = "details" | "rename" | "remove" | null;

function RunnerRow({ runner }: { runner: Runner }) {
  const [asked, setAsked] = useState<Asked>(null);
  const close = () => setAsked(null);
  const path = { runner_id: runner.id };
  const drain = useSave((draining: boolean) => api.PATCH("/api/v1/runners/{runner_id}", { path, body: { draining } }), {
    refresh: REFRESH,
    done: runner.draining ? "It takes new workspaces again." : "It takes no new workspaces. Those that it has go on.",
  });
  const remove = useSave(() => api.DELETE("/api/v1/runners/{runner_id}", { path }), { refresh: REFRESH, done: "Removed.", quiet: true });
  const blocked = whyNotRemovable(runner);
  return (
    <tr>
      <td className="settings-wraps">
        <span className="ui-strong">{runner.name}</span>{" "}
        {marksOf(runner).map((mark) => (
          <Fragment key={mark.word}>
            <Tag tone={mark.tone}>{mark.word}</Tag>{" "}
          </Fragment>
        ))}
        {runner.labels.length > 0 && <p>{runner.labels.join(" · ")}</p>}
        {problemsOf(runner).map((text) => (
          <p key={text} className="tone-warn">
            {text}
          </p>
        ))}
      </td>
      <td className={runner.pool === "" ? "tone-muted" : undefined}>{poolText(runner)}</td>
      <td className="tone-muted">{runner.backends.map((offer) => offer.kind).join(", ")}</td>
      <td className={runner.capacity > 0 ? "settings-meter" : undefined}>
        {loadText(runner)}
        {runner.capacity > 0 && <Meter label={`Places of ${runner.name} in use`} value={runner.running} max={runner.capacity} />}
      </td>
      <td>{runner.version}</td>
      <td>{runner.connected ? "now" : <Time at={runner.seen_at} />}</td>
      <td className="settings-right">
        <Menu trigger={<IconButton icon={Ellipsis} label={`More for ${runner.name}`} />}>
          <MenuItem onSelect={() => setAsked("details")}>Show its workspaces</MenuItem>
          <MenuItem onSelect={() => drain.mutate(!runner.draining)} hint={runner.draining ? undefined : "It takes no new workspaces."}>
            {runner.draining ? "Resume" : "Drain"}
          </MenuItem>
          <MenuItem onSelect={() => setAsked("rename")}>Rename</MenuItem>
          <MenuSeparator />
          <MenuItem danger disabled={blocked !== null} hint={blocked ?? undefined} onSelect={() => setAsked("remove")}>
            Remove
          </MenuItem>
        </Menu>
        <ConfirmDialog
          open={asked === "remove"}
          onOpenChange={close}
          title={`Remove ${runner.name}?`}
          description="It leaves this list. If it connects again, it is listed again; revoke its token to keep it out."
          action="Remove"
          onConfirm={() => remove.mutateAsync(undefined)}
        />
        {asked === "rename" && <Rename runner={runner} onClose={close} />}
        {asked === "details" && <Details runner={runner} onClose={close} />}
      </td>
    </tr>
  );
}

function Rename({ runner, onClose }: { runner: Runner; onClose: () => void }) {
  const [name, setName] = useState(runner.name);
  const save = useSave(() => api.PATCH("/api/v1/runners/{runner_id}", { path: { runner_id: runner.id }, body: { name: name.trim() } }), {
    refresh: REFRESH,
    quiet: true,
    done: "Renamed.",
    onDone: onClose,
  });
  const wrong = fieldErrors(save.error);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    save.mutate(undefined);
  };
  return (
    <Dialog open onOpenChange={onClose} title={`Rename ${runner.name}`}>
      <form className="ui-dialog-form" onSubmit={submit}>
        <TextField label="Name" required autoFocus maxLength={64} value={name} error={wrong.get("name")} onChange={(event) => setName(event.target.value)} />
        {save.error !== null && wrong.size === 0 && <ErrorNote error={save.error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={save.isPending} disabled={name.trim() === "" || name.trim() === runner.name}>
            Rename
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

const TONES = { running: "ok", starting: "info", stopping: "info", deleting: "info", stopped: undefined, failed: "danger" } as const;

function Details({ runner, onClose }: { runner: Runner; onClose: () => void }) {
  const detail = useResource(["runner", runner.id], () => api.GET("/api/v1/runners/{runner_id}", { path: { runner_id: runner.id } }));
  return (
    <Drawer open onOpenChange={onClose} title={runner.name} description={factsOf(runner).join(" · ")}>
      <Loaded query={detail}>
        {(found) => (
          <div className="settings-details">
            <h3 className="ui-strong">{plural(found.workspace_count, "workspace")}</h3>
            {found.workspaces.length > 0 && (
              <ul className="settings-list" aria-label="Workspaces">
                {found.workspaces.map((one) => (
                  <li key={one.id}>
                    <span className="ui-grow ui-ellipsis">
                      {one.name} <span className="tone-muted">of {one.owner ?? "a deleted user"}</span>
                    </span>
                    <Tag tone={TONES[one.status]}>{one.status}</Tag>
                  </li>
                ))}
              </ul>
            )}
            {found.waiting_builds.length > 0 && (
              <>
                <h3 className="ui-strong">Waiting for it</h3>
                <ul className="settings-list" aria-label="Builds that wait for it">
                  {found.waiting_builds.map((one) => (
                    <li key={one.id}>
                      <span className="ui-grow">
                        {one.transition} of {one.workspace}
                        <span className="tone-muted"> · {one.reason}</span>
                      </span>
                    </li>
                  ))}
                </ul>
              </>
            )}
            {found.orphans.length > 0 && (
              <>
                <h3 className="ui-strong">Orphans</h3>
                <p className="tone-muted">It has these, and the database does not know them. They are kept: look at them on its machine.</p>
                <ul className="settings-list" aria-label="Orphans">
                  {found.orphans.map((name) => (
                    <li key={name}>
                      <code>{name}</code>
                    </li>
                  ))}
                </ul>
              </>
            )}
          </div>
        )}
      </Loaded>
    </Drawer>
  );
}

function factsOf(runner: Runner): string[] {
  const machine = [runner.os, runner.arch].filter(Boolean).join(" ");
  const token = runner.token === null ? "" : `token ${runner.token}`;
  return [poolText(runner), ...runner.backends.map(offerText), machine, runner.version, token].filter(Boolean);
}

// Tokens

function Tokens({ onCreate }: { onCreate: () => void }) {
  const tokens = useResource(["runner-tokens"], () => readAll((query) => api.GET("/api/v1/runner-tokens", { query })));
  return (
    <Section
      title="Tokens"
      end={
        <Button icon={Plus} onClick={onCreate}>
          Create a token
        </Button>
      }
    >
      <Loaded query={tokens}>
        {(list) =>
          list.length === 0 ? (
            <EmptyState>No tokens yet. A runner needs one to connect; several runners of a pool may share it.</EmptyState>
          ) : (
            <Table label="Tokens of runners" heads={["Name", "Pool", "Begins with", ">Runners", "Ends", "Last used", ""]}>
              {list.map((token) => (
                <TokenRow key={token.id} token={token} />
              ))}
            </Table>
          )
        }
      </Loaded>
    </Section>
  );
}

function TokenRow({ token }: { token: RunnerToken }) {
  const [revoking, setRevoking] = useState(false);
  const revoke = useSave(() => api.DELETE("/api/v1/runner-tokens/{runner_token_id}", { path: { runner_token_id: token.id } }), {
    refresh: REFRESH,
    done: "The token is revoked.",
    quiet: true,
  });
  return (
    <tr>
      <td className="ui-strong">{token.name}</td>
      <td>{token.pool}</td>
      <td>
        <code>{token.prefix}</code>
      </td>
      <td className="settings-right">{token.runners}</td>
      <td>{token.expired ? <Tag tone="warn">expired</Tag> : token.expires_at === null ? "never" : <Time at={token.expires_at} isFuture />}</td>
      <td>{token.last_used_at === null ? "never" : <Time at={token.last_used_at} />}</td>
      <td className="settings-right">
        <Button size="sm" onClick={() => setRevoking(true)}>
          Revoke
        </Button>
        <ConfirmDialog
          open={revoking}
          onOpenChange={setRevoking}
          title={`Revoke ${token.name}?`}
          description="Runners that use it are disconnected. Their workspaces go on, and are reached again when the runner connects with another token."
          action="Revoke"
          onConfirm={() => revoke.mutateAsync(undefined)}
        />
      </td>
    </tr>
  );
}

function NewToken({ onClose }: { onClose: () => void }) {
  const [pool, setPool] = useState("");
  const [name, setName] = useState("");
  const [days, setDays] = useState(0);
  const create = useSave(
    () => {
      const expires = days === 0 ? null : new Date(Date.now() + days * DAY_MS).toISOString();
      return api.POST("/api/v1/runner-tokens", { body: { pool: pool.trim(), name: name.trim() || null, expires_at: expires } });
    },
    { refresh: REFRESH, quiet: true },
  );
  const wrong = fieldErrors(create.error);
  const poolProblem = pool === "" ? null : poolError(pool.trim());
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    create.mutate(undefined);
  };
  if (create.data) {
    return (
      <Dialog
        open
        wide
        onOpenChange={onClose}
        title="Copy the token now"
        description="It is not shown again. On the machine of the runner:"
        footer={
          <Button variant="primary" onClick={onClose}>
            Done
          </Button>
        }
      >
        <ShownSecret text={create.data.token} label="Copy the token" />
        <Commands token={create.data.token} />
      </Dialog>
    );
  }
  return (
    <Dialog open onOpenChange={onClose} title="Create a token of runners">
      <form className="ui-dialog-form" onSubmit={submit}>
        <TextField
          label="Pool"
          required
          autoFocus
          placeholder="build"
          hint="The pool of its runners. Templates name the pool on which their workspaces run."
          value={pool}
          error={poolProblem ?? wrong.get("pool")}
          onChange={(event) => setPool(event.target.value)}
        />
        <TextField
          label="Name"
          aside="optional"
          placeholder="rack 3"
          maxLength={64}
          value={name}
          error={wrong.get("name")}
          onChange={(event) => setName(event.target.value)}
        />
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
        {create.error !== null && wrong.size === 0 && <ErrorNote error={create.error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={create.isPending} disabled={pool.trim() === "" || poolProblem !== null}>
            Create
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
