/** What holds for all users: sharing, debug records, unfinished features, and how long things are kept. */
import { useState } from "react";
import { api, ApiError } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ErrorNote, Segmented, Switch } from "@/components";
import { labelOf } from "../form/json-schema";
import { Loaded, Section, SettingRow, SettingsPage, useResource, useSave } from "../frame";
import { compareLines } from "@/text/compare-lines";
import { diffTexts } from "@/text/diff";

type Deployment = components["schemas"]["DeploymentSettingsReply"];
type DebugMode = Deployment["debug_recording"];

const DEBUG_MODES: readonly { value: DebugMode; label: string }[] = [
  { value: "off", label: "Off" },
  { value: "allow_users", label: "Users choose" },
  { value: "forced", label: "Always" },
];

const KEPT: readonly { name: keyof Deployment["retention"]; title: string; setting: string }[] = [
  { name: "auto_archive", title: "Idle chats are archived", setting: "chats.auto_archive_days" },
  { name: "archived_chats", title: "Archived chats are deleted", setting: "chats.retention_days" },
  { name: "deleted_messages", title: "Messages that an edit deleted are emptied", setting: "chats.deleted_messages_days" },
  { name: "usage", title: "Records of single model calls are deleted", setting: "chats.usage_days" },
  { name: "debug_records", title: "Debug records are deleted", setting: "chats.debug_days" },
  { name: "audit_log", title: "Entries of the audit log are deleted", setting: "audit.retention_days" },
  { name: "workspaces", title: "Records of deleted workspaces and old builds are deleted", setting: "workspaces.retention_days" },
];

export function BehaviorPage() {
  const deployment = useDeployment();
  return (
    <SettingsPage title="Behaviour" lead="What holds for all users of this server.">
      <Loaded query={deployment}>{(current) => <Behavior current={current} />}</Loaded>
    </SettingsPage>
  );
}

function Behavior({ current }: { current: Deployment }) {
  const save = usePatchDeployment(false);
  const experiments = Object.entries(current.available_experiments);
  const choose = (name: string, on: boolean) =>
    save.mutate({ experiments: on ? [...current.experiments, name] : current.experiments.filter((one) => one !== name) });
  return (
    <>
      <Section title="Chats">
        <div className="settings-card">
          <SettingRow title="Sharing" hint="Users may share chats, read-only, with users and groups. Off also ends the reading of what is shared.">
            <Switch label="Sharing" checked={current.sharing_enabled} onChange={(on) => save.mutate({ sharing_enabled: on })} />
          </SettingRow>
          <SettingRow
            title="Public links"
            hint="Users may make links by which everyone reads a chat without an account. Off also ends the links that there are. They need sharing."
          >
            <Switch label="Public links" checked={current.public_links} onChange={(on) => save.mutate({ public_links: on })} />
          </SettingRow>
          {current.public_links && (
            <SettingRow title="Life of a public link" hint="The longest that users can choose for a new one.">
              <select
                className="ui-select"
                aria-label="Life of a public link"
                value={current.public_link_days}
                onChange={(event) => save.mutate({ public_link_days: Number(event.target.value) })}
              >
                {linkDays(current.public_link_days).map((days) => (
                  <option key={days} value={days}>
                    {days === 1 ? "a day" : `${days} days`}
                  </option>
                ))}
              </select>
            </SettingRow>
          )}
          <SettingRow
            title="Answer by notification"
            hint="A notification of a call that waits for approval has a link that approves or denies this one call, once and for an hour, without signing in."
          >
            <Switch label="Answer by notification" checked={current.answer_links} onChange={(on) => save.mutate({ answer_links: on })} />
          </SettingRow>
          <SettingRow title="Memory" hint="Users may keep notes that the models of their chats are told. Off tells none and takes no new ones.">
            <Switch label="Memory" checked={current.memory} onChange={(on) => save.mutate({ memory: on })} />
          </SettingRow>
          <SettingRow title="Debug records" hint="Requests to models and their answers, without secrets. Whoever may read a chat may read them.">
            <Segmented
              label="Debug records"
              value={current.debug_recording}
              options={DEBUG_MODES}
              onChange={(mode) => save.mutate({ debug_recording: mode })}
            />
          </SettingRow>
        </div>
      </Section>
      {experiments.length > 0 && (
        <Section title="Unfinished features">
          <div className="settings-card">
            {experiments.map(([name, text]) => (
              <SettingRow key={name} title={labelOf(name)} hint={text}>
                <Switch label={labelOf(name)} checked={current.experiments.includes(name)} onChange={(on) => choose(name, on)} />
              </SettingRow>
            ))}
          </div>
        </Section>
      )}
      <Section title="Retention" hint="Changed in chatd.toml, by the names at the right">
        <div className="settings-card">
          {KEPT.map(({ name, title, setting }) => (
            <SettingRow key={name} title={title} hint={daysText(current.retention[name])}>
              <code className="tone-subtle">{setting}</code>
            </SettingRow>
          ))}
        </div>
      </Section>
    </>
  );
}

