/** Web search, skills, attached files, and every tool that has no card of its own. */
import { BookOpen, Globe, Paperclip, Wrench } from "lucide-react";
import { useMemo } from "react";
import { Tag } from "@/components";
import { plural } from "@/platform/words";
import { safeHref } from "@/text/links";
import { Markdown } from "@/text/markdown";
import { FileList } from "../files";
import { humanize, serverOf } from "../rows/brief";
import { asObject, type JsonObject, objectsOf, textOf } from "../rows/json";
import type { ToolCall } from "../rows/tool-call";
import { capitalize } from "./command-card";
import { CallTime, type CardProps, Failure, ToolFrame, verbOf } from "./frame";
import { Output } from "./output";

export function WebSearchCard({ call, rowKey }: CardProps) {
  const found = webResults(call.result);
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={Globe}
      verb={verbOf(call, "Searching the web", "Searched the web", "Web search failed")}
      subject={textOf(call.args, "query")}
      isSentence
      meta={found.length > 0 ? <span>{plural(found.length, "page")}</span> : undefined}
    >
      {call.state === "failed" && <Failure text={textOf(asObject(call.result), "error")} />}
      {found.length > 0 && (
        <ul className="tool-steps">
          {found.map((page, index) => (
            <li key={index}>
              <WebLink url={textOf(page, "url")} title={textOf(page, "title")} />
            </li>
          ))}
        </ul>
      )}
    </ToolFrame>
  );
}

export function WebLink({ url, title }: { readonly url: string; readonly title: string }) {
  const safe = safeHref(url);
  if (safe === null) return <span className="ui-ellipsis">{title === "" ? url : title}</span>;
  return (
    <a className="ui-link ui-ellipsis" href={safe} title={safe} target="_blank" rel="noreferrer noopener">
      {title === "" ? new URL(safe).host : title}
    </a>
  );
}

function webResults(result: unknown): readonly JsonObject[] {
  const listed = Array.isArray(result) ? result.map(asObject).filter((page) => page !== null) : [];
  const object = asObject(result);
  return [...listed, ...objectsOf(object, "results"), ...objectsOf(object, "sources")].filter((page) => textOf(page, "url") !== "");
}

const MAX_SKILL_CHARS = 30_000;

export function SkillCard({ call, rowKey }: CardProps) {
  const result = asObject(call.result);
  const body = textOf(result, "body");
  const content = textOf(result, "content");
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={BookOpen}
      verb={verbOf(call, "Reading skill", "Read skill", "Skill not read")}
      subject={[textOf(call.args, "name"), textOf(call.args, "path")].filter(Boolean).join("/")}
    >
      {call.state === "failed" && <Failure text={textOf(result, "error")} />}
      {body !== "" && body.length <= MAX_SKILL_CHARS && (
        <div className="tool-text">
          <Markdown text={body} />
        </div>
      )}
      {body.length > MAX_SKILL_CHARS && <Output text={body} label="Skill" />}
      {content !== "" && <Output text={content} label="Content" />}
    </ToolFrame>
  );
}

export function AttachCard({ call, rowKey }: CardProps) {
  const result = asObject(call.result);
  const fileId = textOf(result, "file_id");
  const file = { type: "file" as const, file_id: fileId, name: textOf(result, "name"), media_type: textOf(result, "media_type") };
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={Paperclip}
      verb={verbOf(call, "Attaching", "Attached", "Not attached")}
      subject={textOf(result, "name") || textOf(call.args, "path")}
      opens={call.state !== "interrupted"}
    >
      {call.state === "failed" && <Failure text={textOf(result, "error")} />}
      {fileId !== "" && (
        <div className="tool-text">
          <FileList files={[file]} />
        </div>
      )}
    </ToolFrame>
  );
}

/** Arguments and result as they are. Tools of MCP servers say which server they are of. */
export function GenericCard({ call, rowKey }: CardProps) {
  const server = serverOf(call.name) || (call.mcpServer ?? "");
  const intent = textOf(call.args, "model_intent");
  const name = humanize(call.name);
  const going = intent === "" ? name : capitalize(intent);
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={Wrench}
      verb={verbOf(call, going, name, `${name} failed`)}
      subject={mainArgument(call.args)}
      isSentence
      meta={
        <>
          {server !== "" && <Tag>{server}</Tag>}
          <CallTime call={call} />
        </>
      }
      opens={call.state === "failed" || call.isMedia}
    >
      <GenericBody call={call} />
    </ToolFrame>
  );
}

function GenericBody({ call }: { readonly call: ToolCall }) {
  const args = useMemo(() => pretty(call.args ?? (call.argsText === "" ? undefined : call.argsText)), [call]);
  const result = asObject(call.result);
  const error = textOf(result, "error");
  const text = textOf(result, "output") || textOf(result, "text");
  const media = call.isMedia ? mediaUrl(result) : null;
  const isOnlyText = result !== null && Object.keys(result).every((key) => key === "output" || key === "text");
  return (
    <>
      {args !== "" && args !== "{}" && <Output text={args} label="Arguments" />}
      {call.args === null && call.argsText !== "" && call.state !== "streaming" && <Failure text="The arguments are not valid JSON: the call never ran." />}
      {call.state === "failed" && error !== "" && <Failure text={error} />}
      {media !== null && <img className="tool-media" src={media} alt={`Result of ${humanize(call.name)}`} />}
      {media === null && text !== "" && isOnlyText && <Output text={text} label="Result" />}
      {media === null && call.result !== undefined && error === "" && !isOnlyText && <Output text={pretty(call.result)} label="Result" />}
    </>
  );
}

function mainArgument(args: JsonObject | null): string {
  const texts = Object.entries(args ?? {}).filter(([key, value]) => key !== "model_intent" && typeof value === "string" && value !== "");
  return texts.length === 1 ? (String(texts[0]?.[1]).split("\n")[0]?.slice(0, 200) ?? "") : "";
}

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

function mediaUrl(result: JsonObject | null): string | null {
  const type = textOf(result, "mime_type");
  const data = textOf(result, "data");
  return IMAGES.has(type) && /^[A-Za-z0-9+/=\s]+$/.test(data) ? `data:${type};base64,${data}` : null;
}

function pretty(value: unknown): string {
  if (typeof value === "string") return value;
  if (value === undefined) return "";
  return JSON.stringify(value, null, 2);
}
