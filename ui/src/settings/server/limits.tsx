/** Spend limits: for everyone, of groups and of users. */
import { Gauge, Pencil, Plus } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, Dialog, EmptyState, ErrorNote, Field, IconButton, Segmented, Tag, TextField } from "@/components";
import { moneyText, plural, readMoney } from "@/platform/words";
import { Loaded, Section, SettingRow, SettingsPage, Table, useResource, useSave } from "../frame";

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
const EVERYONE = "everyone";

export function LimitsPage() {
  const limits = useResource(["limits"], () => api.GET("/api/v1/usage-limits"));
  const canEdit = useMe().data?.user.role === "admin";
  const [target, setTarget] = useState<Target | null>(null);
  const add = canEdit && (
    <Button icon={Plus} onClick={() => setTarget({ kind: "user", id: "", name: "", micros: null })}>
      Add a limit
    </Button>
  );
  return (
    <SettingsPage
      title="Limits"
      lead="How much users may spend. A limit is checked before every model call and while it answers; a chat that reaches it keeps its text and waits."
    >
      <Loaded query={limits}>
        {(found) => (
          <>
            <Section title="Everyone">
              <EveryoneLimit limits={found} {...(canEdit ? { onEdit: setTarget } : {})} />
              {found.unpriced_model_count > 0 && (
                <p className="tone-warn settings-apart">
                  {found.unpriced_model_count === 1 ? "1 model has" : `${found.unpriced_model_count} models have`} no price: such calls count as zero.
                </p>
              )}
            </Section>
            <Section title="Users and groups" end={add}>
              <p className="settings-section-lead">These replace the limit for everyone.</p>
              <LimitTable limits={found} {...(canEdit ? { onEdit: setTarget } : {})} />
            </Section>
            {target?.kind === "default" && <EveryoneDialog limits={found} onClose={() => setTarget(null)} />}
            {target !== null && target.kind !== "default" && <LimitDialog target={target} period={found.period} onClose={() => setTarget(null)} />}
          </>
        )}
      </Loaded>
    </SettingsPage>
  );
}

interface EditableLimits {
  limits: Limits;
  /** Absent for those who may only read. */
  onEdit?: (target: Target) => void;
}

function EveryoneLimit({ limits, onEdit }: EditableLimits) {
  const micros = limits.spend_limit_micros;
  const origin = limits.source === "settings" ? "From the settings file, until a limit is set here." : `Set here. ${settingsWords(limits)}`;
  return (
    <div className="settings-card">
      <SettingRow
        title={micros === null ? "No limit" : `${moneyText(micros)} a ${limits.period} for each user`}
        hint={`Holds for every user who has no limit below. ${origin}`}
      >
        {onEdit && (
          <Button icon={Pencil} aria-label="Change the limit for everyone" onClick={() => onEdit({ kind: "default", id: "", name: EVERYONE, micros })}>
            Change
          </Button>
        )}
      </SettingRow>
    </div>
  );
}

const settingsWords = (limits: Limits): string =>
  limits.settings_spend_limit_micros === null
    ? "The settings file has no limit."
    : `The settings file has ${moneyText(limits.settings_spend_limit_micros)} a ${limits.settings_period}.`;

function LimitTable({ limits, onEdit }: EditableLimits) {
  const rows: readonly (Target & { micros: number; note: string })[] = [
    ...limits.group_overrides.map((one) => ({
      kind: "group" as const,
      id: one.group_id,
      name: one.group_name,
      micros: one.spend_limit_micros,
      note: `each of ${plural(one.member_count, "member")}`,
    })),
    ...limits.overrides.map((one) => ({ kind: "user" as const, id: one.user_id, name: one.username, micros: one.spend_limit_micros, note: "user" })),
  ];
  if (rows.length === 0) return <EmptyState icon={Gauge}>No user and no group has a limit of its own.</EmptyState>;
  return (
    <Table label="Limits of users and groups" heads={["Who", "Limit", "When it is reached", ""]}>
      {rows.map((row) => (
        <tr key={row.kind + row.id}>
          <td>
            <span className="ui-strong">{row.name}</span> <Tag>{row.note}</Tag>
          </td>
          <td>{`${moneyText(row.micros)} a ${limits.period}`}</td>
          <td className="tone-muted">The turn ends, the chat waits</td>
          <td className="settings-right">{onEdit && <IconButton icon={Pencil} label={`Change the limit of ${row.name}`} onClick={() => onEdit(row)} />}</td>
        </tr>
      ))}
    </Table>
  );
}

const amountText = (micros: number | null): string => (micros === null ? "" : String(micros / 1_000_000));

const amountError = (amount: string, micros: number | null) => (amount !== "" && micros === null ? "An amount such as 10 or 2.50." : undefined);

const CHOICES = [
  { value: "amount", label: "An amount" },
  { value: "none", label: "No limit" },
] as const;

