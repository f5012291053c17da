import type { LucideIcon } from "lucide-react";
import { Tooltip as Primitive } from "radix-ui";
import type { ButtonHTMLAttributes, ReactElement, ReactNode, Ref } from "react";
import { classes, Icon, type IconSize, Spinner } from "./icon";

type NativeButton = Omit<ButtonHTMLAttributes<HTMLButtonElement>, "disabled">;

export interface ButtonProps extends NativeButton {
  variant?: "primary" | "quiet" | "danger" | undefined;
  size?: "md" | "sm" | "xs" | undefined;
  wide?: boolean | undefined;
  icon?: LucideIcon | undefined;
  /** Shows a spinner and takes no further press. */
  busy?: boolean | undefined;
  /** Keeps the button focusable; say the reason next to it, or give `reason`. */
  disabled?: boolean | undefined;
  reason?: string | undefined;
  ref?: Ref<HTMLButtonElement> | undefined;
  children?: ReactNode;
}

/** A button. Disabled it keeps its place in the tab order, so that its reason can be read. */
export function Button(props: ButtonProps) {
  const { variant, size = "md", wide, icon, busy, disabled, reason, className, onClick, children, type, ...rest } = props;
  const blocked = disabled === true || busy === true;
  const button = (
    <button
      {...rest}
      type={type ?? "button"}
      className={classes("ui-button", variant && `is-${variant}`, size !== "md" && `is-${size}`, wide && "is-wide", className)}
      aria-disabled={blocked ? true : undefined}
      aria-busy={busy}
      onClick={(event) => {
        if (blocked) event.preventDefault();
        else onClick?.(event);
      }}
    >
      {busy === true ? <Spinner /> : icon && <Icon of={icon} size={size === "md" ? "md" : "sm"} />}
      {children}
    </button>
  );
  return reason !== undefined && disabled === true ? <Tooltip text={reason}>{button}</Tooltip> : button;
}

export interface IconButtonProps extends NativeButton {
  icon: LucideIcon;
  /** The name of the action; also its tooltip. */
  label: string;
  /** Shown in the tooltip, e.g. "Alt N". */
  shortcut?: string | undefined;
  size?: "md" | "sm" | undefined;
  iconSize?: IconSize | undefined;
  pressed?: boolean | undefined;
  disabled?: boolean | undefined;
  tooltip?: boolean | undefined;
  ref?: Ref<HTMLButtonElement> | undefined;
}

/** A square button with an icon, its name as tooltip. */
export function IconButton(props: IconButtonProps) {
  const { icon, label, shortcut, size = "md", iconSize, pressed, disabled, tooltip = true, className, onClick, ...rest } = props;
  const button = (
    <button
      type="button"
      aria-label={label}
      aria-pressed={pressed}
      aria-disabled={disabled === true ? true : undefined}
      className={classes("ui-icon-button", size === "sm" && "is-sm", pressed === true && "is-on", className)}
      onClick={(event) => {
        if (disabled === true) event.preventDefault();
        else onClick?.(event);
      }}
      {...rest}
    >
      <Icon of={icon} size={iconSize ?? (size === "sm" ? "sm" : "md")} />
    </button>
  );
  return tooltip ? (
    <Tooltip text={label} shortcut={shortcut}>
      {button}
    </Tooltip>
  ) : (
    button
  );
}

interface TooltipProps {
  text: string;
  shortcut?: string | undefined;
  side?: "top" | "right" | "bottom" | "left";
  /** One element that takes a ref and props. */
  children: ReactElement;
}

/** A short name on hover and on focus. Never the only place where something is said. */
export function Tooltip({ text, shortcut, side = "bottom", children }: TooltipProps) {
  return (
    <Primitive.Provider delayDuration={400} skipDelayDuration={200}>
      <Primitive.Root>
        <Primitive.Trigger asChild>{children}</Primitive.Trigger>
        <Primitive.Portal>
          <Primitive.Content className="ui-tooltip" side={side} sideOffset={6} collisionPadding={8}>
            {text}
            {shortcut !== undefined && <kbd>{shortcut}</kbd>}
          </Primitive.Content>
        </Primitive.Portal>
      </Primitive.Root>
    </Primitive.Provider>
  );
}
