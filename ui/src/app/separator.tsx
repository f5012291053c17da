import { type KeyboardEvent, type PointerEvent, useRef } from "react";

interface SeparatorProps {
  label: string;
  /** The id of the element whose width it changes. */
  controls: string;
  /** The side of that element on which it stands. */
  side: "left" | "right";
  value: number;
  min: number;
  max: number;
  initial: number;
  onChange: (width: number) => void;
}

const STEP = 16;

/** The edge of a column, to be dragged or moved with the arrow keys. A double click sets the first width again. */
export function Separator({ label, controls, side, value, min, max, initial, onChange }: SeparatorProps) {
  const start = useRef<{ x: number; width: number } | null>(null);
  const direction = side === "right" ? 1 : -1;
  const set = (width: number) => onChange(Math.round(Math.min(max, Math.max(min, width))));

  const take = (event: PointerEvent<HTMLDivElement>) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    start.current = { x: event.clientX, width: value };
  };
  const move = (event: PointerEvent<HTMLDivElement>) => {
    if (start.current !== null) set(start.current.width + (event.clientX - start.current.x) * direction);
  };
  const press = (event: KeyboardEvent<HTMLDivElement>) => {
    const widths: Record<string, number> = {
      ArrowLeft: value - STEP * direction,
      ArrowRight: value + STEP * direction,
      Home: min,
      End: max,
      Enter: initial,
    };
    const width = widths[event.key];
    if (width === undefined) return;
    event.preventDefault();
    set(width);
  };

  return (
    <div
      className={`app-separator is-${side}`}
      role="separator"
      aria-orientation="vertical"
      aria-label={label}
      aria-controls={controls}
      aria-valuenow={value}
      aria-valuemin={min}
      aria-valuemax={max}
      tabIndex={0}
      onPointerDown={take}
      onPointerMove={move}
      onPointerUp={() => (start.current = null)}
      onLostPointerCapture={() => (start.current = null)}
      onDoubleClick={() => set(initial)}
      onKeyDown={press}
    />
  );
}