/** The usual choices, and what a program has set. */
const linkDays = (current: number): number[] => [...new Set([1, 7, 30, 90, 365, current])].sort((one, other) => one - other);

export function daysText(days: number | undefined): string {
  if (days === undefined || days === 0) return "never";
  return days === 1 ? "after a day" : `after ${days} days`;
}

// What every new chat is told: the built-in prompt, and the text of the administrator.

export const useDeployment = () => useResource(["deployment"], () => api.GET("/api/v1/settings"));

export const usePatchDeployment = (quiet: boolean) =>
  useSave((body: components["schemas"]["DeploymentPatch"]) => api.PATCH("/api/v1/settings", { body }), {
    refresh: [["deployment"]],
    done: "Saved.",
    quiet,
  });

export function PromptsPage() {
  const deployment = useDeployment();
  return (
    <SettingsPage title="Prompts" lead="What every new chat is told before its first message. Chats that exist keep what they were told.">
      <Loaded query={deployment}>{(current) => <PromptEditor key={current.version} current={current} />}</Loaded>
    </SettingsPage>
  );
}

/** What a new chat is told with these settings. */
export function wholePrompt(defaultPrompt: string, include: boolean, text: string): string {
  return [include ? defaultPrompt : "", text].filter((part) => part.trim() !== "").join("\n\n");
}

function PromptEditor({ current }: { current: Deployment }) {
  const [text, setText] = useState(current.system_prompt);
  const [include, setInclude] = useState(current.include_default_prompt);
  const [view, setView] = useState<"edit" | "diff">("edit");
  const save = usePatchDeployment(true);
  const changed = text !== current.system_prompt || include !== current.include_default_prompt;
  const conflict = save.error instanceof ApiError && save.error.code === "version_conflict";
  const whole = wholePrompt(current.default_system_prompt, include, text);
  return (
    <>
      <Section title="Built-in prompt">
        <div className="settings-card">
          <SettingRow title="Begin with the built-in prompt" hint="It tells the model where it works and how to use its tools.">
            <Switch label="Begin with the built-in prompt" checked={include} onChange={setInclude} />
          </SettingRow>
          <details className="settings-row">
            <summary className="ui-strong">Read it</summary>
            <pre className="settings-prompt-diff">{current.default_system_prompt}</pre>
          </details>
        </div>
      </Section>
      <Section
        title="Your text"
        hint={`${new TextEncoder().encode(text).length.toLocaleString("en-US")} of 131,072 bytes`}
        end={
          <Segmented
            label="View"
            value={view}
            options={[
              { value: "edit", label: "Edit" },
              { value: "diff", label: "Against the built-in one" },
            ]}
            onChange={setView}
          />
        }
      >
        <div className="settings-card">
          {view === "edit" ? (
            <div className="settings-padded">
              <textarea className="ui-textarea" aria-label="Your text" rows={12} value={text} onChange={(event) => setText(event.target.value)} />
            </div>
          ) : (
            <PromptDiff before={current.default_system_prompt} after={whole} />
          )}
          {save.error !== null && (
            <div className="settings-padded">
              <ErrorNote
                error={save.error}
                action={
                  conflict ? (
                    <Button size="sm" onClick={() => save.mutate({ system_prompt: text, include_default_prompt: include })}>
                      Save mine
                    </Button>
                  ) : undefined
                }
              />
            </div>
          )}
          <div className="ui-save-bar">
            <Button
              variant="primary"
              busy={save.isPending}
              disabled={!changed}
              onClick={() => save.mutate({ system_prompt: text, include_default_prompt: include, version: current.version })}
            >
              Save
            </Button>
            <Button
              variant="quiet"
              disabled={!changed}
              onClick={() => {
                setText(current.system_prompt);
                setInclude(current.include_default_prompt);
              }}
            >
              Discard
            </Button>
            {!include && text.trim() === "" && <span className="tone-warn">New chats would be told nothing.</span>}
          </div>
        </div>
      </Section>
    </>
  );
}

function PromptDiff({ before, after }: { before: string; after: string }) {
  return (
    <div className="settings-prompt-diff" tabIndex={0} role="region" aria-label="Difference to the built-in prompt">
      {diffTexts(before, after, compareLines).map((line, place) => {
        const Shown = line.type === "add" ? "ins" : line.type === "del" ? "del" : "span";
        return <Shown key={place}>{line.text === "" ? " " : line.text}</Shown>;
      })}
    </div>
  );
}
