/** What every new chat is told: the built-in prompt, and the text of the administrator. */
import { useState } from "react";
import { api } from "@/api/client";
import { ApiError } from "@/api/errors";
import type { components } from "@/api/schema";
import { Button, ErrorNote, Segmented, Switch } from "@/components";
import { Loaded, Section, SettingRow, SettingsPage } from "../frame";
import { useResource, useSave } from "../resource";
import { diffLines } from "./line-diff";

type Deployment = components["schemas"]["DeploymentSettingsReply"];

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
        end={<Segmented label="View" value={view} options={[{ value: "edit", label: "Edit" }, { value: "diff", label: "Against the built-in one" }]} onChange={setView} />}
      >
        <div className="settings-card">
          {view === "edit" ? (
            <div className="settings-padded">
              <textarea className="ui-textarea" aria-label="Your text" rows={12} value={text} onChange={(event) => setText(event.target.value)} />
            </div>
          ) : (
            <PromptDiff before={current.default_system_prompt} after={whole} />
          )}
          {save.error !== null && <div className="settings-padded"><ErrorNote error={save.error} action={conflict ? <Button size="sm" onClick={() => save.mutate({ system_prompt: text, include_default_prompt: include })}>Save mine</Button> : undefined} /></div>}
          <div className="ui-save-bar">
            <Button variant="primary" busy={save.isPending} disabled={!changed} onClick={() => save.mutate({ system_prompt: text, include_default_prompt: include, version: current.version })}>Save</Button>
            <Button variant="quiet" disabled={!changed} onClick={() => { setText(current.system_prompt); setInclude(current.include_default_prompt); }}>Discard</Button>
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
      {diffLines(before, after).map((line, place) => {
        const Shown = line.kind === "added" ? "ins" : line.kind === "removed" ? "del" : "span";
        return <Shown key={place}>{line.text === "" ? " " : line.text}</Shown>;
      })}
    </div>
  );
}
