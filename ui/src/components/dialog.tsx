import { X } from "lucide-react";
import { Dialog as Primitive } from "radix-ui";
import { type ReactElement, type ReactNode, type SyntheticEvent, useState } from "react";
import { Button, IconButton } from "./button";
import { ErrorNote } from "./error";
import { classes } from "./icon";

interface DialogProps {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  title: string;
  description?: ReactNode;
  trigger?: ReactElement | undefined;
  wide?: boolean | undefined;
  /** Buttons at the foot. */
  footer?: ReactNode;
  /** Where focus goes when it closes; the opener unless this prevents the default. */
  onCloseAutoFocus?: ((event: Event) => void) | undefined;
  children?: ReactNode;
}

/** A dialog over the page: only before something that cannot be undone, or to edit one small thing. */
export function Dialog(props: DialogProps) {
  const { open, onOpenChange, title, description, trigger, wide, footer, onCloseAutoFocus, children } = props;
  return (
    <Primitive.Root open={open} onOpenChange={onOpenChange}>
      {trigger && <Primitive.Trigger asChild>{trigger}</Primitive.Trigger>}
      <Primitive.Portal>
        <Primitive.Overlay className="ui-scrim" />
        <Primitive.Content
          className={classes("ui-dialog", wide && "is-wide")}
          {...(description === undefined ? { "aria-describedby": undefined } : {})}
          {...(onCloseAutoFocus ? { onCloseAutoFocus } : {})}
        >
          <header>
            <Primitive.Title>{title}</Primitive.Title>
            <Primitive.Close asChild>
              <IconButton icon={X} label="Close" tooltip={false} />
            </Primitive.Close>
          </header>
          {description !== undefined && <Primitive.Description className="tone-muted">{description}</Primitive.Description>}
          {children}
          {footer !== undefined && <footer>{footer}</footer>}
        </Primitive.Content>
      </Primitive.Portal>
    </Primitive.Root>
  );
}

interface ConfirmDialogProps {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  title: string;
  description: ReactNode;
  /** The verb on the button: "Delete". */
  action: string;
  danger?: boolean | undefined;
  onConfirm: () => Promise<unknown>;
  children?: ReactNode;
}

/** Asks once, does it, and closes; an error stays in the dialog. */
export function ConfirmDialog(props: ConfirmDialogProps) {
  const { open, onOpenChange, title, description, action, danger = true, onConfirm, children } = props;
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const confirm = async () => {
    setBusy(true);
    setError(null);
    try {
      await onConfirm();
      onOpenChange(false);
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (!busy) void confirm();
  };
  return (
    <Dialog open={open} onOpenChange={onOpenChange} title={title} description={description}>
      <form onSubmit={submit} className="ui-dialog-form">
        {children}
        {error !== null && <ErrorNote error={error} />}
        <footer>
          <Button onClick={() => onOpenChange(false)}>Cancel</Button>
          <Button type="submit" variant={danger ? "danger" : "primary"} busy={busy}>
            {action}
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

/** A panel from the right in which a thing of a list is edited. */
export function Drawer({ open, onOpenChange, title, description, trigger, footer, children }: Omit<DialogProps, "wide">) {
  return (
    <Primitive.Root open={open} onOpenChange={onOpenChange}>
      {trigger && <Primitive.Trigger asChild>{trigger}</Primitive.Trigger>}
      <Primitive.Portal>
        <Primitive.Overlay className="ui-scrim" />
        <Primitive.Content className="ui-drawer" {...(description === undefined ? { "aria-describedby": undefined } : {})}>
          <header className="app-bar">
            <Primitive.Title className="ui-ellipsis ui-grow">{title}</Primitive.Title>
            <Primitive.Close asChild>
              <IconButton icon={X} label="Close" tooltip={false} />
            </Primitive.Close>
          </header>
          <div className="ui-drawer-body">
            {description !== undefined && <Primitive.Description className="tone-muted">{description}</Primitive.Description>}
            {children}
          </div>
          {footer !== undefined && <div className="ui-save-bar">{footer}</div>}
        </Primitive.Content>
      </Primitive.Portal>
    </Primitive.Root>
  );
}
