import { Popover as Primitive } from "radix-ui";
import type { ReactElement, ReactNode } from "react";
import { classes } from "./icon";

interface PopoverProps {
  trigger: ReactElement;
  label: string;
  open?: boolean | undefined;
  onOpenChange?: ((open: boolean) => void) | undefined;
  align?: "start" | "center" | "end" | undefined;
  side?: "top" | "right" | "bottom" | "left" | undefined;
  className?: string | undefined;
  children: ReactNode;
}

/** Controls or facts beside their button. On a phone it is a sheet at the bottom. */
export function Popover({ trigger, label, open, onOpenChange, align = "start", side = "bottom", className, children }: PopoverProps) {
  return (
    <Primitive.Root {...(open === undefined ? {} : { open })} {...(onOpenChange ? { onOpenChange } : {})}>
      <Primitive.Trigger asChild>{trigger}</Primitive.Trigger>
      <Primitive.Portal>
        <Primitive.Content
          className={classes("ui-menu ui-popup", className)}
          aria-label={label}
          align={align}
          side={side}
          sideOffset={4}
          collisionPadding={8}
        >
          {children}
        </Primitive.Content>
      </Primitive.Portal>
    </Primitive.Root>
  );
}

export const PopoverClose = Primitive.Close;
