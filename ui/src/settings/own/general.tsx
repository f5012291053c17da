/** How the page looks and acts in this browser, and what the user's chats are told. */
import { Trash2 } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ErrorNote, IconButton, Segmented, Switch, Tag, Time } from "@/components";
import { ShortcutList } from "@/components/shortcuts";
import { type PushState, readPushState, switchPushOff, switchPushOn } from "@/platform/browser";
import { type Theme, usePreference } from "@/platform/preferences";
import { Loaded, readAll, Section, SettingRow, SettingsPage, useResource, useSave } from "../frame";

const THEMES: readonly { value: Theme; label: string }[] = [
  { value: "system", label: "System" },
  { value: "light", label: "Light" },
  { value: "dark", label: "Dark" },
  { value: "contrast", label: "High contrast" },
];

export function GeneralPage() {
  const [theme, setTheme] = usePreference("theme");
  const [sendKey, setSendKey] = usePreference("sendKey");
  const settings = useResource(["me"], () => api.GET("/api/v1/settings/me"));
  return (
    <SettingsPage title="General">
      <Section title="This browser">
        <div className="settings-card">
          <SettingRow title="Theme">
            <Segmented label="Theme" value={theme} options={THEMES} onChange={setTheme} />
          </SettingRow>
          <SettingRow title="Send with" hint="The other one begins a new line.">
            <Segmented
              label="Send with"
              value={sendKey}
              options={[
                { value: "enter", label: "Enter" },
                { value: "mod-enter", label: "Ctrl Enter" },
              ]}
              onChange={setSendKey}
            />
          </SettingRow>
        </div>
      </Section>
      <Loaded query={settings}>{(current) => <DebugChoice current={current} />}</Loaded>
      <Section title="Your instructions" hint="All your chats are told them, from the next message on">
        <Loaded query={settings}>{(current) => <OwnPrompt key={current.version} current={current} />}</Loaded>
      </Section>
    </SettingsPage>
  );
}

/** Only where the administrator lets users choose. */
function DebugChoice({ current }: { current: components["schemas"]["UserSettingsReply"] }) {
  const save = useSave((on: boolean) => api.PATCH("/api/v1/settings/me", { body: { debug_recording: on } }), { refresh: [["me"]] });
  if (current.debug_mode === "off") return null;
  const forced = current.debug_mode === "forced";
  return (
    <Section title="Your chats">
      <div className="settings-card">
        <SettingRow
          title="Debug records"
          hint={
            forced ? "The administrator records all model calls." : "Record requests to models and their answers, to see them in the panel Debug of a chat."
          }
        >
          <Switch label="Debug records" checked={forced || current.debug_recording} disabled={forced} onChange={(on) => save.mutate(on)} />
        </SettingRow>
      </div>
    </Section>
  );
}

function OwnPrompt({ current }: { current: components["schemas"]["UserSettingsReply"] }) {
  const [text, setText] = useState(current.custom_prompt);
  const save = useSave(() => api.PATCH("/api/v1/settings/me", { body: { custom_prompt: text, version: current.version } }), {
    refresh: [["me"]],
    quiet: true,
    done: "Saved.",
  });
  const changed = text !== current.custom_prompt;
  return (
    <div className="settings-card">
      <div className="settings-padded">
        <textarea
          className="ui-textarea"
          aria-label="Your instructions"
          rows={6}
          placeholder="Answer briefly. I use Python 3.12 and prefer pytest."
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
      </div>
      {save.error !== null && (
        <div className="settings-padded">
          <ErrorNote error={save.error} />
        </div>
      )}
      <div className="ui-save-bar">
        <Button variant="primary" busy={save.isPending} disabled={!changed} onClick={() => save.mutate(undefined)}>
          Save
        </Button>
        <Button variant="quiet" disabled={!changed} onClick={() => setText(current.custom_prompt)}>
          Discard
        </Button>
      </div>
    </div>
  );
}

// When and how the user is told that a chat has ended or needs somebody.

const REASONS: Partial<Record<PushState, string>> = {
  unsupported: "This browser has no notifications by push. On an iPhone, add the page to the home screen first.",
  insecure: "Notifications need https, or a server on this machine.",
  denied: "This browser refuses notifications of this site. Allow them in its settings for the site.",
};

export function NotificationsPage() {
  const [chime, setChime] = usePreference("chime");
  const state = useResource(["push-state"], readPushState);
  const refresh = [["push-state"], ["subscriptions"]];
  const change = useSave(
    async (on: boolean) => {
      await (on ? switchPushOn() : switchPushOff());
    },
    { refresh, quiet: true },
  );
  const blocked = state.data === undefined ? undefined : REASONS[state.data];
  return (
    <SettingsPage title="Notifications" lead="Of the chats that you started. A turn that you stop yourself tells nothing.">
      <Section title="This browser">
        <div className="settings-card">
          <SettingRow
            title="Notifications"
            hint={blocked ?? "When an answer is complete, a chat failed or needs you; also while the page is closed. Only this browser can read them."}
          >
            <Switch
              label="Notifications"
              checked={state.data === "on"}
              disabled={blocked !== undefined || change.isPending}
              onChange={(on) => change.mutate(on)}
            />
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
  const remove = useSave((id: string) => api.DELETE("/api/v1/push/subscriptions/{subscription_id}", { path: { subscription_id: id } }), {
    refresh: [["subscriptions"]],
  });
  const test = useSave((id: string) => api.POST("/api/v1/push/subscriptions/{subscription_id}/test", { path: { subscription_id: id } }), {
    refresh: [],
    done: "Sent. It should appear in a moment.",
  });
  return (
    <Section title="All your browsers">
      <Loaded query={list}>
        {(found) => (
          <div className="settings-card">
            {found.length === 0 && <p className="tone-muted settings-padded">No browser gets notifications.</p>}
            {found.map((one) => (
              <SettingRow
                key={one.id}
                title={
                  <>
                    {one.service} {!one.enabled && <Tag tone="warn">ended</Tag>}
                  </>
                }
                hint={
                  <>
                    {one.disabled_by ?? "Since"} <Time at={one.created_at} />
                  </>
                }
              >
                <Button size="sm" onClick={() => test.mutate(one.id)}>
                  Test
                </Button>
                <IconButton icon={Trash2} label={`Remove ${one.service}`} onClick={() => remove.mutate(one.id)} />
              </SettingRow>
            ))}
          </div>
        )}
      </Loaded>
    </Section>
  );
}

export function ShortcutsPage() {
  return (
    <SettingsPage title="Shortcuts" lead="Everything on the page can be done with the keyboard.">
      <Section title="Keys">
        <div className="settings-card settings-padded">
          <ShortcutList />
        </div>
      </Section>
    </SettingsPage>
  );
}
