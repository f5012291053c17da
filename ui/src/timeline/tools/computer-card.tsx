/** What an agent did at a desktop or with a page of the browser, and the picture or the text that it got. */
import { Globe, Mouse } from "lucide-react";
import { useState } from "react";
import { Lightbox } from "@/components/lightbox";
import { actionWords, pictureUrl } from "@/text/computer-actions";
import { callView, clip, isGoing, oneLine } from "../rows/call-view";
import { asObject, type JsonObject, textOf } from "../rows/json";
import type { ToolCall } from "../rows/tool-call";
import { type CardProps, ToolFrame } from "./frame";
import { Output } from "./output";

export function ComputerCard({ call, rowKey }: CardProps) {
  const [isLarge, setLarge] = useState(false);
  const { action, subject } = actionWords(call.args);
  const url = pictureUrl(call.result);
  const note = textOf(asObject(call.result), "text");
  const name = `${action} ${subject}`.trim();
  const title = call.state === "done" || isGoing(call.state) ? action : `${action}: ${callView(call).title.toLowerCase()}`;
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={Mouse} view={{ title, subject, isSentence: true }}>
      {(url !== null || note !== "") && (
        <>
          {note !== "" && <div className="tool-text">{note}</div>}
          {url !== null && (
            <button type="button" className="tool-screenshot" aria-label={`Show the picture after: ${name}`} onClick={() => setLarge(true)}>
              <img className="tool-media" src={url} alt={`The screen after: ${name}`} loading="lazy" />
            </button>
          )}
        </>
      )}
      {isLarge && url !== null && <Lightbox url={url} name={name} file="screenshot.png" onClose={() => setLarge(false)} />}
    </ToolFrame>
  );
}

/** While it goes on, when it is done, when it failed. */
const PAGE_WORDS: Readonly<Record<string, readonly [going: string, done: string, failed: string]>> = {
  open: ["Opening", "Opened", "Not opened"],
  read: ["Reading page", "Read page", "Page not read"],
  click: ["Clicking", "Clicked", "Not clicked"],
  type: ["Typing", "Typed", "Not typed"],
  key: ["Pressing", "Pressed", "Not pressed"],
  wait: ["Waiting for page", "Waited for page", "Waited in vain"],
  screenshot: ["Looking at page", "Looked at page", "No picture of the page"],
  back: ["Going back", "Went back", "Not gone back"],
};

/** The address that the result names first. */
function pageUrl(result: JsonObject | null): string {
  const [line = ""] = (textOf(result, "output") || textOf(result, "text")).split("\n", 1);
  return /^[a-z]+:\S+/.exec(line)?.[0] ?? "";
}

/** What the call is about: an address, a text, a key. */
export function browserWords(call: ToolCall): { readonly title: string; readonly subject: string } {
  const { args, state } = call;
  const action = textOf(args, "action");
  const [going, done, failed] = PAGE_WORDS[action] ?? ["Using the browser", "Used the browser", "Browser failed"];
  const title = state === "done" ? done : state === "failed" ? failed : isGoing(state) ? going : callView(call).title;
  const text = clip(oneLine(textOf(args, "text") || textOf(args, "selector")));
  const isText = action === "type" || action === "key" || action === "wait";
  return { title, subject: action === "open" ? oneLine(textOf(args, "url")) : isText ? text : pageUrl(asObject(call.result)) };
}

/** The page after the call as the model reads it, or a picture of it. */
export function BrowserCard({ call, rowKey }: CardProps) {
  const [isLarge, setLarge] = useState(false);
  const words = browserWords(call);
  const url = pictureUrl(call.result);
  const text = textOf(asObject(call.result), "output");
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={Globe} view={{ ...words, isSentence: false }} isErrorLast>
      {url !== null && (
        <button type="button" className="tool-screenshot" aria-label={`Show the picture of ${words.subject}`} onClick={() => setLarge(true)}>
          <img className="tool-media" src={url} alt={`The page ${words.subject}`} loading="lazy" />
        </button>
      )}
      {url === null && text !== "" && <Output text={text} label="Page" />}
      {isLarge && url !== null && <Lightbox url={url} name={words.subject} file="screenshot.png" onClose={() => setLarge(false)} />}
    </ToolFrame>
  );
}
