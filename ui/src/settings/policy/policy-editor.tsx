/** The rules of one tool policy: which calls run, which a person approves, which never run. */
import "@/styles/administration.css";
import { Plus, Shield, Trash2 } from "lucide-react";
import { type SyntheticEvent, useId, useState } from "react";
import type { components } from "@/api/schema";
import { Button, Dialog, EmptyState, ErrorNote, Field, IconButton, Segmented, Switch, Tag, TextField } from "@/components";
import { SettingRow, Table } from "../frame";
import {
  ACTIONS,
  argsOf,
  draftOfRule,
  NEW_RULE,
  OWN_TOOLS,
  type Policy,
  type Preset,
  PRESETS,
  type RuleDraft,
  ruleOfDraft,
  ruleWords,
  type ToolRule,
} from "./rules";

interface PolicyEditorProps {
  policy: Policy;
  /** Users and chats may loosen it: only policies above them have that. */
  hasLoosen: boolean;
  canEdit: boolean;
  /** Rejects if the server refuses it. */
  onSave: (rules: ToolRule[], mayLoosen: boolean) => Promise<unknown>;
  onTry: Try;
}

const TONES = { auto: "ok", ask: "warn", deny: "danger" } as const;

export function PolicyEditor({ policy, hasLoosen, canEdit, onSave, onTry }: PolicyEditorProps) {
  const [editing, setEditing] = useState<number | null>(null);
  const [preset, setPreset] = useState<Preset | null>(null);
  const [error, setError] = useState<unknown>(null);
  const save = async (rules: ToolRule[], mayLoosen = policy.may_loosen) => {
    setError(null);
    try {
      await onSave(rules, mayLoosen);
    } catch (caught) {
      setError(caught);
    }
  };
  const edited = editing === null ? undefined : policy.rules[editing];
  return (
    <>
      {error !== null && <ErrorNote error={error} />}
      {policy.rules.length === 0 ? (
        <EmptyState icon={Shield}>No rules here.</EmptyState>
      ) : (
        <Table label="Rules" heads={["Tool", "Arguments", "What happens", ""]}>
          {policy.rules.map((rule, index) => (
            <tr key={index}>
              <td>
                {canEdit ? (
                  <button type="button" className="ui-link" onClick={() => setEditing(index)}>
                    <code>{rule.tool}</code>
                  </button>
                ) : (
                  <code>{rule.tool}</code>
                )}
              </td>
              <td>{ruleWords(rule) === "" ? <span className="tone-muted">any</span> : <code>{ruleWords(rule)}</code>}</td>
              <td>
                <Tag tone={TONES[rule.action]}>{ACTIONS.find((one) => one.value === rule.action)?.label}</Tag>
                {rule.reason !== undefined && rule.reason !== "" && <p className="tone-muted">{rule.reason}</p>}
              </td>
              <td className="settings-right">
                {canEdit && (
                  <IconButton icon={Trash2} label={`Delete the rule of ${rule.tool}`} onClick={() => void save(policy.rules.filter((_, at) => at !== index))} />
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      {canEdit && (
        <p className="settings-apart policy-actions">
          <Button icon={Plus} size="sm" onClick={() => setEditing(policy.rules.length)}>
            Add a rule
          </Button>
          <span className="tone-muted">or begin with</span>
          {PRESETS.map((one) => (
            <Button key={one.name} size="sm" onClick={() => setPreset(one)}>
              {one.name}
            </Button>
          ))}
        </p>
      )}
      {hasLoosen && (
        <div className="settings-card settings-apart">
          <SettingRow title="Users and chats may loosen it" hint="They may run without approval what this policy asks for. What never runs stays so.">
            <Switch
              label="Users and chats may loosen it"
              checked={policy.may_loosen}
              disabled={!canEdit}
              onChange={(isOn) => void save([...policy.rules], isOn)}
            />
          </SettingRow>
        </div>
      )}
      <h3 className="policy-head">Would this call run?</h3>
      <TryCall onTry={onTry} />
      {preset !== null && (
        <PresetDialog
          preset={preset}
          policy={policy}
          onTry={onTry}
          onClose={() => setPreset(null)}
          onSave={() => onSave([...preset.rules], policy.may_loosen)}
        />
      )}
      {editing !== null && (
        <RuleDialog
          first={edited === undefined ? NEW_RULE : draftOfRule(edited)}
          onClose={() => setEditing(null)}
          onSave={(rule) => {
            const rules = [...policy.rules];
            rules[editing] = rule;
            return onSave(rules, policy.may_loosen);
          }}
        />
      )}
    </>
  );
}

/** The rules of a preset before they replace those that there are. */
function PresetDialog({
  preset,
  policy,
  onTry,
  onClose,
  onSave,
}: {
  preset: Preset;
  policy: Policy;
  onTry: Try;
  onClose: () => void;
  onSave: () => Promise<unknown>;
}) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const save = async () => {
    setBusy(true);
    setError(null);
    try {
      await onSave();
      onClose();
    } catch (caught) {
      setError(caught);
      setBusy(false);
    }
  };
  const count = policy.rules.length;
  const replaced =
    count === 0 ? "There are no rules yet." : `They replace the ${count === 1 ? "rule" : `${count} rules`} that there ${count === 1 ? "is" : "are"} now.`;
  return (
    <Dialog
      open
      wide
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title={preset.name}
      description={`${preset.hint} ${replaced}`}
    >
      {preset.rules.length === 0 ? (
        <p className="tone-muted">It has no rules.</p>
      ) : (
        <ul className="policy-rules" aria-label="Rules of the preset" tabIndex={0}>
          {preset.rules.map((rule) => (
            <li key={rule.tool + ruleWords(rule)}>
              <Tag tone={TONES[rule.action]}>{ACTIONS.find((one) => one.value === rule.action)?.label}</Tag> <code>{rule.tool}</code>{" "}
              {ruleWords(rule) !== "" && <code className="tone-muted">{ruleWords(rule)}</code>}
            </li>
          ))}
        </ul>
      )}
      <TryCall onTry={onTry} rules={preset.rules} mayLoosen={policy.may_loosen} />
      {error !== null && <ErrorNote error={error} />}
      <footer>
        <Button onClick={onClose}>Cancel</Button>
        <Button variant="primary" busy={busy} onClick={() => void save()}>
          Save these rules
        </Button>
      </footer>
    </Dialog>
  );
}

function RuleDialog({ first, onClose, onSave }: { first: RuleDraft; onClose: () => void; onSave: (rule: ToolRule) => Promise<unknown> }) {
  const [draft, setDraft] = useState(first);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const set = (change: Partial<RuleDraft>) => setDraft({ ...draft, ...change });
  const save = async () => {
    setBusy(true);
    setError(null);
    try {
      await onSave(ruleOfDraft(draft));
      onClose();
    } catch (caught) {
      setError(caught);
      setBusy(false);
    }
  };
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    event.stopPropagation();
    if (!busy) void save();
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title="Rule"
      description="A denial wins; else the narrowest rule that fits a call."
    >
      <form className="ui-dialog-form" onSubmit={submit}>
        <TextField
          label="Tool"
          required
          placeholder="execute"
          hint="* stands for any text: github__* is every tool of that MCP server."
          value={draft.tool}
          onChange={(event) => set({ tool: event.target.value })}
        />
        <Field label="Arguments" aside="optional" hint="One a line: a name, a colon, a pattern. A pattern that begins with = is the exact text.">
          {(names) => (
            <textarea
              {...names}
              className="ui-textarea"
              rows={3}
              spellCheck={false}
              placeholder="command: git push *"
              value={draft.args}
              onChange={(event) => set({ args: event.target.value })}
            />
          )}
        </Field>
        <Segmented label="What happens" options={ACTIONS} value={draft.action} onChange={(action) => set({ action })} />
        <TextField
          label="Reason"
          aside="optional"
          hint="Shown to people that are asked, and told to the model."
          value={draft.reason}
          onChange={(event) => set({ reason: event.target.value })}
        />
        {error !== null && <ErrorNote error={error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={busy}>
            Save
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

// Would this call run? Asked of the server, which decides as it does in a chat.

export type TrialBody = components["schemas"]["ToolTrialBody"];
export type Trial = components["schemas"]["ToolTrialReply"];
type Try = (body: TrialBody) => Promise<Trial>;

const ANSWERS = { auto: "It runs", ask: "A person is asked", deny: "It never runs" } as const;
const LEVELS = { deployment: "the server", template: "the template", user: "the user", chat: "the chat" } as const;
const MARKS = { yes: "fits the rule", may: "may fit the rule", no: "" } as const;

interface TryCallProps {
  onTry: Try;
  /** Rules that are not saved yet. */
  rules?: readonly ToolRule[];
  mayLoosen?: boolean;
}

function TryCall({ onTry, rules, mayLoosen }: TryCallProps) {
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
      <datalist id={list}>
        {OWN_TOOLS.map((one) => (
          <option key={one.name} value={one.name} />
        ))}
      </datalist>
      <Field label={tool.trim() === "execute" ? "Command" : "Arguments"} aside={tool.trim() === "execute" ? undefined : "JSON"}>
        {(names) => (
          <textarea
            {...names}
            className="ui-textarea"
            rows={2}
            spellCheck={false}
            placeholder={tool.trim() === "execute" ? "cd app && git push" : '{"path": "src/main.py"}'}
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
        )}
      </Field>
      <Button type="submit" busy={busy}>
        Would it run?
      </Button>
      {error !== null && <ErrorNote error={error} />}
      {trial !== null && <TrialResult trial={trial} />}
    </form>
  );
}

function TrialResult({ trial }: { trial: Trial }) {
  const words = trial.rule == null ? "" : ruleWords(trial.rule);
  return (
    <div className="policy-trial" role="status">
      <p>
        <Tag tone={TONES[trial.action]}>{ANSWERS[trial.action]}</Tag> {trial.explanation}
      </p>
      {trial.layer != null && (
        <p className="tone-muted">
          Decided by {LEVELS[trial.layer]}
          {trial.rule != null && (
            <>
              :{" "}
              <code>
                {trial.rule.tool}
                {words !== "" && ` ${words}`}
              </code>{" "}
              → {ACTIONS.find((one) => one.value === trial.rule?.action)?.label}
            </>
          )}
          {trial.reason !== "" && <>. {trial.reason}</>}
        </p>
      )}
      {trial.commands.length > 0 && (
        <ul aria-label="Commands that a shell would run">
          {trial.commands.map((one) => (
            <li key={one.command}>
              <code>{one.command}</code> {one.matches !== "no" && <Tag tone={TONES[trial.action]}>{MARKS[one.matches]}</Tag>}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
