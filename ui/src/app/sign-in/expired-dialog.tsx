import { Dialog } from "@/components";
import { SignInForm } from "./sign-in-form";

interface ExpiredDialogProps {
  username: string;
  onSignedIn: () => void;
  /** Leave the page for the whole sign-in page. */
  onLeave: () => void;
}

/** The session has ended while the page was open. What was written stays where it is. */
export function ExpiredDialog({ username, onSignedIn, onLeave }: ExpiredDialogProps) {
  const here = window.location.pathname + window.location.search;
  return (
    <Dialog open onOpenChange={onLeave} title="Your session has ended" description="Sign in again to go on here. What you have written is kept.">
      <SignInForm next={here} onSignedIn={onSignedIn} username={username} />
    </Dialog>
  );
}
