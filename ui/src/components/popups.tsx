/** Menus and popovers as they are shown: loaded after the page, see menu.tsx. */
import { Check, type LucideIcon } from "lucide-react";
import { DropdownMenu as Primitive, Popover as PopoverPrimitive } from "radix-ui";
import { type ReactElement, type ReactNode, useRef } from "react";
import { classes, Icon } from "./icon";

/** Where a menu is a sheet, as in phone.css. */
const SHEET = "(max-width: 640px)";

export interface MenuProps {
  /** The button that opens it. */
  trigger: ReactElement;
  label?: string | undefined;
  align?: "start" | "center" | "end" | undefined;
  side?: "top" | "right" | "bottom" | "left" | undefined;
  open?: boolean | undefined;
  /** Shown at once: the press that asked for it is over. */
  isAsked?: boolean | undefined;
  onOpenChange?: ((open: boolean) => void) | undefined;
  /** Where focus goes after it closed; the opener unless this prevents the default. */
  onCloseAutoFocus?: ((event: Event) => void) | undefined;
  children: ReactNode;
}

/** A menu of up to eight choices. On a phone it is a sheet at the bottom. */
export function Menu({ trigger, label, align = "end", side = "bottom", open, isAsked = false, onOpenChange, onCloseAutoFocus, children }: MenuProps) {
  // A sheet opens under the pointer: the end of the press that opened it must not choose an item.
  const opening = useRef(false);
  return (
    <Primitive.Root modal={false} defaultOpen={isAsked} {...(open === undefined ? {} : { open })} {...(onOpenChange ? { onOpenChange } : {})}>
      <Primitive.Trigger
        asChild
        onPointerDown={() => {
          opening.current = window.matchMedia(SHEET).matches;
        }}
      >
        {trigger}
      </Primitive.Trigger>
      <Primitive.Portal>
        <Primitive.Content
          className="ui-menu ui-popup"
          align={align}
          side={side}
          sideOffset={4}
          collisionPadding={8}
          aria-label={label}
          onPointerDownCapture={() => {
            opening.current = false;
          }}
          onPointerUpCapture={(event) => {
            if (opening.current) event.stopPropagation();
            opening.current = false;
          }}
          {...(onCloseAutoFocus ? { onCloseAutoFocus } : {})}
        >
          {label !== undefined && <h5 role="presentation">{label}</h5>}
          {children}
        </Primitive.Content>
      </Primitive.Portal>
    </Primitive.Root>
  );
}

export interface MenuItemProps {
  icon?: LucideIcon | undefined;
  /** A second line that says the effect, or why it cannot be chosen. */
  hint?: ReactNode;
  shortcut?: string | undefined;
  danger?: boolean | undefined;
  disabled?: boolean | undefined;
  onSelect?: ((event: Event) => void) | undefined;
  children: ReactNode;
}

function ItemText({ hint, shortcut, children }: Pick<MenuItemProps, "hint" | "shortcut" | "children">) {
  return (
    <>
      <b>{children}</b>
      {shortcut !== undefined ? <kbd>{shortcut}</kbd> : <span />}
      {hint !== undefined && hint !== null && <p>{hint}</p>}
    </>
  );
}

export function MenuItem({ icon, hint, shortcut, danger, disabled, onSelect, children }: MenuItemProps) {
  return (
    <Primitive.Item className={classes("ui-menu-item", danger && "is-danger")} disabled={disabled ?? false} {...(onSelect ? { onSelect } : {})}>
      {icon ? <Icon of={icon} /> : <span />}
      <ItemText hint={hint} shortcut={shortcut}>
        {children}
      </ItemText>
    </Primitive.Item>
  );
}

export interface MenuChoiceProps extends Omit<MenuItemProps, "onSelect" | "danger" | "shortcut"> {
  checked: boolean;
  onChecked: (checked: boolean) => void;
  /** The menu stays open, for choices that are combined. */
  keepOpen?: boolean | undefined;
}

/** A choice that is on or off; a tick shows it. */
export function MenuChoice({ icon, hint, checked, onChecked, disabled, keepOpen, children }: MenuChoiceProps) {
  return (
    <Primitive.CheckboxItem
      className={classes("ui-menu-item", checked && "is-on")}
      checked={checked}
      disabled={disabled ?? false}
      onCheckedChange={onChecked}
      onSelect={(event) => {
        if (keepOpen === true) event.preventDefault();
      }}
    >
      {icon ? <Icon of={icon} /> : <span />}
      <b>{children}</b>
      {checked ? <Icon of={Check} className="tone-accent" /> : <span />}
      {hint !== undefined && hint !== null && <p>{hint}</p>}
    </Primitive.CheckboxItem>
  );
}

export const MenuHeading = ({ children }: { children: ReactNode }) => (
  <Primitive.Label asChild>
    <h5 role="presentation">{children}</h5>
  </Primitive.Label>
);

export const MenuSeparator = () => (
  <Primitive.Separator asChild>
    <hr />
  </Primitive.Separator>
);

export interface PopoverProps {
  trigger: ReactElement;
  label: string;
  open?: boolean | undefined;
  isAsked?: boolean | undefined;
  onOpenChange?: ((open: boolean) => void) | undefined;
  align?: "start" | "center" | "end" | undefined;
  side?: "top" | "right" | "bottom" | "left" | undefined;
  className?: string | undefined;
  children: ReactNode;
}

/** Controls or facts beside their button. On a phone it is a sheet at the bottom. */
export function Popover({ trigger, label, open, isAsked = false, onOpenChange, align = "start", side = "bottom", className, children }: PopoverProps) {
  return (
    <PopoverPrimitive.Root defaultOpen={isAsked} {...(open === undefined ? {} : { open })} {...(onOpenChange ? { onOpenChange } : {})}>
      <PopoverPrimitive.Trigger asChild>{trigger}</PopoverPrimitive.Trigger>
      <PopoverPrimitive.Portal>
        <PopoverPrimitive.Content
          className={classes("ui-menu ui-popup", className)}
          aria-label={label}
          align={align}
          side={side}
          sideOffset={4}
          collisionPadding={8}
        >
          {children}
        </PopoverPrimitive.Content>
      </PopoverPrimitive.Portal>
    </PopoverPrimitive.Root>
  );
}

export const PopoverClose = PopoverPrimitive.Close;
