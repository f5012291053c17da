/** Reads the part of JSON Schema that the server's schemas use, so that a form can be made from it. */
export interface JsonSchema {
  $ref?: string;
  type?: string;
  enum?: readonly (string | number)[];
  anyOf?: readonly JsonSchema[];
  items?: JsonSchema;
  properties?: Readonly<Record<string, JsonSchema>>;
  additionalProperties?: boolean | JsonSchema;
  description?: string;
  default?: unknown;
  minimum?: number;
  maximum?: number;
}

export type Definitions = Readonly<Record<string, JsonSchema>>;

export interface FormField {
  name: string;
  label: string;
  description: string;
  kind: "boolean" | "choice" | "number" | "integer" | "text" | "list" | "group" | "json";
  /** Not set is a value of its own: the provider decides. */
  nullable: boolean;
  choices: readonly string[];
  fields: readonly FormField[];
  initial: unknown;
  minimum: number | undefined;
  maximum: number | undefined;
}

const ORDER = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

function resolve(schema: JsonSchema, definitions: Definitions): JsonSchema {
  if (schema.$ref === undefined) return schema;
  const found = definitions[schema.$ref.replace("#/$defs/", "")];
  return found === undefined ? {} : { ...found, ...(schema.description === undefined ? {} : { description: schema.description }) };
}

/** "web_search_enabled" becomes "Web search enabled". */
export function labelOf(name: string): string {
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The fields of an object's schema; empty if it is not one. */
export function fieldsOf(schema: JsonSchema, definitions: Definitions): FormField[] {
  const found = resolve(schema, definitions);
  return Object.entries(found.properties ?? {}).map(([name, inner]) => fieldOf(name, inner, definitions));
}

function fieldOf(name: string, given: JsonSchema, definitions: Definitions): FormField {
  const outer = resolve(given, definitions);
  const kinds = (outer.anyOf ?? [outer]).map((one) => resolve(one, definitions));
  const some = kinds.filter((one) => one.type !== "null");
  const schema = some.length === 1 ? (some[0] ?? {}) : {};
  const choices = (schema.enum ?? []).map(String).sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
  const kind = kindOf(schema);
  return {
    name,
    label: labelOf(name),
    description: outer.description ?? given.description ?? "",
    kind,
    nullable: kinds.some((one) => one.type === "null"),
    choices,
    fields: kind === "group" ? fieldsOf(schema, definitions) : [],
    initial: outer.default,
    minimum: schema.minimum,
    maximum: schema.maximum,
  };
}

function kindOf(schema: JsonSchema): FormField["kind"] {
  if (schema.enum !== undefined) return "choice";
  if (schema.type === "boolean" || schema.type === "number" || schema.type === "integer") return schema.type;
  if (schema.type === "string") return "text";
  if (schema.type === "array" && schema.items?.type === "string") return "list";
  if (schema.type === "object" && schema.properties !== undefined) return "group";
  return "json";
}

/** What to send: only what differs from the default, so that later defaults still hold. */
export function withoutDefaults(values: Readonly<Record<string, unknown>>, fields: readonly FormField[]): Record<string, unknown> {
  const known = new Map(fields.map((field) => [field.name, field]));
  return Object.fromEntries(
    Object.entries(values).filter(([name, value]) => {
      const field = known.get(name);
      return field === undefined || JSON.stringify(value) !== JSON.stringify(field.initial ?? null);
    }),
  );
}
