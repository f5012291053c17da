/** Would this call run? Asked of the server, which decides as it does in a chat. */
import { type SyntheticEvent, useId, useState } from "react";
import type { components } from "@/api/schema";
import { Button, ErrorNote, Field, Tag, TextField } from "@/components";
import { ACTIONS, type ToolRule, ruleWords } from "./rules";
import { argsOf, OWN_TOOLS } from "./tools";

export type TrialBody = components["schemas"]["ToolTrialBody"];
export type Trial = components["schemas"]["ToolTrialReply"];
export type Try = (body: TrialBody) => Promise<Trial>;

const TONES = { auto: "ok", ask: "warn", deny: "danger" } as const;
const ANSWERS = { auto: "It runs", ask: "A person is asked", deny: "It never runs" } as const;
const LEVELS = { deployment: "the server", template: "the template", user: "the user", chat: "the chat" } as const;
const MARKS = { yes: "fits the rule", may: "may fit the rule", no: "" } as const;

interface TryCallProps {
  onTry: Try;
  /** Rules that are not saved yet. */
  rules?: readonly ToolRule[];
  mayLoosen?: boolean;
}

export function TryCall({ onTry, rules, mayLoosen }: TryCallProps) {
  const [tool, setTool] = useState("execute");
  const [text, setText] = useState("");
  const [trial, setTrial] = useState<Trial | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const list = useId();
  const run = async () => {
    setBusy(true);
    setError(null);
    setTrial(null);
    try {
      const unsaved = rules === undefined ? {} : { rules: [...rules], may_loosen: mayLoosen ?? false };
      setTrial(await onTry({ tool: tool.trim(), args: argsOf(tool.trim(), text), ...unsaved }));
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    event.stopPropagation();
    if (!busy) void run();
  };
  return (
    <form className="settings-card policy-try" onSubmit={submit} aria-label="Try a call">
      <TextField label="Tool" required list={list} value={tool} onChange={(event) => setTool(event.target.value)} />
      <datalist id={list}>{OWN_TOOLS.map((one) => <option key={one.name} value={one.name} />)}</datalist>
      <Field label={tool.trim() === "execute" ? "Command" : "Arguments"} aside={tool.trim() === "execute" ? undefined : "JSON"}>
        {(names) => <textarea {...names} className="ui-textarea" rows={2} spellCheck={false} placeholder={tool.trim() === "execute" ? "cd app && git push" : '{"path": "src/main.py"}'} value={text} onChange={(event) => setText(event.target.value)} />}
      </Field>
      <Button type="submit" busy={busy}>Would it run?</Button>
      {error !== null && <ErrorNote error={error} />}
      {trial !== null && <TrialResult trial={trial} />}
    </form>
  );
}

function TrialResult({ trial }: { trial: Trial }) {
  const words = trial.rule == null ? "" : ruleWords(trial.rule);
  return (
    <div className="policy-trial" role="status">
      <p><Tag tone={TONES[trial.action]}>{ANSWERS[trial.action]}</Tag> {trial.explanation}</p>
      {trial.layer != null && (
        <p className="tone-muted">
          Decided by {LEVELS[trial.layer]}
          {trial.rule != null && <>: <code>{trial.rule.tool}{words !== "" && ` ${words}`}</code> → {ACTIONS.find((one) => one.value === trial.rule?.action)?.label}</>}
          {trial.reason !== "" && <>. {trial.reason}</>}
        </p>
      )}
      {trial.commands.length > 0 && (
        <ul aria-label="Commands that a shell would run">
          {trial.commands.map((one) => (
            <li key={one.command}><code>{one.command}</code> {one.matches !== "no" && <Tag tone={TONES[trial.action]}>{MARKS[one.matches]}</Tag>}</li>
          ))}
        </ul>
      )}
    </div>
  );
}
