import { Eye, EyeOff } from "lucide-react";
import { RadioGroup, Switch as SwitchPrimitive, Tabs as TabsPrimitive } from "radix-ui";
import { type InputHTMLAttributes, type ReactNode, type Ref, useEffect, useId, useRef, useState } from "react";
import { IconButton } from "./button";
import { classes } from "./icon";

export interface FieldNames {
  id: string;
  "aria-describedby": string | undefined;
  "aria-invalid": boolean | undefined;
}

interface FieldProps {
  label: ReactNode;
  /** At the right of the label: "optional", a unit, a link. */
  aside?: ReactNode;
  hint?: ReactNode;
  error?: ReactNode;
  wide?: boolean | undefined;
  /** Gives the control its id and the ids of what describes it. */
  children: (names: FieldNames) => ReactNode;
}

/** A label, a control, and below it a hint or what is wrong. */
export function Field({ label, aside, hint, error, wide, children }: FieldProps) {
  const id = useId();
  const wrong = error !== undefined && error !== null && error !== "";
  const described = wrong || (hint !== undefined && hint !== null);
  return (
    <div className={classes("ui-form-field", wide && "is-wide", wrong && "is-bad")}>
      <label htmlFor={id}>
        {label}
        {aside !== undefined && <span>{aside}</span>}
      </label>
      {children({ id, "aria-describedby": described ? `${id}-note` : undefined, "aria-invalid": wrong || undefined })}
      {described && <small id={`${id}-note`}>{wrong ? error : hint}</small>}
    </div>
  );
}

interface TextFieldProps extends Omit<InputHTMLAttributes<HTMLInputElement>, "size"> {
  label: ReactNode;
  aside?: ReactNode;
  hint?: ReactNode;
  error?: ReactNode;
  wide?: boolean | undefined;
  ref?: Ref<HTMLInputElement> | undefined;
}

/** A field of one line. A password can be shown. */
export function TextField({ label, aside, hint, error, wide, type, ref, ...input }: TextFieldProps) {
  const [shown, setShown] = useState(false);
  const secret = type === "password";
  return (
    <Field label={label} aside={aside} hint={hint} error={error} wide={wide}>
      {(names) => (
        <div className="ui-field">
          <input {...input} {...names} ref={ref} type={secret && shown ? "text" : (type ?? "text")} />
          {secret && (
            <IconButton
              icon={shown ? EyeOff : Eye}
              size="sm"
              className="ui-field-end"
              label={shown ? "Hide password" : "Show password"}
              onClick={() => setShown(!shown)}
            />
          )}
        </div>
      )}
    </Field>
  );
}

interface SwitchProps {
  label: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
  disabled?: boolean | undefined;
  id?: string | undefined;
  /** The id of the text that says what is wrong with it. */
  wrongBy?: string | undefined;
}

/** On or off, with effect at once. `label` names it where no visible label does. */
export function Switch({ label, checked, onChange, disabled, id, wrongBy }: SwitchProps) {
  return (
    <SwitchPrimitive.Root
      className={classes("ui-switch", checked && "is-on")}
      aria-label={label}
      checked={checked}
      onCheckedChange={onChange}
      disabled={disabled ?? false}
      {...(id === undefined ? {} : { id })}
      {...(wrongBy === undefined ? {} : { "aria-describedby": wrongBy, "aria-invalid": true })}
    />
  );
}

export interface Option<T extends string> {
  value: T;
  label: ReactNode;
  /** Beside the label of a tab, e.g. a count. */
  count?: number | undefined;
  disabled?: boolean | undefined;
}

interface ChoiceProps<T extends string> {
  label: string;
  value: T;
  options: readonly Option<T>[];
  onChange: (value: T) => void;
}

/** Two to four choices side by side, of which one holds. */
export function Segmented<T extends string>({ label, value, options, onChange }: ChoiceProps<T>) {
  return (
    <RadioGroup.Root className="ui-segments" aria-label={label} value={value} orientation="horizontal" onValueChange={(next) => onChange(next as T)}>
      {options.map((option) => (
        <RadioGroup.Item key={option.value} value={option.value} disabled={option.disabled ?? false}>
          {option.label}
        </RadioGroup.Item>
      ))}
    </RadioGroup.Root>
  );
}

interface TabsProps<T extends string> extends ChoiceProps<T> {
  /** Buttons at the right end of the bar. */
  end?: ReactNode;
  /** The content of the chosen tab. */
  children: ReactNode;
  className?: string | undefined;
}

/** A bar of tabs of 48 px and the content of the chosen one, whose tab is in sight. */
export function Tabs<T extends string>({ label, value, options, onChange, end, children, className }: TabsProps<T>) {
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const bar = list.current;
    const tab = bar?.querySelector('[aria-selected="true"]')?.getBoundingClientRect();
    // Not scrollIntoView: it would also scroll what is around the bar.
    if (bar && tab) bar.scrollLeft += tab.left - bar.getBoundingClientRect().left - (bar.clientWidth - tab.width) / 2;
  }, [value]);
  return (
    <TabsPrimitive.Root value={value} onValueChange={(next) => onChange(next as T)} className={className ?? "ui-tabs"}>
      <div className="ui-tab-bar">
        <TabsPrimitive.List ref={list} aria-label={label} className="ui-tab-list">
          {options.map((option) => (
            <TabsPrimitive.Trigger key={option.value} value={option.value} className="ui-tab" disabled={option.disabled ?? false}>
              {option.label}
              {option.count !== undefined && option.count > 0 && <span className="ui-tab-count">{option.count}</span>}
            </TabsPrimitive.Trigger>
          ))}
        </TabsPrimitive.List>
        <span className="ui-grow" />
        {end}
      </div>
      <TabsPrimitive.Content value={value} className="ui-tab-content" tabIndex={-1}>
        {children}
      </TabsPrimitive.Content>
    </TabsPrimitive.Root>
  );
}
