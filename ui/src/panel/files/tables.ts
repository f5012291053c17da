/** Reads tables (CSV, TSV) and notebooks (.ipynb). Pure, bounded, and never trusting. */

/** At most `most` rows. A quoted value may have separators, line ends, and quotes written twice. */
export function readTable(text: string, separator: string, most: number): readonly (readonly string[])[] {
  const rows: string[][] = [];
  let row: string[] = [];
  let value = "";
  let isQuoted = false;
  const endRow = () => {
    row.push(value);
    rows.push(row);
    row = [];
    value = "";
  };
  for (let at = 0; at < text.length && rows.length < most; at += 1) {
    const char = text.charAt(at);
    if (isQuoted) {
      if (char !== '"') value += char;
      else if (text.charAt(at + 1) === '"') {
        value += '"';
        at += 1;
      } else isQuoted = false;
    } else if (char === '"' && value === "") isQuoted = true;
    else if (char === separator) {
      row.push(value);
      value = "";
    } else if (char === "\n") endRow();
    else if (char !== "\r") value += char;
  }
  if (rows.length < most && (value !== "" || row.length > 0)) endRow();
  return rows;
}

export type CellOutput = { readonly kind: "text"; readonly text: string; readonly isError: boolean } | { readonly kind: "image"; readonly url: string };

export type Cell =
  { readonly kind: "text"; readonly source: string } | { readonly kind: "code"; readonly source: string; readonly outputs: readonly CellOutput[] };

export interface Notebook {
  readonly cells: readonly Cell[];
  readonly language: string;
  readonly isCut: boolean;
}

const MAX_CELLS = 200;
const MAX_OUTPUTS = 20;
const MAX_OUTPUT_CHARS = 20_000;
/** HTML and SVG of outputs are not shown: a notebook comes from anywhere. */
const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif"];

export function readNotebook(text: string): Notebook | null {
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch {
    return null;
  }
  const notebook = record(found);
  if (!Array.isArray(notebook.cells)) return null;
  const language = record(record(notebook.metadata).language_info).name;
  return {
    cells: notebook.cells.slice(0, MAX_CELLS).map(readCell),
    language: typeof language === "string" ? language : "python",
    isCut: notebook.cells.length > MAX_CELLS,
  };
}

function readCell(value: unknown): Cell {
  const cell = record(value);
  const source = joined(cell.source);
  if (cell.cell_type !== "code") return { kind: "text", source };
  const outputs = Array.isArray(cell.outputs) ? cell.outputs.slice(0, MAX_OUTPUTS).map(readOutput) : [];
  return { kind: "code", source, outputs: outputs.filter((one) => one.kind === "image" || one.text !== "") };
}

function readOutput(value: unknown): CellOutput {
  const output = record(value);
  const data = record(output.data);
  for (const type of IMAGE_TYPES) {
    const image = joined(data[type]).replace(/\s/g, "");
    if (image !== "" && /^[A-Za-z0-9+/=]+$/.test(image)) return { kind: "image", url: `data:${type};base64,${image}` };
  }
  if (output.output_type === "error") return { kind: "text", isError: true, text: clipped(`${joined(output.ename)}: ${joined(output.evalue)}`) };
  const plain = joined(output.text);
  return { kind: "text", isError: output.name === "stderr", text: clipped(plain === "" ? joined(data["text/plain"]) : plain) };
}

function clipped(text: string): string {
  return text.length > MAX_OUTPUT_CHARS ? `${text.slice(0, MAX_OUTPUT_CHARS)} …` : text;
}

/** Notebooks have text as one string or as a list of lines. */
function joined(value: unknown): string {
  if (typeof value === "string") return value;
  return Array.isArray(value) ? value.filter((line): line is string => typeof line === "string").join("") : "";
}

function record(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}
