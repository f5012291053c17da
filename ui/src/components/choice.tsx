import { RadioGroup, Tabs as Primitive } from "radix-ui";
import type { ReactNode } from "react";

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
    <RadioGroup.Root
      className="ui-segments"
      aria-label={label}
      value={value}
      orientation="horizontal"
      onValueChange={(next) => onChange(next as T)}
    >
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

/** A bar of tabs of 48 px and the content of the chosen one. */
export function Tabs<T extends string>({ label, value, options, onChange, end, children, className }: TabsProps<T>) {
  return (
    <Primitive.Root value={value} onValueChange={(next) => onChange(next as T)} className={className ?? "ui-tabs"}>
      <div className="ui-tab-bar">
        <Primitive.List aria-label={label} className="ui-tab-list">
          {options.map((option) => (
            <Primitive.Trigger key={option.value} value={option.value} className="ui-tab" disabled={option.disabled ?? false}>
              {option.label}
              {option.count !== undefined && option.count > 0 && <span className="ui-tab-count">{option.count}</span>}
            </Primitive.Trigger>
          ))}
        </Primitive.List>
        <span className="ui-grow" />
        {end}
      </div>
      <Primitive.Content value={value} className="ui-tab-content" tabIndex={-1}>
        {children}
      </Primitive.Content>
    </Primitive.Root>
  );
}
