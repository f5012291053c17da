/** What holds for all users: sharing, debug records, unfinished features, and how long things are kept. */
import type { components } from "@/api/schema";
import { Segmented, Switch } from "@/components";
import { Loaded, Section, SettingRow, SettingsPage } from "../frame";
import { labelOf } from "../form/json-schema";
import { useDeployment, usePatchDeployment } from "./prompts";

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
          <SettingRow title="Debug records" hint="Requests to models and their answers, without secrets. Whoever may read a chat may read them.">
            <Segmented label="Debug records" value={current.debug_recording} options={DEBUG_MODES} onChange={(mode) => save.mutate({ debug_recording: mode })} />
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

export function daysText(days: number | undefined): string {
  if (days === undefined || days === 0) return "never";
  return days === 1 ? "after a day" : `after ${days} days`;
}
