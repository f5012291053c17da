/** Colours code. Loaded when the first block of code is shown; gives pieces of text, never HTML. */
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import makefile from "highlight.js/lib/languages/makefile";
import markdown from "highlight.js/lib/languages/markdown";
import php from "highlight.js/lib/languages/php";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import swift from "highlight.js/lib/languages/swift";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { decodeEntities } from "./links";

const LANGUAGES = {
  bash,
  c,
  cpp,
  csharp,
  css,
  diff,
  dockerfile,
  go,
  ini,
  java,
  javascript,
  json,
  kotlin,
  makefile,
  markdown,
  php,
  python,
  ruby,
  rust,
  sql,
  swift,
  typescript,
  xml,
  yaml,
};
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

/** The five hues of the design, by the highlighter's names. */
const HUES: Readonly<Record<string, string>> = {
  keyword: "code-keyword",
  built_in: "code-keyword",
  type: "code-keyword",
  literal: "code-keyword",
  "selector-tag": "code-keyword",
  meta: "code-keyword",
  tag: "code-keyword",
  name: "code-keyword",
  string: "code-string",
  regexp: "code-string",
  char: "code-string",
  symbol: "code-string",
  addition: "tone-ok",
  attr: "code-function",
  attribute: "code-function",
  title: "code-function",
  section: "code-function",
  property: "code-function",
  number: "code-number",
  link: "code-number",
  variable: "code-number",
  "template-variable": "code-number",
  deletion: "tone-danger",
  comment: "code-comment",
  quote: "code-comment",
  doctag: "code-comment",
};

export interface Piece {
  readonly text: string;
  readonly hue: string;
}

/** Null: the language is not known. */
export function highlight(text: string, language: string): readonly Piece[] | null {
  const name = language.toLowerCase();
  if (hljs.getLanguage(name) === undefined) return null;
  return readPieces(hljs.highlight(text, { language: name, ignoreIllegals: true }).value);
}

/** The highlighter's output has only spans with a class and escaped text. */
function readPieces(html: string): readonly Piece[] {
  const pieces: Piece[] = [];
  const hues: string[] = [];
  for (const [token] of html.matchAll(/<span class="[^"]*">|<\/span>|[^<]+/g)) {
    if (token.startsWith("<span")) hues.push(hueOf(token) || (hues.at(-1) ?? ""));
    else if (token === "</span>") hues.pop();
    else pieces.push({ text: decodeEntities(token), hue: hues.at(-1) ?? "" });
  }
  return pieces;
}

function hueOf(span: string): string {
  const name = /hljs-([\w-]+)/.exec(span)?.[1] ?? "";
  return HUES[name] ?? "";
}
