/** Commands: execute, process_output, process_list, process_signal. */
import { ListTree, SquareTerminal, Octagon } from "lucide-react";
import { durationText } from "@/components";
import { asObject, numberOf, objectsOf, textOf, type JsonObject } from "../rows/json";
import { durationOf, type ToolCall } from "../rows/tool-call";
import { useTimelineActions } from "../actions";
import { CallTime, Failure, ToolFrame, verbOf, type CardProps } from "./frame";
import { Output } from "./output";
import { ProcessFoot } from "./process-foot";

const FAILED_LINES = 20;
const LIVE_LINES = 12;

export function CommandCard({ call, rowKey }: CardProps) {
  const { chatId } = useTimelineActions();
  const isWait = call.name === "process_output";
  const command = isWait ? textOf(call.args, "process_id") : textOf(call.args, "command");
  const verb = isWait ? verbOf(call, "Waiting for", "Output of", "Output of") : commandVerb(call);
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={SquareTerminal}
      verb={verb}
      subject={oneLine(command)}
      meta={<CommandMeta call={call} />}
      opens={call.state === "failed" || (call.state === "running" && call.liveOutput !== "")}
      foot={commandFoot(call, chatId)}
    >
      {commandBody(call)}
    </ToolFrame>
  );
}

function commandVerb(call: ToolCall): string {
  const intent = textOf(call.args, "model_intent");
  if (call.state === "background") return intent === "" ? "Started" : capitalize(intent);
  return verbOf(call, "Running", "Ran", "Ran");
}

function commandBody(call: ToolCall) {
  const result = asObject(call.result);
  const isFailed = call.state === "failed";
  const output = call.result === undefined ? call.liveOutput : textOf(result, "output");
  const error = textOf(result, "error");
  const command = textOf(call.args, "command");
  const isLong = command.includes("\n") || command.length > 90;
  if (output === "" && error === "" && !isLong) return null;
  return (
    <>
      {isLong && <Output text={`$ ${command}`} label="Command" />}
      {output !== "" && call.result === undefined && <Output text={output} label="Live output" tail={LIVE_LINES} isLive />}
      {output !== "" && call.result !== undefined && (
        <Output text={output} label={isFailed ? "Output, last lines" : "Output"} {...(isFailed ? { tail: FAILED_LINES } : {})} />
      )}
      {error !== "" && call.state !== "interrupted" && <Failure text={capitalize(error)} />}
    </>
  );
}

function CommandMeta({ call }: { readonly call: ToolCall }) {
  const ended = endedText(asObject(call.result));
  const took = durationOf(call);
  if (call.state !== "failed" || ended === "") return <CallTime call={call} />;
  return (
    <span>
      {ended}
      {took !== null && <>&ensp;{durationText(took)}</>}
    </span>
  );
}

/** How a command ended; "" of one that has not, and of a result of an earlier version whose exit code is -1. */
function endedText(result: JsonObject | null): string {
  const signal = textOf(result, "signal");
  if (signal !== "") return signal === "unknown" ? "ended by a signal" : `ended by ${oneLine(signal)}`;
  const code = numberOf(result, "exit_code");
  return code === null || code < 0 ? "" : `exit ${code}`;
}

/** What a command that goes on says below; null of one that has ended with nothing to say. */
function commandFoot(call: ToolCall, chatId: string) {
  const goesOn = call.state === "background" || (call.state === "running" && call.liveOutput !== "");
  const result = asObject(call.result);
  if (!goesOn || chatId === "") return textOf(result, "note") === "" ? undefined : <CommandNote call={call} />;
  const id = textOf(result, "background_process_id") || textOf(call.args, "process_id");
  const note = call.state === "running" ? "Following the output" : id === "" ? "It goes on in the workspace." : `Goes on in the workspace as process ${id}.`;
  return <ProcessFoot chatId={chatId} processId={id} command={textOf(call.args, "command")} note={note} />;
}

function CommandNote({ call }: { readonly call: ToolCall }) {
  const id = textOf(asObject(call.result), "background_process_id");
  if (call.state === "background") return <span>{id === "" ? "It goes on in the workspace." : `Goes on in the workspace as process ${id}.`}</span>;
  if (call.state === "interrupted") return <span>Its process may still run{id === "" ? "" : ` (${id})`}.</span>;
  return <span>{textOf(asObject(call.result), "note")}</span>;
}

export function ProcessListCard({ call, rowKey }: CardProps) {
  const processes = objectsOf(asObject(call.result), "processes");
  const running = processes.filter((process) => process.running === true).length;
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={ListTree}
      verb={verbOf(call, "Listing processes", "Listed processes")}
      meta={call.state === "done" ? <span>{running} running</span> : undefined}
    >
      {processes.length > 0 && (
        <ul className="tool-steps">
          {processes.map((process, index) => (
            <li key={index}>
              <code className="ui-ellipsis ui-grow">{oneLine(textOf(process, "command"))}</code>
              <span className="tone-subtle">{process.running === true ? "running" : endedText(process) || "ended"}</span>
            </li>
          ))}
        </ul>
      )}
    </ToolFrame>
  );
}

export function ProcessSignalCard({ call, rowKey }: CardProps) {
  const isKill = textOf(call.args, "signal") === "kill";
  const done = isKill ? "Killed process" : "Ended process";
  const error = textOf(asObject(call.result), "error");
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={Octagon}
      verb={verbOf(call, isKill ? "Killing process" : "Ending process", done, "Process not ended")}
      subject={textOf(call.args, "process_id")}
    >
      {call.state === "failed" && error !== "" && <Failure text={error} />}
    </ToolFrame>
  );
}

export function oneLine(text: string): string {
  return text.replace(/\s*\n\s*/g, " ↵ ").trim();
}

export function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
