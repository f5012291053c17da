import type { LucideIcon } from "lucide-react";
import {
  type ButtonHTMLAttributes,
  cloneElement,
  type FocusEvent,
  type PointerEvent,
  type ReactElement,
  type ReactNode,
  type Ref,
  useEffect,
  useId,
  useState,
} from "react";
import { createPortal } from "react-dom";
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
  side?: "top" | "bottom";
  /** One element that takes a ref and props. */
  children: ReactElement;
}

const DELAY_MS = 400;
/** After one has been shown, the next comes at once for this long. */
const WARM_MS = 200;
const GAP_PX = 6;
const EDGE_PX = 8;

/** One at a time, of all of the page. */
const shownLast = { hiddenAt: Number.NEGATIVE_INFINITY, timer: 0 as unknown as ReturnType<typeof setTimeout> };

type SetAnchor = (anchor: Element | null) => void;

function showSoon(element: Element, setAnchor: SetAnchor, isNow: boolean): void {
  clearTimeout(shownLast.timer);
  const delay = isNow || performance.now() - shownLast.hiddenAt < WARM_MS ? 0 : DELAY_MS;
  shownLast.timer = setTimeout(() => setAnchor(element.isConnected ? element : null), delay);
}

function hide(setAnchor: SetAnchor): void {
  clearTimeout(shownLast.timer);
  setAnchor(null);
}

interface Handlers {
  onPointerEnter?: (event: PointerEvent) => void;
  onPointerLeave?: (event: PointerEvent) => void;
  onPointerDown?: (event: PointerEvent) => void;
  onFocus?: (event: FocusEvent) => void;
  onBlur?: (event: FocusEvent) => void;
  "aria-describedby"?: string | undefined;
}

/** A short name on hover and on focus. Never the only place where something is said. */
export function Tooltip({ text, shortcut, side = "bottom", children }: TooltipProps) {
  const [anchor, setAnchor] = useState<Element | null>(null);
  const id = useId();
  useEffect(() => {
    if (anchor === null) return;
    const close = (event: Event) => {
      if (event instanceof KeyboardEvent && event.key !== "Escape") return;
      setAnchor(null);
    };
    document.addEventListener("keydown", close);
    document.addEventListener("scroll", close, { capture: true });
    return () => {
      shownLast.hiddenAt = performance.now();
      document.removeEventListener("keydown", close);
      document.removeEventListener("scroll", close, { capture: true });
    };
  }, [anchor]);
  const child = children as ReactElement<Handlers>;
  const own = child.props;
  const handlers: Handlers = {
    onPointerEnter: (event) => {
      own.onPointerEnter?.(event);
      if (event.pointerType !== "touch") showSoon(event.currentTarget, setAnchor, false);
    },
    onPointerLeave: (event) => {
      own.onPointerLeave?.(event);
      hide(setAnchor);
    },
    onPointerDown: (event) => {
      own.onPointerDown?.(event);
      hide(setAnchor);
    },
    onFocus: (event) => {
      own.onFocus?.(event);
      if (event.currentTarget.matches(":focus-visible")) showSoon(event.currentTarget, setAnchor, true);
    },
    onBlur: (event) => {
      own.onBlur?.(event);
      hide(setAnchor);
    },
    ...(anchor === null ? {} : { "aria-describedby": id }),
  };
  return (
    <>
      {cloneElement(child, handlers)}
      {anchor !== null &&
        createPortal(
          <div ref={(element) => placeBeside(element, anchor, side)} id={id} role="tooltip" className="ui-tooltip">
            {text}
            {shortcut !== undefined && <kbd>{shortcut}</kbd>}
          </div>,
          document.body,
        )}
    </>
  );
}

/** On its side, or on the other one where there is no room; never beyond the window. */
function placeBeside(element: HTMLElement | null, anchor: Element, side: "top" | "bottom"): void {
  if (element === null) return;
  const at = anchor.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = element;
  const above = at.top - GAP_PX - height;
  const below = at.bottom + GAP_PX;
  const isAbove = side === "top" ? above >= EDGE_PX : below + height > window.innerHeight - EDGE_PX;
  const left = Math.max(EDGE_PX, Math.min(at.left + (at.width - width) / 2, window.innerWidth - width - EDGE_PX));
  element.style.transform = `translate(${Math.round(left)}px, ${Math.round(isAbove ? above : below)}px)`;
}
