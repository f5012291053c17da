import { Eye, EyeOff } from "lucide-react";
import { Switch as Primitive } from "radix-ui";
import { type InputHTMLAttributes, type ReactNode, type Ref, useId, useState } from "react";
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
    <Primitive.Root
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
