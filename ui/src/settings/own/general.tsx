/** How the page looks and acts in this browser, and what the user's chats are told. */
import { useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ErrorNote, Segmented, Switch } from "@/components";
import { type Theme, usePreference } from "@/platform/preferences";
import { Loaded, Section, SettingRow, SettingsPage } from "../frame";
import { useResource, useSave } from "../resource";

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
            <Segmented label="Send with" value={sendKey} options={[{ value: "enter", label: "Enter" }, { value: "mod-enter", label: "Ctrl Enter" }]} onChange={setSendKey} />
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
        <SettingRow title="Debug records" hint={forced ? "The administrator records all model calls." : "Record requests to models and their answers, to see them in the panel Debug of a chat."}>
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
        <textarea className="ui-textarea" aria-label="Your instructions" rows={6} placeholder="Answer briefly. I use Python 3.12 and prefer pytest." value={text} onChange={(event) => setText(event.target.value)} />
      </div>
      {save.error !== null && <div className="settings-padded"><ErrorNote error={save.error} /></div>}
      <div className="ui-save-bar">
        <Button variant="primary" busy={save.isPending} disabled={!changed} onClick={() => save.mutate(undefined)}>Save</Button>
        <Button variant="quiet" disabled={!changed} onClick={() => setText(current.custom_prompt)}>Discard</Button>
      </div>
    </div>
  );
}
