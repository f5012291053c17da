import type { LucideIcon } from "lucide-react";
import type { ReactNode, SVGProps } from "react";

export type IconSize = "sm" | "md" | "lg";

interface IconProps {
  /** An icon of lucide-react. */
  of: LucideIcon;
  size?: IconSize | undefined;
  className?: string | undefined;
  /** The name of what it shows. Without one the icon is left out of the accessibility tree. */
  label?: string | undefined;
}

export const classes = (...names: (string | false | null | undefined)[]): string => names.filter(Boolean).join(" ");

function iconAttributes(label: string | undefined): SVGProps<SVGSVGElement> {
  return label === undefined ? { "aria-hidden": true } : { role: "img", "aria-label": label };
}

/** An icon of 16 px (14 for sm, 20 for lg) with a stroke of 1.5 px. */
export function Icon({ of: Shape, size = "md", className, label }: IconProps) {
  return <Shape className={classes("ui-icon ui-icon-lucide", size !== "md" && `is-${size}`, className)} {...iconAttributes(label)} />;
}

interface DrawnIconProps {
  size?: IconSize | undefined;
  className?: string | undefined;
  label?: string | undefined;
  children: ReactNode;
}

/** A frame for shapes of our own, drawn on a grid of 16. */
export function DrawnIcon({ size = "md", className, label, children }: DrawnIconProps) {
  return (
    <svg viewBox="0 0 16 16" className={classes("ui-icon", size !== "md" && `is-${size}`, className)} {...iconAttributes(label)}>
      {children}
    </svg>
  );
}

/** The mark of chatd: an open ring around a dot. */
export function Logo({ size = 20 }: { size?: number }) {
  return (
    <svg viewBox="0 0 20 20" width={size} height={size} aria-hidden="true">
      <rect width="20" height="20" rx="6" fill="var(--accent)" />
      <path d="M14.2 12.6A5 5 0 1 1 15 10" fill="none" stroke="var(--on-accent)" strokeWidth="1.8" strokeLinecap="round" />
      <circle cx="10" cy="10" r="1.6" fill="var(--on-accent)" />
    </svg>
  );
}

/** An open arc that turns. It stands still when motion is reduced. */
export function Spinner({ size = "sm", className, label }: { size?: IconSize; className?: string; label?: string }) {
  return (
    <DrawnIcon size={size} className={classes("ui-spin", className)} label={label}>
      <path d="M8 2.25A5.75 5.75 0 1 1 2.25 8" />
    </DrawnIcon>
  );
}
