/** Form fields made from a JSON Schema. */
import { useId, useState } from "react";
import { Field, Switch } from "@/components";
import { SettingRow } from "../frame";
import type { FormField } from "./json-schema";

export type Values = Readonly<Record<string, unknown>>;

interface SchemaFormProps {
  fields: readonly FormField[];
  values: Values;
  onChange: (values: Values) => void;
  /** By field, as the server names them: `options.effort`. */
  errors?: ReadonlyMap<string, string>;
  prefix?: string;
}

export function SchemaForm({ fields, values, onChange, errors, prefix = "" }: SchemaFormProps) {
  return (
    <>
      {fields.map((field) => (
        <OneField
          key={field.name}
          field={field}
          path={prefix + field.name}
          value={values[field.name] ?? field.initial ?? null}
          errors={errors ?? NO_ERRORS}
          onChange={(value) => onChange({ ...values, [field.name]: value })}
        />
      ))}
    </>
  );
}

const NO_ERRORS: ReadonlyMap<string, string> = new Map();

/** What is wrong with a field, or with something within it that has no control of its own. */
function errorAt(errors: ReadonlyMap<string, string>, path: string): string | undefined {
  const whole = errors.get(path);
  if (whole !== undefined) return whole;
  const inner = [...errors].find(([name]) => name.startsWith(`${path}.`) || name.startsWith(`${path}[`));
  return inner === undefined ? undefined : `${inner[0].slice(path.length).replace(/^\./, "")}: ${inner[1]}`;
}

interface OneFieldProps {
  field: FormField;
  /** As the server names it in its errors. */
  path: string;
  value: unknown;
  errors: ReadonlyMap<string, string>;
  onChange: (value: unknown) => void;
}

function OneField({ field, path, value, errors, onChange }: OneFieldProps) {
  if (field.kind === "boolean") return <YesNo field={field} value={value} error={errorAt(errors, path)} onChange={onChange} />;
  if (field.kind === "group") return <Group field={field} path={path} value={value} errors={errors} onChange={onChange} />;
  const error = errorAt(errors, path);
  return (
    <Field label={field.label} hint={field.description} error={error} wide={field.kind === "json" || field.kind === "list"}>
      {(names) => {
        if (field.kind === "choice") {
          return (
            <select {...names} className="ui-select" value={textOf(value)} onChange={(event) => onChange(event.target.value || null)}>
              {field.nullable && <option value="">The provider decides</option>}
              {field.choices.map((choice) => (
                <option key={choice} value={choice}>
                  {choice}
                </option>
              ))}
            </select>
          );
        }
        if (field.kind === "json" || field.kind === "list") return <TypedText {...names} field={field} value={value} onChange={onChange} />;
        const isNumber = field.kind === "number" || field.kind === "integer";
        return (
          <div className="ui-field">
            <input
              {...names}
              type={isNumber ? "number" : "text"}
              step={field.kind === "integer" ? 1 : "any"}
              min={field.minimum}
              max={field.maximum}
              value={textOf(value)}
              placeholder={field.nullable ? "The provider decides" : undefined}
              onChange={(event) => onChange(readText(event.target.value, isNumber))}
            />
          </div>
        );
      }}
    </Field>
  );
}

const textOf = (value: unknown): string => (typeof value === "string" || typeof value === "number" ? String(value) : "");

function readText(text: string, isNumber: boolean): unknown {
  if (text === "") return null;
  return isNumber ? Number(text) : text;
}

function YesNo({ field, value, error, onChange }: Omit<OneFieldProps, "path" | "errors"> & { error: string | undefined }) {
  const id = useId();
  return (
    <div className="ui-form-field is-wide">
      <div className="settings-list">
        <SettingRow title={<label htmlFor={id}>{field.label}</label>} hint={field.description}>
          <Switch id={id} label={field.label} checked={value === true} wrongBy={error && `${id}-note`} onChange={onChange} />
        </SettingRow>
      </div>
      {error !== undefined && (
        <small id={`${id}-note`} className="tone-danger">
          {error}
        </small>
      )}
    </div>
  );
}

function Group({ field, path, value, errors, onChange }: OneFieldProps) {
  const id = useId();
  const given = typeof value === "object" && value !== null ? (value as Values) : null;
  // With its fields shown, each of them says what is wrong with it.
  const error = given === null ? errorAt(errors, path) : errors.get(path);
  return (
    <fieldset className="ui-form-field is-wide">
      <legend className="ui-label">{field.label}</legend>
      <div className="settings-list">
        <SettingRow title="Set it" hint={field.description}>
          <Switch label={`Set ${field.label}`} checked={given !== null} wrongBy={error && `${id}-note`} onChange={(on) => onChange(on ? {} : null)} />
        </SettingRow>
        {given !== null && (
          <div className="settings-form">
            <SchemaForm fields={field.fields} values={given} errors={errors} prefix={`${path}.`} onChange={onChange} />
          </div>
        )}
      </div>
      {error !== undefined && (
        <small id={`${id}-note`} className="tone-danger">
          {error}
        </small>
      )}
    </fieldset>
  );
}

interface TypedTextProps {
  id: string;
  "aria-describedby": string | undefined;
  "aria-invalid": boolean | undefined;
  field: FormField;
  value: unknown;
  onChange: (value: unknown) => void;
}

/** A list by lines, or JSON. What is not valid yet stays in the box and is not passed on. */
function TypedText({ field, value, onChange, ...names }: TypedTextProps) {
  const [text, setText] = useState(() => writeText(field, value));
  const [wrong, setWrong] = useState(false);
  const change = (next: string) => {
    setText(next);
    try {
      onChange(field.kind === "list" ? linesOf(next) : next.trim() === "" ? (field.initial ?? null) : (JSON.parse(next) as unknown));
      setWrong(false);
    } catch {
      setWrong(true);
    }
  };
  return (
    <>
      <textarea
        {...names}
        aria-invalid={wrong || names["aria-invalid"]}
        aria-describedby={[names["aria-describedby"], wrong && `${names.id}-json`].filter(Boolean).join(" ") || undefined}
        className="ui-textarea"
        rows={3}
        spellCheck={false}
        value={text}
        placeholder={field.kind === "list" ? "One a line" : "JSON"}
        onChange={(event) => change(event.target.value)}
      />
      {wrong && (
        <small id={`${names.id}-json`} className="tone-danger">
          This is not valid JSON yet.
        </small>
      )}
    </>
  );
}

const linesOf = (text: string): string[] =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");

function writeText(field: FormField, value: unknown): string {
  if (value === null || value === undefined) return "";
  if (field.kind === "list") return Array.isArray(value) ? value.join("\n") : "";
  const text = JSON.stringify(value, null, 2);
  return text === "{}" || text === "[]" ? "" : text;
}
