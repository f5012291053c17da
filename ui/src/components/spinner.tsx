import { classes, DrawnIcon, type IconSize } from "./icon";

/** An open arc that turns. It stands still when motion is reduced. */
export function Spinner({ size = "sm", className, label }: { size?: IconSize; className?: string; label?: string }) {
  return (
    <DrawnIcon size={size} className={classes("ui-spin", className)} label={label}>
      <path d="M8 2.25A5.75 5.75 0 1 1 2.25 8" />
    </DrawnIcon>
  );
}
