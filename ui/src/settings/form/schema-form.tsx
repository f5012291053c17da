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
          value={values[field.name] ?? field.initial ?? null}
          error={errors?.get(prefix + field.name)}
          onChange={(value) => onChange({ ...values, [field.name]: value })}
        />
      ))}
    </>
  );
}

interface OneFieldProps {
  field: FormField;
  value: unknown;
  error: string | undefined;
  onChange: (value: unknown) => void;
}

function OneField({ field, value, error, onChange }: OneFieldProps) {
  if (field.kind === "boolean") return <YesNo field={field} value={value} onChange={onChange} />;
  if (field.kind === "group") return <Group field={field} value={value} error={error} onChange={onChange} />;
  return (
    <Field label={field.label} hint={field.description} error={error} wide={field.kind === "json" || field.kind === "list"}>
      {(names) => {
        if (field.kind === "choice") {
          return (
            <select {...names} className="select" value={textOf(value)} onChange={(event) => onChange(event.target.value || null)}>
              {field.nullable && <option value="">The provider decides</option>}
              {field.choices.map((choice) => (
                <option key={choice} value={choice}>{choice}</option>
              ))}
            </select>
          );
        }
        if (field.kind === "json" || field.kind === "list") return <TypedText {...names} field={field} value={value} onChange={onChange} />;
        const isNumber = field.kind === "number" || field.kind === "integer";
        return (
          <div className="field">
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

function YesNo({ field, value, onChange }: Omit<OneFieldProps, "error">) {
  const id = useId();
  return (
    <div className="f w">
      <div className="abl">
        <SettingRow title={<label htmlFor={id}>{field.label}</label>} hint={field.description}>
          <Switch id={id} label={field.label} checked={value === true} onChange={onChange} />
        </SettingRow>
      </div>
    </div>
  );
}

function Group({ field, value, onChange }: OneFieldProps) {
  const given = typeof value === "object" && value !== null ? (value as Values) : null;
  return (
    <fieldset className="f w">
      <legend className="lb">{field.label}</legend>
      <div className="abl">
        <SettingRow title="Set it" hint={field.description}>
          <Switch label={`Set ${field.label}`} checked={given !== null} onChange={(on) => onChange(on ? {} : null)} />
        </SettingRow>
        {given !== null && (
          <div className="form">
            <SchemaForm fields={field.fields} values={given} onChange={onChange} />
          </div>
        )}
      </div>
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
        aria-invalid={wrong || undefined}
        className="area"
        rows={3}
        spellCheck={false}
        value={text}
        placeholder={field.kind === "list" ? "One a line" : "JSON"}
        onChange={(event) => change(event.target.value)}
      />
      {wrong && <small className="danger">This is not valid JSON yet.</small>}
    </>
  );
}

const linesOf = (text: string): string[] => text.split("\n").map((line) => line.trim()).filter((line) => line !== "");

function writeText(field: FormField, value: unknown): string {
  if (value === null || value === undefined) return "";
  if (field.kind === "list") return Array.isArray(value) ? value.join("\n") : "";
  const text = JSON.stringify(value, null, 2);
  return text === "{}" || text === "[]" ? "" : text;
}
