/** Spend limits: of everyone, of groups and of users. */
import { Pencil, Plus } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, Dialog, ErrorNote, Field, IconButton, Tag, TextField } from "@/components";
import { Loaded, Section, SettingsPage, Table } from "../frame";
import { moneyText, readMoney } from "../usage/money";
import { useResource, useSave } from "../resource";

type Limits = components["schemas"]["SpendLimitsReply"];
type Period = Limits["period"];

/** Whose limit is being set. `id` is empty for everyone, and until somebody is chosen. */
interface Target {
  kind: "default" | "user" | "group";
  id: string;
  name: string;
  micros: number | null;
}

const REFRESH = [["limits"]];

export function LimitsPage() {
  const limits = useResource(["limits"], () => api.GET("/api/v1/usage-limits"));
  const [target, setTarget] = useState<Target | null>(null);
  return (
    <SettingsPage title="Limits" lead="How much users may spend. A limit is checked before every model call and while it answers; a chat that reaches it keeps its text and waits.">
      <Section title="Limits" end={<Button icon={Plus} onClick={() => setTarget({ kind: "user", id: "", name: "", micros: null })}>Add a limit</Button>}>
        <Loaded query={limits}>{(found) => <LimitTable limits={found} onEdit={setTarget} />}</Loaded>
      </Section>
      {limits.data && limits.data.unpriced_model_count > 0 && (
        <p className="warn mt-3">{limits.data.unpriced_model_count === 1 ? "1 model has" : `${limits.data.unpriced_model_count} models have`} no price: such calls count as zero.</p>
      )}
      {target !== null && limits.data && <LimitDialog target={target} period={limits.data.period} onClose={() => setTarget(null)} />}
    </SettingsPage>
  );
}

function LimitTable({ limits, onEdit }: { limits: Limits; onEdit: (target: Target) => void }) {
  const rows: readonly (Target & { note: string })[] = [
    { kind: "default", id: "", name: "Everyone", micros: limits.spend_limit_micros, note: limits.source === "settings" ? "from the settings file" : "default" },
    ...limits.group_overrides.map((one) => ({ kind: "group" as const, id: one.group_id, name: one.group_name, micros: one.spend_limit_micros, note: `each of ${one.member_count} members` })),
    ...limits.overrides.map((one) => ({ kind: "user" as const, id: one.user_id, name: one.username, micros: one.spend_limit_micros, note: "user" })),
  ];
  return (
    <Table label="Limits" heads={["Who", "Limit", "When it is reached", ""]}>
      {rows.map((row) => (
        <tr key={row.kind + row.id}>
          <td><span className="b">{row.name}</span> <Tag>{row.note}</Tag></td>
          <td>{row.micros === null ? "none" : `${moneyText(row.micros)} a ${limits.period}`}</td>
          <td className="m">{row.micros === null ? "" : "The turn ends, the chat waits"}</td>
          <td className="r"><IconButton icon={Pencil} label={`Change the limit of ${row.name}`} onClick={() => onEdit(row)} /></td>
        </tr>
      ))}
    </Table>
  );
}

function LimitDialog({ target, period, onClose }: { target: Target; period: Period; onClose: () => void }) {
  const [who, setWho] = useState(target);
  const [amount, setAmount] = useState(target.micros === null ? "" : String(target.micros / 1_000_000));
  const [chosen, setChosen] = useState<Period>(period);
  const micros = readMoney(amount);
  const save = useSave(() => setLimit(who, micros, chosen), { refresh: REFRESH, quiet: true, done: "Saved. It holds on all replicas.", onDone: onClose });
  const remove = useSave(() => deleteLimit(who), { refresh: REFRESH, quiet: true, done: "Deleted.", onDone: onClose });
  const ready = micros !== null && (who.kind === "default" || who.id !== "");
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (ready) save.mutate(undefined);
  };
  const error = save.error ?? remove.error;
  return (
    <Dialog open onOpenChange={(open) => { if (!open) onClose(); }} title={target.name === "" ? "Add a limit" : `Limit of ${target.name}`}>
      <form className="dialog-form" onSubmit={submit}>
        {target.name === "" && <Chooser who={who} onChoose={setWho} />}
        <TextField label="Amount" aside="dollars" inputMode="decimal" placeholder="10" value={amount} error={amount !== "" && micros === null ? "An amount such as 10 or 2.50." : undefined} onChange={(event) => setAmount(event.target.value)} />
        {who.kind === "default" ? (
          <Field label="Period" hint="It is the period of all limits, by UTC.">
            {(names) => (
              <select {...names} className="select" value={chosen} onChange={(event) => setChosen(event.target.value as Period)}>
                <option value="day">Day</option>
                <option value="week">Week, from Monday</option>
                <option value="month">Month</option>
              </select>
            )}
          </Field>
        ) : (
          <p className="m">A {period}. A limit of a user wins over those of groups; of several groups the strictest holds.</p>
        )}
        {error !== null && <ErrorNote error={error} />}
        <footer>
          {target.name !== "" && target.micros !== null && <Button variant="danger" busy={remove.isPending} onClick={() => remove.mutate(undefined)}>Delete</Button>}
          <span className="grow" />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={save.isPending} disabled={!ready}>Save</Button>
        </footer>
      </form>
    </Dialog>
  );
}

async function setLimit(who: Target, micros: number | null, period: Period): Promise<unknown> {
  if (micros === null) throw new Error("An amount is needed.");
  const body = { spend_limit_micros: micros };
  if (who.kind === "default") return api.PUT("/api/v1/usage-limits", { body: { ...body, period } });
  if (who.kind === "group") return api.PUT("/api/v1/usage-limits/group-overrides/{group_id}", { path: { group_id: who.id }, body });
  return api.PUT("/api/v1/usage-limits/overrides/{user_id}", { path: { user_id: who.id }, body });
}

async function deleteLimit(who: Target): Promise<unknown> {
  if (who.kind === "default") return api.DELETE("/api/v1/usage-limits");
  if (who.kind === "group") return api.DELETE("/api/v1/usage-limits/group-overrides/{group_id}", { path: { group_id: who.id } });
  return api.DELETE("/api/v1/usage-limits/overrides/{user_id}", { path: { user_id: who.id } });
}

/** Finds a user or a group by a part of the name. */
function Chooser({ who, onChoose }: { who: Target; onChoose: (target: Target) => void }) {
  const [text, setText] = useState("");
  const found = useResource(["directory", text], () => (text.trim() === "" ? Promise.resolve(null) : api.GET("/api/v1/directory", { query: { q: text.trim(), limit: 8 } })));
  const choices: readonly Target[] = [
    ...(found.data?.groups ?? []).map((one) => ({ kind: "group" as const, id: one.id, name: one.name, micros: null })),
    ...(found.data?.users ?? []).map((one) => ({ kind: "user" as const, id: one.id, name: one.username, micros: null })),
  ];
  return (
    <div className="f">
      <TextField label="User or group" autoFocus value={text} hint={who.id === "" ? "Type a part of the name and choose." : `Chosen: ${who.name}`} onChange={(event) => setText(event.target.value)} />
      {choices.length > 0 && (
        <ul className="abl">
          {choices.map((choice) => (
            <li key={choice.kind + choice.id}>
              <button type="button" className="grow text-left" aria-pressed={who.id === choice.id} onClick={() => onChoose(choice)}>
                {choice.name} <Tag {...(who.id === choice.id ? { tone: "acc" as const } : {})}>{choice.kind}</Tag>
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