/** The limit of users who have no other, and the period of all limits. */
function EveryoneDialog({ limits, onClose }: { limits: Limits; onClose: () => void }) {
  const [choice, setChoice] = useState<"amount" | "none">("amount");
  const [amount, setAmount] = useState(amountText(limits.spend_limit_micros));
  const [period, setPeriod] = useState<Period>(limits.period);
  const micros = readMoney(amount);
  const ready = choice === "none" || micros !== null;
  const save = useSave(() => api.PUT("/api/v1/usage-limits", { body: { spend_limit_micros: choice === "none" ? null : micros, period } }), {
    refresh: REFRESH,
    quiet: true,
    done: "Saved. It holds on all replicas.",
    onDone: onClose,
  });
  const reset = useSave(() => api.DELETE("/api/v1/usage-limits"), {
    refresh: REFRESH,
    quiet: true,
    done: "The limit of the settings file holds again.",
    onDone: onClose,
  });
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (ready) save.mutate(undefined);
  };
  const error = save.error ?? reset.error;
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title="Limit for everyone"
      description="What each user may spend who has no limit of their own and none by a group."
    >
      <form className="ui-dialog-form" onSubmit={submit}>
        <Segmented label="Limit" options={CHOICES} value={choice} onChange={setChoice} />
        {choice === "amount" && (
          <TextField
            label="Amount"
            aside="dollars"
            inputMode="decimal"
            placeholder="10"
            value={amount}
            error={amountError(amount, micros)}
            onChange={(event) => setAmount(event.target.value)}
          />
        )}
        <Field label="Period" hint="It is the period of all limits, by UTC.">
          {(names) => (
            <select {...names} className="ui-select" value={period} onChange={(event) => setPeriod(event.target.value as Period)}>
              <option value="day">Day</option>
              <option value="week">Week, from Monday</option>
              <option value="month">Month</option>
            </select>
          )}
        </Field>
        {limits.source === "database" && (
          <p className="tone-muted">
            {settingsWords(limits)}{" "}
            <button type="button" className="ui-link" disabled={reset.isPending} onClick={() => reset.mutate(undefined)}>
              Use the settings file
            </button>
          </p>
        )}
        {error !== null && <ErrorNote error={error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={save.isPending} disabled={!ready}>
            Save
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

function LimitDialog({ target, period, onClose }: { target: Target; period: Period; onClose: () => void }) {
  const [who, setWho] = useState(target);
  const [amount, setAmount] = useState(amountText(target.micros));
  const micros = readMoney(amount);
  const save = useSave(() => setLimit(who, micros), { refresh: REFRESH, quiet: true, done: "Saved. It holds on all replicas.", onDone: onClose });
  const remove = useSave(() => deleteLimit(who), { refresh: REFRESH, quiet: true, done: "Deleted.", onDone: onClose });
  const ready = micros !== null && who.id !== "";
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (ready) save.mutate(undefined);
  };
  const error = save.error ?? remove.error;
  return (
    <Dialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title={target.name === "" ? "Add a limit" : `Limit of ${target.name}`}
    >
      <form className="ui-dialog-form" onSubmit={submit}>
        {target.name === "" && <Chooser who={who} onChoose={setWho} />}
        <TextField
          label="Amount"
          aside="dollars"
          inputMode="decimal"
          placeholder="10"
          value={amount}
          error={amountError(amount, micros)}
          onChange={(event) => setAmount(event.target.value)}
        />
        <p className="tone-muted">A {period}. A limit of a user wins over those of groups; of several groups the strictest holds.</p>
        {error !== null && <ErrorNote error={error} />}
        <footer>
          {target.name !== "" && (
            <Button variant="danger" busy={remove.isPending} onClick={() => remove.mutate(undefined)}>
              Delete
            </Button>
          )}
          <span className="ui-grow" />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" variant="primary" busy={save.isPending} disabled={!ready}>
            Save
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

async function setLimit(who: Target, micros: number | null): Promise<unknown> {
  if (micros === null) throw new Error("An amount is needed.");
  const body = { spend_limit_micros: micros };
  if (who.kind === "group") return api.PUT("/api/v1/usage-limits/group-overrides/{group_id}", { path: { group_id: who.id }, body });
  return api.PUT("/api/v1/usage-limits/overrides/{user_id}", { path: { user_id: who.id }, body });
}

async function deleteLimit(who: Target): Promise<unknown> {
  if (who.kind === "group") return api.DELETE("/api/v1/usage-limits/group-overrides/{group_id}", { path: { group_id: who.id } });
  return api.DELETE("/api/v1/usage-limits/overrides/{user_id}", { path: { user_id: who.id } });
}

/** Finds a user or a group by a part of the name. */
function Chooser({ who, onChoose }: { who: Target; onChoose: (target: Target) => void }) {
  const [text, setText] = useState("");
  const found = useResource(["directory", text], () =>
    text.trim() === "" ? Promise.resolve(null) : api.GET("/api/v1/directory", { query: { q: text.trim(), limit: 8 } }),
  );
  const choices: readonly Target[] = [
    ...(found.data?.groups ?? []).map((one) => ({ kind: "group" as const, id: one.id, name: one.name, micros: null })),
    ...(found.data?.users ?? []).map((one) => ({ kind: "user" as const, id: one.id, name: one.username, micros: null })),
  ];
  return (
    <div className="ui-form-field">
      <TextField
        label="User or group"
        autoFocus
        value={text}
        hint={who.id === "" ? "Type a part of the name and choose." : `Chosen: ${who.name}`}
        onChange={(event) => setText(event.target.value)}
      />
      {choices.length > 0 && (
        <ul className="settings-list">
          {choices.map((choice) => (
            <li key={choice.kind + choice.id}>
              <button type="button" className="settings-option ui-grow" aria-pressed={who.id === choice.id} onClick={() => onChoose(choice)}>
                {choice.name} <Tag {...(who.id === choice.id ? { tone: "accent" as const } : {})}>{choice.kind}</Tag>
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
