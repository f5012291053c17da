/** What an agent did at a desktop, and the picture that it got. */
import { Mouse } from "lucide-react";
import { useState } from "react";
import { Lightbox } from "@/components/lightbox";
import { actionWords, pictureUrl } from "@/text/computer-actions";
import { callView, isGoing } from "../rows/call-view";
import { asObject, textOf } from "../rows/json";
import { type CardProps, ToolFrame } from "./frame";

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
