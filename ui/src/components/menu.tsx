/** Menus and popovers. How they are shown is loaded after the page: until then there are only the buttons that open them. */
import { cloneElement, type KeyboardEvent, type MouseEvent, type ReactElement, type ReactNode, useEffect, useState } from "react";
import type * as Popups from "./popups";

type Shown = typeof Popups;

let loaded: Shown | null = null;

/** Takes what is left of a page that has been shown, or the first press. */
export async function loadPopups(): Promise<Shown> {
  return (loaded ??= await import("./popups"));
}

interface TriggerProps {
  onClick?: (event: MouseEvent) => void;
  onKeyDown?: (event: KeyboardEvent) => void;
  "aria-haspopup"?: "menu" | "dialog";
  "aria-expanded"?: boolean;
}

interface Asked {
  readonly shown: Shown;
  readonly isAsked: boolean;
}

/** The button alone until it is pressed: after that what it opens, with the same button. */
function usePopup(trigger: ReactElement, kind: "menu" | "dialog", isOpen: boolean, onOpenChange?: (open: boolean) => void): Asked | ReactElement {
  const [asked, setAsked] = useState<Asked | null>(() => (loaded === null ? null : { shown: loaded, isAsked: false }));
  const isWaiting = asked === null && isOpen;
  useEffect(() => {
    if (!isWaiting) return;
    let isCurrent = true;
    void loadPopups().then(
      (shown) => isCurrent && setAsked({ shown, isAsked: false }),
      () => undefined,
    );
    return () => {
      isCurrent = false;
    };
  }, [isWaiting]);
  if (asked !== null) return asked;
  const button = trigger as ReactElement<TriggerProps>;
  const open = () => {
    void loadPopups().then(
      (shown) => {
        setAsked({ shown, isAsked: true });
        onOpenChange?.(true);
      },
      () => undefined,
    );
  };
  return cloneElement(button, {
    "aria-haspopup": kind,
    "aria-expanded": false,
    onClick: (event) => {
      button.props.onClick?.(event);
      if (!event.defaultPrevented) open();
    },
    onKeyDown: (event) => {
      button.props.onKeyDown?.(event);
      if (kind !== "menu" || event.key !== "ArrowDown") return;
      event.preventDefault();
      open();
    },
  });
}

/** A menu of up to eight choices. On a phone it is a sheet at the bottom. */
export function Menu(props: Omit<Popups.MenuProps, "isAsked">): ReactNode {
  const popup = usePopup(props.trigger, "menu", props.open === true, props.onOpenChange);
  return "shown" in popup ? <popup.shown.Menu {...props} isAsked={popup.isAsked} /> : popup;
}

/** Controls or facts beside their button. On a phone it is a sheet at the bottom. */
export function Popover(props: Omit<Popups.PopoverProps, "isAsked">): ReactNode {
  const popup = usePopup(props.trigger, "dialog", props.open === true, props.onOpenChange);
  return "shown" in popup ? <popup.shown.Popover {...props} isAsked={popup.isAsked} /> : popup;
}

// These stand in an open menu: how it is shown has been loaded.

export const MenuItem = (props: Popups.MenuItemProps): ReactNode => loaded && <loaded.MenuItem {...props} />;
/** A choice that is on or off; a tick shows it. */
export const MenuChoice = (props: Popups.MenuChoiceProps): ReactNode => loaded && <loaded.MenuChoice {...props} />;
export const MenuHeading = (props: { children: ReactNode }): ReactNode => loaded && <loaded.MenuHeading {...props} />;
export const MenuSeparator = (): ReactNode => loaded && <loaded.MenuSeparator />;
export const PopoverClose = (props: { asChild?: boolean; children: ReactNode }): ReactNode => loaded && <loaded.PopoverClose {...props} />;
