import { TriangleAlert } from "lucide-react";
import type { ReactNode } from "react";
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
