import { Tooltip as Primitive } from "radix-ui";
import type { ReactElement } from "react";

export const TooltipProvider = ({ children }: { children: React.ReactNode }) => (
  <Primitive.Provider delayDuration={400} skipDelayDuration={200}>
    {children}
  </Primitive.Provider>
);

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
