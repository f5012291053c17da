import { RotateCw, TriangleAlert } from "lucide-react";
import { Component, type ReactNode } from "react";
import { isReloading } from "@/platform/browser";
import { Button } from "./button";
import { Icon } from "./icon";

interface ErrorWords {
  text: string;
  detail: string | null;
  validations: readonly { field: string; detail: string }[];
}

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;

const textOf = (value: unknown): string => (typeof value === "string" ? value : "");

function readValidations(value: unknown): ErrorWords["validations"] {
  if (!Array.isArray(value)) return [];
  return value.filter(isRecord).map((item) => ({ field: textOf(item.field), detail: textOf(item.detail) }));
}

/** What an error says to a person: the server's sentence, or that the server was not reached. */
export function errorWords(error: unknown): ErrorWords {
  if (isRecord(error) && typeof error.message === "string" && typeof error.status === "number") {
    const detail = typeof error.detail === "string" && error.detail !== error.message ? error.detail : null;
    return { text: error.message, detail, validations: readValidations(error.validations) };
  }
  if (error instanceof TypeError) {
    return { text: "The server could not be reached. Nothing was changed.", detail: null, validations: [] };
  }
  return { text: error instanceof Error ? error.message : String(error), detail: null, validations: [] };
}

/** A failed request: what happened and, by `action`, what to do next. */
export function ErrorNote({ error, detail, action }: { error: unknown; detail?: string; action?: ReactNode }) {
  const found = errorWords(error);
  const words = { ...found, detail: detail ?? found.detail };
  return (
    <div className="ui-result is-bad ui-error-note" role="alert">
      <Icon of={TriangleAlert} />
      <div className="ui-grow">
        {words.text}
        {words.detail !== null && <p>{words.detail}</p>}
        {words.validations.map((wrong) => (
          <p key={wrong.field + wrong.detail}>
            {wrong.field}: {wrong.detail}
          </p>
        ))}
      </div>
      {action}
    </div>
  );
}

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
      <Button size="sm" icon={RotateCw} onClick={() => window.location.reload()}>
        Reload the page
      </Button>
    ) : (
      <Button size="sm" icon={RotateCw} onClick={() => this.setState({ error: null })}>
        Try again
      </Button>
    );
    return (
      <div className={this.props.className}>
        <ErrorNote error={new Error(this.props.what, { cause: error })} detail={error.message} action={action} />
      </div>
    );
  }
}
