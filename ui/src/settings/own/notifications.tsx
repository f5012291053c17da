/** When and how the user is told that a chat has ended or needs somebody. */
import { Trash2 } from "lucide-react";
import { api } from "@/api/client";
import { Button, ErrorNote, IconButton, Switch, Tag, Time } from "@/components";
import { usePreference } from "@/platform/preferences";
import { type PushState, readPushState, switchPushOff, switchPushOn } from "@/platform/push";
import { Loaded, Section, SettingRow, SettingsPage } from "../frame";
import { readAll, useResource, useSave } from "../resource";

const REASONS: Partial<Record<PushState, string>> = {
  unsupported: "This browser has no notifications by push. On an iPhone, add the page to the home screen first.",
  insecure: "Notifications need https, or a server on this machine.",
  denied: "This browser refuses notifications of this site. Allow them in its settings for the site.",
};

export function NotificationsPage() {
  const [chime, setChime] = usePreference("chime");
  const state = useResource(["push-state"], readPushState);
  const refresh = [["push-state"], ["subscriptions"]];
  const change = useSave(async (on: boolean) => { await (on ? switchPushOn() : switchPushOff()); }, { refresh, quiet: true });
  const blocked = state.data === undefined ? undefined : REASONS[state.data];
  return (
    <SettingsPage title="Notifications" lead="Of the chats that you started. A turn that you stop yourself tells nothing.">
      <Section title="This browser">
        <div className="settings-card">
          <SettingRow title="Notifications" hint={blocked ?? "When an answer is complete, a chat failed or needs you; also while the page is closed. Only this browser can read them."}>
            <Switch label="Notifications" checked={state.data === "on"} disabled={blocked !== undefined || change.isPending} onChange={(on) => change.mutate(on)} />
          </SettingRow>
          <SettingRow title="Sound" hint="While the page is open and not in front.">
            <Switch label="Sound" checked={chime} onChange={setChime} />
          </SettingRow>
        </div>
        {change.error !== null && <ErrorNote error={change.error} />}
      </Section>
      <Subscriptions />
    </SettingsPage>
  );
}

function Subscriptions() {
  const list = useResource(["subscriptions"], () => readAll((query) => api.GET("/api/v1/push/subscriptions", { query })));
  const remove = useSave((id: string) => api.DELETE("/api/v1/push/subscriptions/{subscription_id}", { path: { subscription_id: id } }), { refresh: [["subscriptions"]] });
  const test = useSave((id: string) => api.POST("/api/v1/push/subscriptions/{subscription_id}/test", { path: { subscription_id: id } }), { refresh: [], done: "Sent. It should appear in a moment." });
  return (
    <Section title="All your browsers">
      <Loaded query={list}>
        {(found) => (
          <div className="settings-card">
            {found.length === 0 && <p className="tone-muted settings-padded">No browser gets notifications.</p>}
            {found.map((one) => (
              <SettingRow key={one.id} title={<>{one.service} {!one.enabled && <Tag tone="warn">ended</Tag>}</>} hint={<>{one.disabled_by ?? "Since"} <Time at={one.created_at} /></>}>
                <Button size="sm" onClick={() => test.mutate(one.id)}>Test</Button>
                <IconButton icon={Trash2} label={`Remove ${one.service}`} onClick={() => remove.mutate(one.id)} />
              </SettingRow>
            ))}
          </div>
        )}
      </Loaded>
    </Section>
  );
}
