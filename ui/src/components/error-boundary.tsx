import { RotateCw } from "lucide-react";
import { Component, type ReactNode } from "react";
import { isReloading } from "@/platform/stale-build";
import { Button } from "./button";
import { ErrorNote } from "./error-note";

interface Caught {
  readonly error: Error | null;
}

interface ErrorBoundaryProps {
  /** What is missing, as a sentence: "This message cannot be shown." */
  readonly what: string;
  /** With another key the children are tried again: another page, another row. */
  readonly resetKey?: unknown;
  readonly className?: string | undefined;
  readonly children: ReactNode;
}

/** How browsers say that a part of the page was not there. Such a part is not asked for again before a reload. */
const NOT_LOADED = /dynamically imported module|module script failed|preload CSS/i;

/** A fault in one part of the page takes no other part with it. */
export class ErrorBoundary extends Component<ErrorBoundaryProps, Caught> {
  override state: Caught = { error: null };

  static getDerivedStateFromError(error: unknown): Caught {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  override componentDidUpdate(before: ErrorBoundaryProps): void {
    if (this.state.error !== null && before.resetKey !== this.props.resetKey) this.setState({ error: null });
  }

  override render(): ReactNode {
    const { error } = this.state;
    if (error === null) return this.props.children;
    // The page is leaving for a newer build.
    if (isReloading()) return null;
    const action = NOT_LOADED.test(error.message) ? (
      <Button size="sm" icon={RotateCw} onClick={() => window.location.reload()}>Reload the page</Button>
    ) : (
      <Button size="sm" icon={RotateCw} onClick={() => this.setState({ error: null })}>Try again</Button>
    );
    return (
      <div className={this.props.className}>
        <ErrorNote error={new Error(this.props.what, { cause: error })} detail={error.message} action={action} />
      </div>
    );
  }
}
