import { Component, type ReactNode } from "react";
import { Button, ErrorNote } from "@/components";

interface Caught {
  readonly error: Error | null;
}

/** A fault in one tab takes neither the chat nor the other tabs with it. */
export class TabBoundary extends Component<{ readonly children: ReactNode }, Caught> {
  override state: Caught = { error: null };

  static getDerivedStateFromError(error: unknown): Caught {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  override render(): ReactNode {
    const { error } = this.state;
    if (error === null) return this.props.children;
    return (
      <div className="pscroll top">
        <ErrorNote error={error} action={<Button size="xs" onClick={() => this.setState({ error: null })}>Try again</Button>} />
      </div>
    );
  }
}
