/** Web search, skills, attached files, and every tool that has no card of its own. */
import { BookOpen, Globe, Paperclip, Wrench } from "lucide-react";
import { useMemo } from "react";
import { safeHref } from "@/text/links";
import { Markdown } from "@/text/markdown";
import { FileList } from "../files";
import { humanize, webPages } from "../rows/call-view";
import { asObject, type JsonObject, textOf } from "../rows/json";
import type { ToolCall } from "../rows/tool-call";
import { type CardProps, Failure, ToolFrame } from "./frame";
import { Output } from "./output";

export function WebSearchCard({ call, rowKey }: CardProps) {
  const found = webPages(call.result);
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={Globe}>
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

const MAX_SKILL_CHARS = 30_000;

export function SkillCard({ call, rowKey }: CardProps) {
  const result = asObject(call.result);
  const body = textOf(result, "body");
  const content = textOf(result, "content");
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={BookOpen}>
      {(body !== "" || content !== "") && (
        <>
          {body !== "" && body.length <= MAX_SKILL_CHARS && (
            <div className="tool-text">
              <Markdown text={body} />
            </div>
          )}
          {body.length > MAX_SKILL_CHARS && <Output text={body} label="Skill" />}
          {content !== "" && <Output text={content} label="Content" />}
        </>
      )}
    </ToolFrame>
  );
}

export function AttachCard({ call, rowKey }: CardProps) {
  const result = asObject(call.result);
  const fileId = textOf(result, "file_id");
  const file = { type: "file" as const, file_id: fileId, name: textOf(result, "name"), media_type: textOf(result, "media_type") };
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={Paperclip}>
      {fileId !== "" && (
        <div className="tool-text">
          <FileList files={[file]} />
        </div>
      )}
    </ToolFrame>
  );
}

/** Arguments and result as they are, for tools that have no card of their own. */
export function GenericCard({ call, rowKey }: CardProps) {
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={Wrench} isErrorLast>
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
      {media !== null && <img className="tool-media" src={media} alt={`Result of ${humanize(call.name)}`} />}
      {media === null && text !== "" && isOnlyText && <Output text={text} label="Result" />}
      {media === null && call.result !== undefined && error === "" && !isOnlyText && <Output text={pretty(call.result)} label="Result" />}
    </>
  );
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
