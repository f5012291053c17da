/** Kinds of providers, in words, and what each of them needs. */
import type { components } from "@/api/schema";

export type ProviderKind = components["schemas"]["CreateProviderBody"]["kind"];

interface KindWords {
  kind: ProviderKind;
  name: string;
  api: string;
  /** The address is needed; otherwise the vendor's own is used. */
  needsAddress: boolean;
  addressHint: string;
  takesKey: boolean;
}

export const PROVIDER_KINDS: readonly KindWords[] = [
  { kind: "anthropic", name: "Anthropic", api: "Messages API", needsAddress: false, addressHint: "https://api.anthropic.com", takesKey: true },
  { kind: "openai", name: "OpenAI", api: "Responses API", needsAddress: false, addressHint: "https://api.openai.com/v1", takesKey: true },
  { kind: "google", name: "Google Gemini", api: "Gemini API", needsAddress: false, addressHint: "https://generativelanguage.googleapis.com", takesKey: true },
  { kind: "openai-compat", name: "OpenAI-compatible", api: "Chat Completions", needsAddress: true, addressHint: "http://gpu-box:8000/v1", takesKey: true },
  { kind: "openrouter", name: "OpenRouter", api: "Chat Completions", needsAddress: false, addressHint: "https://openrouter.ai/api/v1", takesKey: true },
  { kind: "azure", name: "Azure OpenAI", api: "Responses API", needsAddress: true, addressHint: "https://name.openai.azure.com", takesKey: true },
  { kind: "bedrock", name: "Amazon Bedrock", api: "Bedrock", needsAddress: false, addressHint: "", takesKey: false },
  { kind: "vercel", name: "Vercel AI Gateway", api: "Chat Completions", needsAddress: false, addressHint: "https://ai-gateway.vercel.sh/v1", takesKey: true },
  { kind: "demo", name: "Demo", api: "built in", needsAddress: false, addressHint: "", takesKey: false },
];

export function kindWords(kind: string): KindWords | undefined {
  return PROVIDER_KINDS.find((words) => words.kind === kind);
}

/** "llm-gateway.internal" of an address; the address itself if it is not one. */
export function hostText(address: string | null | undefined): string {
  if (address === null || address === undefined) return "the vendor's address";
  try {
    return new URL(address).host;
  } catch {
    return address;
  }
}
